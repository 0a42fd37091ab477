"""A run's folder to records: configuration, curves, samples, scores.

Reads what toolrl-train and toolrl-evaluate leave. A file that is missing or
damaged gives less and a line that says so; only a folder without any of the
files is refused. Text of the model is kept as it is: whoever shows it escapes
it. It does not judge a run and draws nothing.
"""

import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

_FILES = ("config.json", "metrics.jsonl", "samples.jsonl", "scores.json")
# Steps are counted, never this many; it also keeps them exact as float64.
_MAX_STEP = 2**53
# Characters of what a run said that are shown.
_MAX_SAID = 1_000


class Curve(NamedTuple):
  """One metric over the steps that have it.

  Attributes:
    steps: Rising steps, int64 [N].
    values: Its values, float64 [N]; NaN where the run wrote null, which is
      what it writes for a number that is not finite.
  """

  steps: Int[np.ndarray, " N"]
  values: Float[np.ndarray, " N"]


class Sample(NamedTuple):
  """One rollout of samples.jsonl.

  Attributes:
    step: Step it was sampled in.
    id: Row that it answers.
    rollout: Its place in the group, from 0.
    completion: What the model wrote.
    gold: What is right, as text.
    finish: "stop" or "length".
    is_kept: Whether the update used it.
    total: Reward, in reward units; NaN where the line has no number.
    format: Format part of the reward.
    correctness: Correctness part of the reward.
    length: Length part of the reward.
    success: Whether it is right.
  """

  step: int
  id: str
  rollout: int
  completion: str
  gold: str
  finish: str
  is_kept: bool
  total: float
  format: float
  correctness: float
  length: float
  success: bool


class Run(NamedTuple):
  """What a folder holds of a run.

  Attributes:
    name: Short name of the folder; unlike those of other runs after
      `read_all`.
    folder: The folder.
    config: config.json, sections as nested mappings; empty when missing.
    curves: Metric name to its curve, in the order the run wrote them.
    samples: Rollouts by rising step.
    summary: summary.json, which a run writes at its end; empty when missing.
    scores: scores.json of toolrl-evaluate; empty when missing.
    made_with: run.json: recipe, rows, devices, versions; empty when missing,
      as in folders of an older version.
    num_starts: Times the run was started, by its TensorBoard files; 0 where
      it wrote none.
    said: Warnings of the run and what ended it, as it said them.
    damage: What could not be read, a sentence each.
  """

  name: str
  folder: pathlib.Path
  config: Mapping[str, Any]
  curves: Mapping[str, Curve]
  samples: tuple[Sample, ...]
  summary: Mapping[str, Any]
  scores: Mapping[str, Any]
  made_with: Mapping[str, Any]
  num_starts: int
  said: tuple[str, ...]
  damage: tuple[str, ...]

  def curve(self, name: str) -> Curve:
    """Returns a metric's curve, an empty one where the run has none."""
    empty = Curve(np.zeros(0, np.int64), np.zeros(0))
    return self.curves.get(name, empty)

  def setting(self, name: str, default: Any = None) -> Any:
    """Returns a field of the configuration, "section.field" by name."""
    value: Any = self.config
    for part in name.split("."):
      if not isinstance(value, Mapping) or part not in value:
        return default
      value = value[part]
    return value

  @property
  def last_step(self) -> int:
    """Newest step with a metric, 0 where there is none."""
    return max(
      (int(curve.steps[-1]) for curve in self.curves.values()), default=0
    )


def read(workdir: str | pathlib.Path) -> Run:
  """Reads the folder of a run.

  Args:
    workdir: `--workdir` of toolrl-train, of toolrl-evaluate, or a copy.

  Returns:
    What it holds.

  Raises:
    ValueError: There is no such folder, or nothing of a run in it.
  """
  folder = pathlib.Path(workdir).expanduser().absolute()
  if not folder.is_dir():
    raise ValueError(
      f"WORKDIR must be the folder of a run, there is no folder {workdir}; "
      "name the --workdir of toolrl-train or toolrl-evaluate."
    )
  if not any((folder / name).is_file() for name in _FILES):
    raise ValueError(
      f"WORKDIR must hold the files of a run, {workdir} has none of "
      f"{', '.join(_FILES)}; name the --workdir of toolrl-train or "
      "toolrl-evaluate."
    )
  damage: list[str] = []
  has = {name for name in _FILES if (folder / name).is_file()}
  if "config.json" not in has and "scores.json" not in has:
    damage.append("config.json is missing.")
  # Samples are written with a step; before the first there is neither.
  if "metrics.jsonl" not in has and "samples.jsonl" in has:
    damage.append("metrics.jsonl is missing.")
  return Run(
    name=folder.name or str(folder),
    folder=folder,
    config=_read_object(folder / "config.json", damage),
    curves=_read_curves(folder / "metrics.jsonl", damage),
    samples=_read_samples(folder / "samples.jsonl", damage),
    summary=_read_object(folder / "summary.json", damage),
    scores=_read_object(folder / "scores.json", damage),
    made_with=_read_object(folder / "run.json", damage),
    num_starts=sum(1 for _ in folder.glob("tensorboard/events.out.tfevents.*")),
    said=_read_said(folder / "warnings.jsonl", damage),
    damage=tuple(damage),
  )


def read_all(workdirs: Sequence[str | pathlib.Path]) -> list[Run]:
  """Reads several folders and names each so that the names differ.

  Args:
    workdirs: Folders of runs, at least one.

  Returns:
    The runs, in that order.

  Raises:
    ValueError: One is no run, or is given twice.
  """
  found = [read(workdir) for workdir in workdirs]
  paths = [run.folder.resolve() for run in found]
  for i, path in enumerate(paths):
    if path in paths[:i]:
      raise ValueError(
        f"each WORKDIR must be another folder, {workdirs[i]} was given twice; "
        "leave one out."
      )
  # As many last parts of each path as tell them apart.
  for depth in range(1, max(len(path.parts) for path in paths) + 1):
    names = ["/".join(path.parts[-depth:]) for path in paths]
    if len(set(names)) == len(names):
      break
  return [run._replace(name=name) for run, name in zip(found, names)]


# ----- one JSON object a file -----


def _read_object(path: pathlib.Path, damage: list[str]) -> dict[str, Any]:
  """Reads a JSON object; what is no such object is booked as damage."""
  if not path.is_file():
    return {}
  try:
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
      raise ValueError("it is no JSON object")
  except (OSError, ValueError, RecursionError) as error:
    damage.append(f"{path.name} cannot be read: {_reason(error)}.")
    return {}
  return value


def _reason(error: BaseException) -> str:
  return " ".join(str(error).split())[:200] or type(error).__name__


# ----- one JSON object a line -----


def _read_said(path: pathlib.Path, damage: list[str]) -> tuple[str, ...]:
  """Reads what a run said; each text once, with how often it came."""
  counts: dict[str, int] = {}
  for one in _read_objects(path, damage):
    text = _text(one.get("text"))[:_MAX_SAID]
    counts[text] = counts.get(text, 0) + 1
  counts.pop("", None)
  return tuple(
    text if count == 1 else f"{text} ({count} times)"
    for text, count in counts.items()
  )


def _read_lines(
  path: pathlib.Path, damage: list[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields step and object of every whole line, one line in memory."""
  for one in _read_objects(path, damage, has_step=True):
    yield one["step"], one


def _read_objects(
  path: pathlib.Path, damage: list[str], *, has_step: bool = False
) -> Iterator[dict[str, Any]]:
  """Yields the object of every whole line, with a step if it needs one."""
  if not path.is_file():
    return
  num_bad, first_bad = 0, 0
  try:
    with path.open("rb") as file:
      for number, line in enumerate(file, start=1):
        one = _parsed(line, has_step)
        if one is not None:
          yield one
        elif not line.endswith(b"\n"):
          damage.append(
            f"{path.name} ends inside line {number}, as a run that was killed "
            "while it wrote leaves it; that line is left out."
          )
        elif line.strip():
          num_bad, first_bad = num_bad + 1, first_bad or number
  except OSError as error:
    damage.append(f"{path.name} cannot be read: {_reason(error)}.")
  if num_bad:
    damage.append(
      f"{path.name} has damaged lines, {num_bad} in all, the first is line "
      f"{first_bad}; they are left out."
    )


def _parsed(line: bytes, has_step: bool) -> dict[str, Any] | None:
  """Returns the object of a line, None where it is no such object."""
  try:
    one = json.loads(line)
  except (ValueError, RecursionError):
    return None
  if not isinstance(one, dict):
    return None
  step = one.get("step")
  if has_step and not (type(step) is int and 0 <= step < _MAX_STEP):
    return None
  return one


def _read_curves(path: pathlib.Path, damage: list[str]) -> dict[str, Curve]:
  """Reads metrics.jsonl; a step that stands twice counts as it stood last."""
  points: dict[str, dict[int, float]] = {}
  num_lines, seen = 0, set()
  for step, row in _read_lines(path, damage):
    num_lines += 1
    seen.add(step)
    for name, value in row.items():
      if type(value) is float and math.isfinite(value):
        points.setdefault(name, {})[step] = value
      elif name != "step" and (value is None or isinstance(value, int | float)):
        points.setdefault(name, {})[step] = _number(value)
  if num_lines > len(seen):
    damage.append(
      f"{path.name} has {num_lines} lines for {len(seen)} steps; of a step that "
      "stands twice the last line counts."
    )
  return {name: _curve(by_step) for name, by_step in points.items()}


def _curve(by_step: Mapping[int, float]) -> Curve:
  steps = sorted(by_step)
  return Curve(
    np.array(steps, np.int64), np.array([by_step[step] for step in steps])
  )


def _number(value: Any) -> float:
  """Returns a finite number as float, anything else as NaN."""
  if not isinstance(value, int | float):
    return math.nan
  try:
    number = float(value)
  except OverflowError:
    return math.nan
  return number if math.isfinite(number) else math.nan


def _read_samples(path: pathlib.Path, damage: list[str]) -> tuple[Sample, ...]:
  """Reads samples.jsonl; fields of another type count as absent."""
  samples = []
  num_bad = 0
  for step, row in _read_lines(path, damage):
    if not isinstance(row.get("completion"), str):
      num_bad += 1
      continue
    samples.append(_sample(step, row))
  if num_bad:
    damage.append(f"{path.name} has {num_bad} lines without a completion.")
  return tuple(sorted(samples, key=lambda sample: sample.step))


def _sample(step: int, row: Mapping[str, Any]) -> Sample:
  rollout = row.get("rollout")
  return Sample(
    step=step,
    id=_text(row.get("id")),
    rollout=rollout if type(rollout) is int else 0,
    completion=row["completion"],
    gold=_text(row.get("gold")),
    finish=_text(row.get("finish")),
    is_kept=row.get("is_kept") is True,
    total=_number(row.get("total")),
    format=_number(row.get("format")),
    correctness=_number(row.get("correctness")),
    length=_number(row.get("length")),
    success=row.get("success") is True,
  )


def _text(value: Any) -> str:
  return value if isinstance(value, str) else ""
