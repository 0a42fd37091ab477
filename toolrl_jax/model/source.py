"""Where a checkpoint lies, and how its folder comes to be whole or not at all.

From the string in `config.model.path` to a path on disk: a Hugging Face
folder, a GGUF file, or what is bundled. Reads no weights.
"""

import contextlib
import importlib.resources
import json
import pathlib
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import tqdm

BUNDLED = "bundled:"
TOKENIZER_FILES = (
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "vocab.json",
  "merges.txt",
  "chat_template.jinja",
  "chat_template.json",
)
# What takes less is over before anybody asks.
_SILENT_SECS = 2.0
# What an exported folder may hold; everything else is somebody's own.
_EXPORTED = re.compile(
  r"(generation_)?config\.json|model(-\d+-of-\d+)?\.safetensors|"
  r"model\.safetensors\.index\.json|params|"
  + "|".join(map(re.escape, TOKENIZER_FILES))
)


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
  if not text:
    raise ValueError("the path of the checkpoint is empty; name one.")
  found = _expanded(text)
  if text.startswith(BUNDLED):
    assets = importlib.resources.files("toolrl_jax") / "assets"
    found = pathlib.Path(str(assets)) / text.removeprefix(BUNDLED)
  if not found.exists():
    raise ValueError(
      f"no checkpoint at {text!r}; give a Hugging Face folder, a .gguf file or "
      "'bundled:tiny'."
    )
  return found


def read_json(path: pathlib.Path) -> Mapping[str, Any]:
  """Reads a JSON object.

  Raises:
    ValueError: If the file is missing, is no JSON, or holds no object.
  """
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    raise ValueError(f"{path} is missing; the checkpoint needs it.") from None
  except (ValueError, OSError, RecursionError) as error:
    raise ValueError(f"{path} is not readable JSON: {error}") from None
  if not isinstance(content, dict):
    raise ValueError(f"{path} must hold a JSON object; replace the file.")
  return content


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Writes a JSON object, keys in order."""
  path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def progress(what: str, num_bytes: int) -> tqdm.tqdm:
  """Returns a bar over bytes that shows itself where the work takes long."""
  return tqdm.tqdm(
    desc=what,
    total=num_bytes,
    unit="B",
    unit_scale=True,
    delay=_SILENT_SECS,
    mininterval=1.0,
  )


@contextlib.contextmanager
def whole_folder(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a folder to fill that stands at `path` only when it is whole.

  Args:
    path: Where the folder shall stand; an older checkpoint there is replaced.

  Yields:
    An empty folder beside it. It is renamed at the end and removed when the
    block raises.

  Raises:
    ValueError: If `path` holds something that is no checkpoint.
  """
  # A link stays a link: what it points to is replaced.
  target = _expanded(path).resolve()
  # Fixed names, so that what a killed process left is taken away here.
  partial = target.with_name(f".{target.name}.partial")
  old = target.with_name(f".{target.name}.old")
  if old.is_dir() and not target.exists():
    old.rename(target)  # Killed between the two renames below.
  check_replaceable(target)
  for leftover in (partial, old):
    shutil.rmtree(leftover, ignore_errors=True)
  partial.mkdir(parents=True)
  try:
    yield partial
    if target.exists():
      target.rename(old)
    partial.rename(target)
  finally:
    shutil.rmtree(partial, ignore_errors=True)
    if target.exists():
      shutil.rmtree(old, ignore_errors=True)


def check_replaceable(target: pathlib.Path) -> None:
  """Refuses to write over what is no checkpoint.

  Args:
    target: Folder that an export would replace; need not exist.

  Raises:
    ValueError: Something else is there.
  """
  if not target.exists() or (target.is_dir() and not any(target.iterdir())):
    return
  names = (
    sorted(path.name for path in target.iterdir()) if (target.is_dir()) else []
  )
  if "config.json" not in names:
    raise ValueError(
      f"{target} exists and is no exported checkpoint; choose another folder."
    )
  foreign = [name for name in names if not _EXPORTED.fullmatch(name)]
  if foreign:
    raise ValueError(
      f"{target} holds {', '.join(foreign[:3])}, which an export does not write "
      "and would delete; choose another folder."
    )


def _expanded(path: str | pathlib.Path) -> pathlib.Path:
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError as error:
    raise ValueError(
      f"there is no home folder for {str(path)[:60]!r}; write the path out."
    ) from error
