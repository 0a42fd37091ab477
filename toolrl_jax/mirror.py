"""A run's folder in object storage: what lies there, and what lies here.

Checkpoints go to the storage directly. Files that a run appends to lie in a
folder of this machine, which a new machine does not have: they are brought
before the first step, and taken before each checkpoint, so that a whole
checkpoint never lacks the lines of its steps. A run in a local folder has no
mirror, and every function is its trivial case.
"""

import hashlib
import os
import pathlib
import shutil

from absl import logging
from etils import epath

from toolrl_jax import configuration

_FILES = (
  "config.json",
  "run.json",
  "metrics.jsonl",
  "samples.jsonl",
  "warnings.jsonl",
  "summary.json",
)
_PROBE = ".writable"


class Mirror:
  """Where a run's files lie.

  Attributes:
    folder: Of this machine: logs, and all else of a run without storage.
    checkpoints: Where checkpoints are written.
  """

  def __init__(self, workdir: pathlib.Path | epath.Path):
    """Reads nothing yet.

    Args:
      workdir: A local folder, or one in storage ("gs://bucket/run").
    """
    self._remote: epath.Path | None = None
    if isinstance(workdir, pathlib.Path):
      self.folder = workdir
      self.checkpoints: pathlib.Path | epath.Path = workdir / "checkpoints"
      return
    self._remote = workdir
    self.folder = _local_folder(str(workdir))
    self.checkpoints = workdir / "checkpoints"

  def check(self) -> None:
    """Writes to the storage and takes it away again.

    Raises:
      UsageError: It is not writable: no credentials, no such bucket, ...
    """
    if self._remote is None:
      return
    try:
      self._remote.mkdir(parents=True, exist_ok=True)
      (self._remote / _PROBE).write_text("a run writes here\n")
      (self._remote / _PROBE).unlink()
    # Each storage library has errors of its own.
    except Exception as error:  # noqa: BLE001
      logging.debug("storage", exc_info=True)
      reason = " ".join(str(error).split()) or type(error).__name__
      raise configuration.UsageError(
        f"--workdir must be a folder that a run can write, {self._remote} is "
        f"none: {reason[:300]}; give this machine access to the bucket (on a "
        "TPU VM its service account, else `gcloud auth application-default "
        "login`) and install the extra `gcs`."
      ) from error

  def bring(self) -> None:
    """Fetches what an earlier machine wrote; it replaces what lies here."""
    if self._remote is None:
      return
    for name in _FILES:
      (self.folder / name).unlink(missing_ok=True)
      there = self._remote / name
      if there.exists():
        (self.folder / name).write_bytes(there.read_bytes())

  def take(self) -> None:
    """Stores what lies here; a folder `export` as well, once it is there."""
    if self._remote is None:
      return
    for name in _FILES:
      here = self.folder / name
      if here.is_file():
        (self._remote / name).write_bytes(here.read_bytes())
    export = self.folder / "export"
    if export.is_dir():
      target = self._remote / "export"
      logging.info("copies the export to %s", target)
      target.mkdir(parents=True, exist_ok=True)
      for file in sorted(export.iterdir()):
        with file.open("rb") as source, (target / file.name).open("wb") as sink:
          shutil.copyfileobj(source, sink, 1 << 24)

  @property
  def name(self) -> str:
    """Where a user finds the run."""
    return str(self._remote or self.folder)


def _local_folder(url: str) -> pathlib.Path:
  """Returns this machine's folder of a run in storage."""
  cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  digest = hashlib.sha256(url.encode()).hexdigest()[:16]
  return pathlib.Path(cache) / "toolrl_jax" / "runs" / digest
