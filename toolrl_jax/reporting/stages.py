"""Where the seconds of a run went: curves of seconds to shares of stages.

From `stage/secs` to seconds of each stage a step, and in all. It draws
nothing.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from toolrl_jax.reporting import runs

# In the order of the data path; "other" is what the step's own clock has beside
# them. Held-out rows and benchmarks run after that clock.
STAGES = (
  "rollout",
  "reward",
  "update",
  "sync",
  "other",
  "held-out",
  "benchmark",
)
_METRICS = {
  "rollout": "rollout/secs",
  "reward": "reward/secs",
  "update": "update/secs",
  "sync": "sync/secs",
  "held-out": "heldout/secs",
  "benchmark": "benchmark/secs",
}


class StageSecs(NamedTuple):
  """Seconds of the stages of a run.

  Attributes:
    steps: Steps, or the last ones of stretches of steps, int64 [N].
    secs: Stage to its seconds a step, float64 [N].
    totals: Stage to its seconds in the whole run, step 0 included.
  """

  steps: Int[np.ndarray, " N"]
  secs: dict[str, Float[np.ndarray, " N"]]
  totals: dict[str, float]


def measure(run: runs.Run, *, most: int = 120) -> StageSecs:
  """Adds the seconds of each stage up.

  Args:
    run: The run.
    most: Most stretches of steps, at least 1.

  Returns:
    Stages that took any time, in the order of STAGES.
  """
  whole = run.curve("step/secs")
  num_bins = min(most, len(whole.steps))
  ends = np.linspace(0, len(whole.steps), num_bins + 1).astype(int)[1:]
  last_steps = whole.steps[ends - 1]
  sizes = np.diff(ends, prepend=0)
  secs, totals = {}, {}
  for name, metric in _METRICS.items():
    curve = run.curve(metric)
    values = np.nan_to_num(curve.values)
    totals[name] = float(values.sum())
    secs[name] = _sums(last_steps, curve.steps, values) / np.maximum(sizes, 1)
  totals["other"] = float(np.nansum(whole.values)) - _clocked(totals)
  step_secs = _sums(last_steps, whole.steps, np.nan_to_num(whole.values))
  secs["other"] = step_secs / np.maximum(sizes, 1) - _clocked(secs)
  # Rounding, or a clock that was cut off, never shows as negative time.
  secs["other"] = np.maximum(secs["other"], 0.0)
  totals["other"] = max(totals["other"], 0.0)
  kept = [name for name in STAGES if totals[name] > 0]
  return StageSecs(
    last_steps,
    {name: secs[name] for name in kept},
    {name: totals[name] for name in kept},
  )


def _clocked(by_stage):
  """Adds up the stages that lie inside the step's own clock."""
  return sum(by_stage[name] for name in ("rollout", "reward", "update", "sync"))


def _sums(
  last_steps: Int[np.ndarray, " N"],
  steps: Int[np.ndarray, " M"],
  values: Float[np.ndarray, " M"],
) -> Float[np.ndarray, " N"]:
  """Adds values up by the stretch that their step falls into."""
  place = np.searchsorted(last_steps, steps)
  is_inside = (place < len(last_steps)) & (steps > 0)
  return np.bincount(
    place[is_inside], values[is_inside], minlength=len(last_steps)
  ).astype(float)
