"""What an evaluation leaves on disk, and how it goes on after a stop.

In the folder of a run, for each benchmark and seed: `answers/NAME-seedK.jsonl`,
whose first line says under which protocol, weights and items it was made and
whose others are ended conversations, written as they end; and `scores.json`
for the whole run. A file of another protocol, other weights or other items is
refused, so that no score mixes two. Knows neither models nor benchmarks.
"""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolrl_jax import json_file
from toolrl_jax.evaluation import respond


class Header(NamedTuple):
  """What all lines of a file of answers have in common.

  Attributes:
    benchmark: Name of the benchmark.
    seed: Seed of the samples.
    protocol: `Protocol.record()`.
    weights: Hash of the weights.
    items: The benchmark's provenance, and what else decides the tokens.
  """

  benchmark: str
  seed: int
  protocol: Mapping[str, Any]
  weights: str
  items: Mapping[str, str]


class AnswerFile:
  """Ended conversations of one benchmark under one seed."""

  def __init__(self, path: pathlib.Path, header: Header):
    """Opens the file, a new one or one that was broken off.

    Args:
      path: The file; its folder is made.
      header: What it must be.

    Raises:
      ValueError: It is there and holds something else.
    """
    self.path, self._header = path, header
    path.parent.mkdir(parents=True, exist_ok=True)
    check(path, header)
    self.ended: dict[str, respond.Ended] = self._read()
    self._file = path.open("a", encoding="utf-8")
    if path.stat().st_size == 0:
      self._append([header._asdict()])

  def __enter__(self) -> "AnswerFile":
    return self

  def __exit__(self, *exception: object) -> None:
    self._file.close()

  def write(self, ended: Sequence[respond.Ended]) -> None:
    """Appends conversations; they are on disk when this returns."""
    self.ended |= {one.id: one for one in ended}
    self._append([one._asdict() for one in ended])

  def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
    self._file.writelines(json.dumps(line) + "\n" for line in lines)
    self._file.flush()
    os.fsync(self._file.fileno())

  def _read(self) -> dict[str, respond.Ended]:
    if not self.path.exists():
      return {}
    content = self.path.read_bytes()
    whole, _, torn = content.rpartition(b"\n")
    if torn:
      # The process ended inside a line: that conversation is run again.
      with self.path.open("r+b") as file:
        file.truncate(len(content) - len(torn))
    lines = whole.split(b"\n") if whole else []
    if not lines:
      return {}
    try:
      ended = [_checked(json.loads(line)) for line in lines[1:]]
    except (ValueError, TypeError, RecursionError) as error:
      raise _no_answers(self.path, error) from error
    return {one.id: one for one in ended}


def check(path: pathlib.Path, header: Header) -> None:
  """Looks whether a file of answers, if there is one, is what it must be.

  Args:
    path: The file.
    header: What it must be made under.

  Raises:
    ValueError: It is there and holds something else.
  """
  if not path.exists():
    return
  try:
    with path.open("rb") as file:
      line = file.readline()
    if not line.endswith(b"\n"):
      # A process that was killed in its first line left nothing that counts.
      return
    found = json.loads(line)
  except (OSError, ValueError, RecursionError) as error:
    raise _no_answers(path, error) from error
  wanted = json.loads(json.dumps(header._asdict()))
  if found == wanted:
    return
  found = found if isinstance(found, dict) else {}
  names = [name for name in wanted if found.get(name) != wanted[name]]
  what = ", ".join(_differences(found, wanted, names))
  raise ValueError(
    f"{path} was made with other settings: {what}; choose another --workdir, "
    "or set the fields back (which items are run also depends on "
    "config.benchmark.max_items and categories)."
  )


def _no_answers(path: pathlib.Path, error: Exception) -> ValueError:
  return ValueError(
    f"{path} is not a file of answers ({_one_line(error)}); move it "
    "away or choose another --workdir."
  )


def _checked(fields: Any) -> respond.Ended:
  """Returns a line as a record whose fields have their types."""
  ended = respond.Ended(**fields)
  for name, value in ended._asdict().items():
    kind: type | tuple[type, ...] = int
    if name in ("id", "error"):
      kind = str
    elif name == "outcome":
      kind = dict
    elif name == "secs":
      kind = (int, float)
    if not isinstance(value, kind):
      raise ValueError(f"{name} is {_short(value)}")
  return ended


def _differences(found: Any, wanted: Any, names: list[str]) -> list[str]:
  """Names what differs, a protocol by its switches."""
  differences = []
  for name in names:
    old, new = found.get(name), wanted[name]
    if isinstance(old, dict) and isinstance(new, dict):
      differences += [
        f"{key} ({_short(old.get(key))}, now {_short(new.get(key))})"
        for key in new
        if old.get(key) != new.get(key) and "hash" not in key
      ]
    else:
      differences.append(f"{name} ({_short(old)}, now {_short(new)})")
  return differences


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 40 else text[:37] + "..."


def write_scores(path: pathlib.Path, scores: Mapping[str, Any]) -> None:
  """Writes a score file, whole or not at all."""
  json_file.write(path, scores)


def read_scores(path: pathlib.Path) -> dict[str, Any]:
  """Reads a score file.

  Args:
    path: The file, or the folder of the run that wrote it.

  Returns:
    What `write_scores` was given.

  Raises:
    ValueError: There is none, or it is damaged.
  """
  path = path / "scores.json" if path.is_dir() else path
  try:
    scores = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(scores.get("benchmarks"), dict):
      raise ValueError("it has no benchmarks")
    return scores
  except (OSError, ValueError, AttributeError, RecursionError) as error:
    raise ValueError(
      f"{path} is no score file ({_one_line(error)}); name the --workdir of "
      "toolrl-evaluate."
    ) from error


def _one_line(error: BaseException) -> str:
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  return " ".join(str(error).split()) or type(error).__name__
