"""Where a checkpoint lies: a Hugging Face folder, a GGUF file, or bundled.

From the string in `config.model.path` to a path on disk. Reads no weights.
"""

import importlib.resources
import json
import pathlib
from collections.abc import Mapping
from typing import Any

BUNDLED = "bundled:"


def locate(path: str | pathlib.Path) -> pathlib.Path:
  """Returns the folder or .gguf file that `path` names.

  Args:
    path: A folder, a .gguf file, or "bundled:tiny".

  Returns:
    An existing path.

  Raises:
    ValueError: If nothing is there.
  """
  text = str(path)
  found = pathlib.Path(text).expanduser()
  if text.startswith(BUNDLED):
    assets = importlib.resources.files("toolrl_jax") / "assets"
    found = pathlib.Path(str(assets)) / text.removeprefix(BUNDLED)
  if not found.exists():
    raise ValueError(
      f"no checkpoint at {text!r}; give a Hugging Face folder, a .gguf file or "
      "'bundled:tiny'."
    )
  return found


def is_gguf(path: pathlib.Path) -> bool:
  """Whether the checkpoint is one GGUF file."""
  return path.is_file() and path.suffix == ".gguf"


def read_json(path: pathlib.Path) -> Mapping[str, Any]:
  """Reads a JSON object.

  Raises:
    ValueError: If the file is missing, is no JSON, or holds no object.
  """
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    raise ValueError(f"{path} is missing; the checkpoint needs it.") from None
  except (UnicodeDecodeError, json.JSONDecodeError, OSError) as error:
    raise ValueError(f"{path} is not readable JSON: {error}") from None
  if not isinstance(content, dict):
    raise ValueError(f"{path} must hold a JSON object; replace the file.")
  return content
