"""What a run writes about itself: metrics, samples, progress.

From `stage/name` numbers to metrics.jsonl, TensorBoard and a line of
progress, and from rollouts to samples.jsonl. Every name is declared once in
METRICS. The module does not know how a number came about.
"""

import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

import jax
import numpy as np
import tensorboardX
import tqdm
from absl import logging

# Fires once for every program handed to the compiler, cached on disk or not.
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
# Seconds, rates and compile counts may differ between two runs of one seed.
MACHINE_DEPENDENT = ("secs", "tokens_per_sec", "step/compilations")


class Metric(NamedTuple):
  """What a metric means.

  Attributes:
    unit: Unit of the number; "1" is a share or another pure number.
    meaning: One phrase.
  """

  unit: str
  meaning: str


# What follows is the benchmark's name and its own name of the metric.
BENCHMARK_STAGE = "benchmark/"

METRICS: dict[str, Metric] = {
  "reward/total": Metric("reward", "mean reward of the step's rollouts"),
  "reward/total_std": Metric("reward", "standard deviation of the rewards"),
  "reward/format": Metric("reward", "mean of the format part"),
  "reward/correctness": Metric("reward", "mean of the correctness part"),
  "reward/length": Metric("reward", "mean of the length part"),
  "reward/success_frac": Metric("1", "rollouts that are right"),
  "reward/secs": Metric("s", "parsing, scoring, selection and advantage"),
  "reward/cpu_secs": Metric("s", "the same, in processor seconds"),
  "filter/skipped_prompts": Metric("prompts", "left out by the streak filter"),
  "filter/zero_variance_frac": Metric("1", "groups with equal rewards"),
  "filter/all_right_frac": Metric("1", "groups with every rollout right"),
  "filter/all_wrong_frac": Metric("1", "groups with no rollout right"),
  "filter/stay_1_frac": Metric("1", "solved again after one solved visit"),
  "filter/stay_2_frac": Metric("1", "solved again after two solved visits"),
  "sampler/epoch": Metric("epochs", "passes over the rows begun before"),
  "rollout/secs": Metric("s", "prefill and decode"),
  "rollout/cpu_secs": Metric("s", "the same, in processor seconds"),
  "rollout/tokens": Metric("tokens", "generated in the step"),
  "rollout/tokens_per_sec": Metric("tokens/s", "generated a second"),
  "rollout/length_tokens": Metric("tokens", "mean completion"),
  "rollout/prompt_tokens": Metric("tokens", "mean prompt"),
  "rollout/prefills": Metric("prompts", "prompts computed by the engine"),
  "rollout/cut_frac": Metric("1", "completions that met the length limit"),
  "rollout/parse_fail_frac": Metric("1", "completions that do not parse"),
  "rollout/tool_call_frac": Metric("1", "completions with a call"),
  "rollout/gold_call_frac": Metric("1", "prompts whose gold has a call"),
  "rollout/logprob_gap_max": Metric("nats", "largest gap, update to sampler"),
  "rollout/logprob_gap_mean": Metric("nats", "mean gap, update to sampler"),
  "update/secs": Metric("s", "forward, backward, optimizer"),
  "update/cpu_secs": Metric("s", "the same, in processor seconds"),
  "update/tokens": Metric(
    "tokens", "real tokens computed, of groups with contrast"
  ),
  "update/padding_frac": Metric("1", "of the computed tokens"),
  "update/loss_tokens": Metric("tokens", "completion tokens with a loss"),
  "update/loss": Metric("loss", "mean over the step's updates"),
  "update/grad_norm": Metric("norm", "global gradient norm before clipping"),
  "update/is_finite": Metric("1", "1 when loss and gradient were finite"),
  "update/clip_frac": Metric("1", "tokens where the clip holds"),
  "update/kl_nats": Metric("nats", "KL of the old policy to the policy"),
  "update/reference_kl_nats": Metric("nats", "KL to the reference, k3"),
  "update/entropy_nats": Metric("nats", "mean entropy of a token"),
  "update/ratio_mean": Metric("1", "mean importance ratio"),
  "update/importance_mean": Metric("1", "mean rollout/trainer weight"),
  "sync/secs": Metric("s", "handing the new policy to the engine"),
  "sync/cpu_secs": Metric("s", "the same, in processor seconds"),
  "heldout/secs": Metric("s", "answering the held-out rows"),
  "step/secs": Metric("s", "the whole step"),
  "step/cpu_secs": Metric("s", "the same, in processor seconds"),
  "step/compilations": Metric("programs", "compiled during the step"),
  "heldout/exact_sampled_frac": Metric("1", "rows answered right, sampled"),
  "heldout/format_frac": Metric("1", "rows with the right format, sampled"),
  "heldout/call_exact_frac": Metric("1", "gold calls answered right, sampled"),
  "heldout/refusal_frac": Metric("1", "gold without call right, sampled"),
  "heldout/reward": Metric("reward", "mean reward of the sampled answers"),
  "heldout/exact_greedy_frac": Metric("1", "rows answered right, greedy"),
  "heldout/format_greedy_frac": Metric("1", "rows with the right format"),
  "heldout/call_exact_greedy_frac": Metric("1", "gold calls answered right"),
  "heldout/refusal_greedy_frac": Metric("1", "gold without call right"),
  "heldout/reward_greedy": Metric("reward", "mean reward, greedy"),
}


def check_names(names: Sequence[str]) -> None:
  """Checks that every metric is declared.

  Args:
    names: Names as `stage/name`.

  Raises:
    ValueError: When one is not in METRICS.
  """
  unknown = sorted(
    name
    for name in set(names) - METRICS.keys()
    # The metrics of a benchmark are the benchmark's own.
    if not name.startswith(BENCHMARK_STAGE)
  )
  if unknown:
    raise ValueError(
      f"a metric must be declared in training.metrics.METRICS, got "
      f"{', '.join(unknown)}; add it with its unit and meaning."
    )


class CompilationCounter:
  """Counts the programs that JAX compiles while it is open."""

  def __init__(self):
    self._count = 0
    jax.monitoring.register_event_duration_secs_listener(self._listen)

  def _listen(self, event: str, duration_secs: float, **kwargs: Any) -> None:
    del duration_secs, kwargs
    self._count += event == _COMPILE_EVENT

  def take(self) -> int:
    """Returns the count since the last call and starts again at 0."""
    count, self._count = self._count, 0
    return count

  def close(self) -> None:
    """Stops counting."""
    jax.monitoring.unregister_event_duration_listener(self._listen)


class MetricWriter:
  """Writes metrics.jsonl, samples.jsonl, TensorBoard and progress.

  A file holds one JSON object a line with its `step`, and every line is on
  the operating system's side before `write` returns. Also a context manager.
  """

  def __init__(
    self, workdir: pathlib.Path, *, total_steps: int, tensorboard: bool = True
  ):
    """Opens the files of a run; call `truncate_to` before the first write.

    Args:
      workdir: Folder of the run.
      total_steps: Steps of the whole run, for the time that remains.
      tensorboard: Whether events are written, under `workdir/tensorboard`.
    """
    self._workdir = pathlib.Path(workdir)
    self._workdir.mkdir(parents=True, exist_ok=True)
    self._total_steps = total_steps
    self._has_tensorboard = tensorboard
    self._events: tensorboardX.SummaryWriter | None = None
    self._progress = Progress(total_steps)

  def truncate_to(self, step: int) -> None:
    """Cuts the files back to what a run at `step` had written.

    Lines of later steps and a torn last line go; events of later steps are
    purged. -1 starts over.

    Args:
      step: Step of the checkpoint the run goes on from.
    """
    for name in ("metrics.jsonl", "samples.jsonl"):
      _cut_lines(self._workdir / name, step)
    if self._has_tensorboard:
      if self._events is not None:
        self._events.close()
      self._events = tensorboardX.SummaryWriter(
        str(self._workdir / "tensorboard"), purge_step=step + 1
      )
    self._progress.start(max(step, 0))

  def write(
    self, step: int, metrics: Mapping[str, float | int | np.generic]
  ) -> None:
    """Writes one step's metrics.

    Args:
      step: The step, rising from call to call; 0 is before the first.
      metrics: Numbers by declared name.

    Raises:
      ValueError: When a name is not declared.
    """
    check_names(list(metrics))
    numbers = {name: _number(value) for name, value in metrics.items()}
    # JSON has no NaN and no infinity.
    line = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
    _append(self._workdir / "metrics.jsonl", [{"step": step} | line])
    if self._events is not None:
      for name, value in numbers.items():
        self._events.add_scalar(name, value, step)
      self._events.flush()
    self._progress.show(step, numbers)

  def write_samples(
    self, step: int, samples: Sequence[Mapping[str, Any]]
  ) -> None:
    """Writes rollouts of one step, one line each.

    Args:
      step: The step they were sampled in.
      samples: JSON objects: texts, gold, parts of the reward.
    """
    lines = [{"step": step} | dict(sample) for sample in samples]
    _append(self._workdir / "samples.jsonl", lines)

  def close(self) -> None:
    """Closes events and the progress bar."""
    if self._events is not None:
      self._events.close()
      self._events = None
    self._progress.close()

  def __enter__(self) -> "MetricWriter":
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()


# Shown beside the bar, where present.
_SHOWN = {
  "reward/total": "reward",
  "reward/success_frac": "right",
  "update/loss": "loss",
  "heldout/exact_sampled_frac": "held-out exact, sampled",
  "heldout/exact_greedy_frac": "greedy",
}


class Progress:
  """A bar on a terminal, plain lines elsewhere, both with the time left."""

  def __init__(self, total_steps: int):
    self._total = total_steps
    self._bar: tqdm.tqdm | None = None
    self._first = 0
    self._since = time.monotonic()

  def start(self, step: int) -> None:
    """Begins to measure at `step`."""
    self.close()
    self._first, self._since = step, time.monotonic()
    if _has_width(sys.stderr):
      self._bar = tqdm.tqdm(total=self._total, initial=step, unit="step")

  def show(self, step: int, metrics: Mapping[str, float | int]) -> None:
    """Shows a step that has ended."""
    shown = {
      label: f"{metrics[name]:.3g}"
      for name, label in _SHOWN.items()
      if name in metrics
    }
    if self._bar is not None:
      self._bar.set_postfix(shown, refresh=False)
      self._bar.update(step - self._bar.n)
      return
    numbers = " ".join(f"{label} {value}" for label, value in shown.items())
    logging.info(
      "step %d/%d  %s  left %s", step, self._total, numbers, self._left(step)
    )

  def _left(self, step: int) -> str:
    """Returns the time left as h:mm:ss, "?" before the second step."""
    if step == self._first + 1:
      # The first one compiles and says nothing of the others.
      self._since = time.monotonic()
    done = step - self._first - 1
    if done < 1:
      return "?"
    secs = (time.monotonic() - self._since) / done * (self._total - step)
    return tqdm.tqdm.format_interval(max(secs, 0.0))

  def close(self) -> None:
    """Ends the bar."""
    if self._bar is not None:
      self._bar.close()
      self._bar = None


def _has_width(stream: TextIO) -> bool:
  """Whether a stream is a terminal that says how wide it is."""
  try:
    return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0
  except (OSError, ValueError):
    return False


def _number(value: Any) -> float | int:
  """Returns a plain number; flags become 0 and 1."""
  value = np.asarray(value).item()
  return int(value) if isinstance(value, bool) else value


def _append(path: pathlib.Path, lines: Sequence[Mapping[str, Any]]) -> None:
  """Appends JSON lines in one write."""
  text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
  # A lone surrogate becomes its JSON escape instead of an error.
  with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
    file.write(text)


def _cut_lines(path: pathlib.Path, step: int) -> None:
  """Keeps the whole lines of steps up to `step`."""
  if not path.exists():
    return
  kept = []
  for line in path.read_bytes().splitlines(keepends=True):
    if not line.endswith(b"\n"):
      break
    try:
      is_kept = json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError):
      logging.warning("%s: left out a line that is damaged", path)
      continue
    if is_kept:
      kept.append(line)
  # Replaced in one go: a kill in between leaves one of the two versions.
  partial = path.with_suffix(".partial")
  partial.write_bytes(b"".join(kept))
  os.replace(partial, path)
