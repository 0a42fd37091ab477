"""A folder to the Python that can run BFCL's own scorer.

The package bfcl-eval pins libraries that collide with ours, and evaluates
model text in places. So it lives in an environment of its own, made once and
checked at every use: by version, and by a hash over its data files. Only what
the checkers need is installed; the vendors' libraries that the package
declares are not.

Layout of the folder: `env/` (the environment), `lock` (held by whoever makes
or checks it), `ready.json` (written last; without it `env/` is half-made and
is made anew). This module does not know what the scorer computes.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from absl import logging

VERSION = "2026.3.23"

# Of bfcl_eval/data, as `data_sha256` computes it.
DATA_SHA256 = "fafb52f75dcbc879fc7ebd05a14da37338c898caee7de3617f8c49a68685841d"

# All that the checkers and the executable back-ends import.
_REQUIREMENTS = (
  f"bfcl-eval=={VERSION}",
  "filelock==3.20.0",
  "mpmath==1.3.0",
)

# What the package's own evaluation program and Qwen handler import beside.
_RUNNER_REQUIREMENTS = (
  "numpy==1.26.4",
  "openai>=1.86,<3",
  "overrides==7.7.0",
  "pandas>=2.2,<3",
  "python-dotenv>=1.0.1,<2",
  "requests>=2.31,<3",
  "tenacity>=8.5,<10",
  "tqdm>=4.66,<5",
  "tree_sitter==0.21.3",
  "tree-sitter-java==0.21.0",
  "tree-sitter-javascript==0.21.4",
)

_MAKING_SECS = 900


class BrokenEnvironment(RuntimeError):
  """The environment of the scorer cannot be made or is not what it must be."""


class Environment(NamedTuple):
  """A checked environment.

  Attributes:
    python: Its Python program.
    version: Version of bfcl-eval in it.
    data_sha256: Hash over the data files of the package.
    python_version: Version of its Python, as "3.12.3".
  """

  python: pathlib.Path
  version: str
  data_sha256: str
  python_version: str


def default_folder(*, has_runner: bool = False) -> pathlib.Path:
  """Returns the folder in the user's cache, as XDG has it.

  Args:
    has_runner: Whether the environment can run `bfcl evaluate` as well.

  Returns:
    A path that need not exist.
  """
  cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  name = f"bfcl-{VERSION}" + ("-runner" if has_runner else "")
  return pathlib.Path(cache) / "toolrl_jax" / name


def ensure(
  folder: pathlib.Path | None = None, *, has_runner: bool = False
) -> Environment:
  """Returns the environment, making it first where it is not there.

  Safe to call from several processes at once: one makes, the others wait.

  Args:
    folder: Where it is or shall be; None takes `default_folder`.
    has_runner: Whether it has to run the package's evaluation program and Qwen
      handler too, which need about 160 MB more.

  Returns:
    An environment whose version and data are the pinned ones.

  Raises:
    BrokenEnvironment: It cannot be made (no network, most often), is not what
      was pinned, or the folder holds something else.
  """
  folder = folder or default_folder(has_runner=has_runner)
  _refuse_foreign(folder)
  folder.mkdir(parents=True, exist_ok=True)
  with _locked(folder / "lock"):
    found = _read(folder, has_runner=has_runner)
    # What an installer keeps in its cache can be spoilt as well.
    for is_cached in (True, False):
      if found is None:
        _make(folder, has_runner=has_runner, is_cached=is_cached)
        found = _read(folder, has_runner=has_runner)
  if found is None:
    raise BrokenEnvironment(
      f"the BFCL environment must hold bfcl-eval {VERSION} with data hash"
      f" {DATA_SHA256[:12]}, got others right after installing into {folder};"
      " check which package index is in use."
    )
  return found


def data_sha256(package: pathlib.Path) -> str:
  """Hashes the data files of an installed package.

  Args:
    package: Folder of the module bfcl_eval.

  Returns:
    SHA-256 over the sorted relative paths and contents, hexadecimal.
  """
  digest = hashlib.sha256()
  root = package / "data"
  files = (path for path in root.rglob("*") if path.is_file())
  for path in sorted(files, key=lambda path: path.as_posix()):
    content = path.read_bytes()
    name = path.relative_to(root).as_posix()
    digest.update(f"{name}\0{len(content)}\0".encode())
    digest.update(content)
  return digest.hexdigest()


def _refuse_foreign(folder: pathlib.Path) -> None:
  """Guards other people's folders: a remake deletes `env/`."""
  if folder.exists() and not folder.is_dir():
    raise BrokenEnvironment(
      f"the folder of the BFCL environment must be a folder, got the file"
      f" {folder}; give another path."
    )
  if (folder / "env").exists() and not (folder / "lock").exists():
    raise BrokenEnvironment(
      f"the folder of the BFCL environment must be new or made here, but"
      f" {folder} holds another env; give an empty folder."
    )


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
  """Holds an exclusive lock; the system frees it when its holder dies."""
  with path.open("a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _read(folder: pathlib.Path, *, has_runner: bool) -> Environment | None:
  """Returns the environment if it is finished and the pinned one."""
  try:
    ready = json.loads((folder / "ready.json").read_text())
    python_version = str(ready["python_version"])
    if has_runner and not ready["has_runner"]:
      return None
  except (OSError, ValueError, KeyError, TypeError):
    return None
  packages = list((folder / "env").glob("lib/python*/site-packages"))
  python = folder / "env" / "bin" / "python"
  # The link is broken where the Python it was made from is gone.
  if len(packages) != 1 or not python.exists():
    return None
  if not (packages[0] / f"bfcl_eval-{VERSION}.dist-info").is_dir():
    return None
  found = data_sha256(packages[0] / "bfcl_eval")
  if found != DATA_SHA256:
    return None
  return Environment(python, VERSION, found, python_version)


def _make(folder: pathlib.Path, *, has_runner: bool, is_cached: bool) -> None:
  """Makes the environment anew, with uv where it is there, else with pip."""
  env, ready = folder / "env", folder / "ready.json"
  logging.info("installs bfcl-eval %s, once, into %s", VERSION, folder)
  ready.unlink(missing_ok=True)
  shutil.rmtree(env, ignore_errors=True)
  python = str(env / "bin" / "python")
  uv = shutil.which("uv")
  if uv:
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(env)])
    install = [
      *(uv, "pip", "install", "--quiet"),
      # Linked files would share every change with the cache and others.
      *("--link-mode", "copy", "--python", python),
    ]
  else:
    _run([sys.executable, "-m", "venv", str(env)])
    install = [python, "-m", "pip", "install", "--quiet"]
  options = ["--no-deps"]
  if not is_cached:
    options.append("--no-cache" if uv else "--no-cache-dir")
  if uv:
    # As pip does: the worker may not write what it compiles.
    options.append("--compile-bytecode")
  _run([*install, *options, *_REQUIREMENTS])
  if has_runner:
    _run([*install, *_RUNNER_REQUIREMENTS])
  version = ".".join(str(part) for part in sys.version_info[:3])
  finished = {"python_version": version, "has_runner": has_runner}
  ready.write_text(json.dumps(finished))


def _run(command: Sequence[str]) -> None:
  """Runs one step; a failure becomes one line."""
  try:
    subprocess.run(
      command,
      check=True,
      capture_output=True,
      text=True,
      timeout=_MAKING_SECS,
      env=_making_variables(),
      stdin=subprocess.DEVNULL,
    )
  except (OSError, subprocess.SubprocessError) as error:
    output = getattr(error, "stderr", None) or str(error)
    if isinstance(output, bytes):
      output = output.decode(errors="replace")
    lines = [line.strip(" │├╰─▶×") for line in output.splitlines()]
    reason = "; ".join(line for line in lines if line)[:300]
    raise BrokenEnvironment(
      f"BFCL needs bfcl-eval {VERSION} in an environment of its own, but"
      f" {pathlib.Path(command[0]).name} failed ({reason}); give it the network"
      " once, or copy a ready environment folder."
    ) from error


def _making_variables() -> Mapping[str, str]:
  """The caller's variables, without those that point at its environment."""
  left_out = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_PYTHON")
  return {
    name: text for name, text in os.environ.items() if name not in left_out
  }
