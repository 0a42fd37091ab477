"""What in a run's files asks for a look.

From a run to sentences: what it said itself, and what its numbers show beside
that, which says what happened and not always why. It mends nothing.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from toolrl_jax.reporting import runs
from toolrl_jax.training import step_metrics

# Compilations up to this step count as warm-up: lengths that occur first.
WARM_UP_STEPS = 10
# Shares above which a look is worth while, in the mean of the last steps.
MAX_CUT_FRAC = 0.02
MAX_ZERO_VARIANCE_FRAC = 0.8
# Largest log-probability gap that rounding explains, in nats.
MAX_GAP_NATS = {"float32": 0.01, "bfloat16": 1.0}
# Fall of a held-out share that is more than a few rows.
_FALL = 0.02
# Steps named in one warning.
_MOST_NAMED = 6


class SeenWarning(NamedTuple):
  """Something that asks for a look.

  Attributes:
    is_grave: Whether the run cannot be trusted before it is looked at.
    text: One or two sentences, with the remedy.
  """

  is_grave: bool
  text: str


def seen(run: runs.Run) -> list[SeenWarning]:
  """Looks for all that is worth a warning.

  Args:
    run: A run of toolrl-train, or an evaluation, which has only damage.

  Returns:
    Warnings, grave ones first.
  """
  found = [SeenWarning(True, text) for text in run.damage]
  for check in _CHECKS:
    found += check(run)
  return sorted(found, key=lambda one: not one.is_grave)


def _said(run: runs.Run) -> Iterator[SeenWarning]:
  for text in run.said:
    yield SeenWarning(True, f"It said: {text}")


def _unfinished(run: runs.Run) -> Iterator[SeenWarning]:
  if run.curves and not run.summary:
    yield SeenWarning(
      False,
      f"There is no summary.json: after step {run.last_step} the run goes on "
      "still, was stopped, or ended with an error on its standard error. The "
      "same command goes on from its newest checkpoint.",
    )


def _no_step(run: runs.Run) -> Iterator[SeenWarning]:
  if not run.curves and not run.scores:
    yield SeenWarning(
      False,
      "No step has ended yet: metrics.jsonl has no line. A run first answers "
      "held-out rows, and what runs for the first time compiles.",
    )


def _not_finite(run: runs.Run) -> Iterator[SeenWarning]:
  for name, curve in run.curves.items():
    steps = curve.steps[np.isnan(curve.values)]
    if steps.size:
      yield SeenWarning(True, f"{name} is not a finite number {_at(steps)}.")
  flags = run.curve("update/is_finite")
  steps = flags.steps[flags.values == 0]
  if steps.size:
    yield SeenWarning(
      True,
      f"Loss or gradient was not finite {_at(steps)}, and the update was not "
      "applied; lower config.optimizer.learning_rate or use float32.",
    )


def _missing_steps(run: runs.Run) -> Iterator[SeenWarning]:
  steps = run.curve("step/secs").steps
  if not steps.size:
    return
  there = [0, *steps[steps > 0].tolist()]
  # A gap may be of any length: of its steps only those are made that are named.
  gaps = (range(a + 1, b) for a, b in itertools.pairwise(there))
  named = list(itertools.islice(itertools.chain(*gaps), _MOST_NAMED))
  if named:
    count = there[-1] - len(there) + 1
    yield SeenWarning(
      True, f"metrics.jsonl has no line {_at(np.array(named), count)}."
    )


def _resumed(run: runs.Run) -> Iterator[SeenWarning]:
  if run.num_starts > 1:
    yield SeenWarning(
      False,
      f"The run was started {run.num_starts} times (a TensorBoard file each). "
      "Metrics do not show where: a resumed run goes on bit for bit, except "
      "for seconds and compilations.",
    )


def _compiled(run: runs.Run) -> Iterator[SeenWarning]:
  curve = run.curve("step/compilations")
  is_late = (curve.steps > WARM_UP_STEPS) & (curve.values > 0)
  if is_late.any():
    yield SeenWarning(
      False,
      f"{curve.values[is_late].sum():.0f} programs were compiled after step "
      f"{WARM_UP_STEPS}, {_at(curve.steps[is_late])}: a length that occurred "
      "for the first time, or a resumed run. Fewer length buckets compile less "
      "(data.prompt_buckets, rollout.completion_buckets).",
    )


def _cut(run: runs.Run) -> Iterator[SeenWarning]:
  share = _late_mean(run, "rollout/cut_frac")
  if share > MAX_CUT_FRAC:
    limit = run.setting("rollout.max_completion_tokens", "unknown")
    yield SeenWarning(
      share > 0.2,
      f"{share:.1%} of the completions of the last steps were cut off at the "
      f"length limit ({limit} tokens) and score as broken; raise "
      "config.rollout.max_completion_tokens.",
    )


def _collapsed(run: runs.Run) -> Iterator[SeenWarning]:
  """Applies the limits that the run itself warned by."""
  limits = [
    run.setting(f"logging.{name}")
    for name in ("min_parse_frac", "min_tool_call_frac")
  ]
  names = ("parse_fail_frac", "tool_call_frac", "gold_call_frac")
  curves = [run.curve(f"rollout/{name}") for name in names]
  # A share; a damaged configuration may hold anything.
  if not all(type(one) in (int, float) and 0 <= one <= 1 for one in limits):
    return
  watch = step_metrics.CollapseWatch(
    min_parse_frac=limits[0], min_tool_call_frac=limits[1]
  )
  by_step = [dict(zip(c.steps.tolist(), c.values.tolist())) for c in curves]
  warned = [
    (step, lines)
    for step in by_step[0]
    if all(step in one for one in by_step)
    and (
      lines := watch.warnings(
        {f"rollout/{n}": one[step] for n, one in zip(names, by_step)}, step
      )
    )
  ]
  if warned:
    first = warned[0][1][0]
    yield SeenWarning(
      True, f"{first[:1].upper()}{first[1:]} ({len(warned)} such steps)."
    )


def _no_contrast(run: runs.Run) -> Iterator[SeenWarning]:
  share = _late_mean(run, "filter/zero_variance_frac")
  if share > MAX_ZERO_VARIANCE_FRAC:
    yield SeenWarning(
      False,
      f"{share:.0%} of the groups of the last steps have equal rewards and "
      "teach nothing; the prompts are too easy or too hard by now.",
    )


def _gap(run: runs.Run) -> Iterator[SeenWarning]:
  curve = run.curve("rollout/logprob_gap_max")
  dtype = run.setting("model.compute_dtype", "bfloat16")
  limit = MAX_GAP_NATS.get(str(dtype), max(MAX_GAP_NATS.values()))
  is_wide = curve.values > limit
  if is_wide.any():
    yield SeenWarning(
      True,
      f"Sampler and update differ by up to {np.nanmax(curve.values):.3g} nats "
      f"on a token {_at(curve.steps[is_wide])}; {dtype} explains {limit:g}. "
      "They may not run the same model.",
    )


def _fell(run: runs.Run) -> Iterator[SeenWarning]:
  labels = {
    "heldout/exact_greedy_frac": "Right held-out rows (greedy)",
    "heldout/refusal_greedy_frac": "Right refusals on held-out rows (greedy)",
  }
  for name, label in labels.items():
    values = run.curve(name).values
    values = values[np.isfinite(values)]
    if values.size > 1 and values[-1] < values[0] - _FALL:
      yield SeenWarning(
        False, f"{label} fell from {values[0]:.1%} to {values[-1]:.1%}."
      )


_CHECKS: tuple[Callable[[runs.Run], Iterator[SeenWarning]], ...] = (
  _said, _no_step, _not_finite, _missing_steps, _collapsed, _gap, _unfinished, _resumed,
  _compiled, _cut, _no_contrast, _fell,
)  # fmt: skip


def _late_mean(run: runs.Run, name: str) -> float:
  """Mean over the last tenth of the steps, at least five; 0 without any."""
  values = run.curve(name).values
  late = values[-max(len(values) // 10, 5) :]
  late = late[np.isfinite(late)]
  return float(late.mean()) if late.size else 0.0


def _at(steps: np.ndarray, count: int | None = None) -> str:
  """Says at which steps, the first few by number; `count` in all."""
  count = len(steps) if count is None else count
  named = ", ".join(str(step) for step in steps[:_MOST_NAMED].tolist())
  if count == 1:
    return f"at step {named}"
  more = count - min(len(steps), _MOST_NAMED)
  return f"at steps {named}" + (f" and {more} more" if more > 0 else "")
