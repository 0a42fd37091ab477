"""How far scores move when only the way of asking changes.

From the verdicts of the cells of a grid (template x thinking x system, each
under the same seeds and items) to drifts against a baseline cell, and to the
gain of one checkpoint over another in every cell (arXiv:2606.00135, section 3).
Knows neither models nor files.

For a cell c, seeds s and items i with verdicts v in [0, 1]:

    x_i(c) = mean_s v_si(c)        score(c, s) = mean_i v_si(c)
    drift(c) = mean_i (x_i(c) - x_i(baseline))

Its interval is the 95 % percentile interval of a bootstrap over items, both
cells resampled together. Its seed noise is sigma * sqrt(2 / S), sigma^2 being
the variance of score(c, s) over the S seeds, the mean of both cells.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

AXES = ("template", "thinking", "system")
_NUM_RESAMPLES = 10_000
_BLOCK = 500
# A drift this many times the seed noise is no accident of the seeds.
_NOISE_FACTOR = 2.0


class Cell(NamedTuple):
  """One way of asking.

  Attributes:
    template: See `data/templates.py`.
    thinking: See `data/templates.py`.
    system: "default", "stronger" or a text file.
  """

  template: str
  thinking: str
  system: str

  @property
  def label(self) -> str:
    """The three switches, for tables."""
    return " / ".join(self)


class CellScores(NamedTuple):
  """What one checkpoint scored in one cell.

  Attributes:
    cell: The way of asking.
    protocol: Hash of the whole protocol.
    verdicts: Seed to item id to verdict in [0, 1].
  """

  cell: Cell
  protocol: str
  verdicts: Mapping[str, Mapping[str, float]]


class Drift(NamedTuple):
  """The difference of two sets of verdicts of the same items and seeds.

  Attributes:
    mean: Score of the changed cell, mean over seeds and items.
    std: Its sample standard deviation over seeds; 0 with one seed.
    difference: Its mean less that of the baseline.
    low: Lower end of the 95 % interval of the difference.
    high: Upper end.
    noise: Seed noise of the difference; None with one seed.
  """

  mean: float
  std: float
  difference: float
  low: float
  high: float
  noise: float | None

  @property
  def is_beyond_seeds(self) -> bool:
    """Whether seeds and items alike speak for a difference."""
    is_clear = self.low > 0 or self.high < 0
    return (
      is_clear
      and self.noise is not None
      and abs(self.difference) > _NOISE_FACTOR * self.noise
    )

  @property
  def noise_verdict(self) -> str:
    """Says how the difference stands to the noise of the seeds."""
    if self.noise is None:
      return "one seed cannot tell it from the noise of the seeds"
    verdict = "larger" if self.is_beyond_seeds else "not larger"
    return (
      f"{verdict} than the seed noise of {100 * self.noise:.1f} points allows"
    )


def grid(
  templates: Sequence[str], thinking: Sequence[str], systems: Sequence[str]
) -> list[Cell]:
  """Returns every combination; the first of each axis is the baseline."""
  return [
    Cell(template, thought, system)
    for template in templates
    for thought in thinking
    for system in systems
  ]


def drift(baseline: CellScores, changed: CellScores) -> Drift:
  """Compares two cells item by item.

  Args:
    baseline: What is compared with.
    changed: What is compared.

  Returns:
    The drift of `changed`.

  Raises:
    ValueError: Seeds or items differ.
  """
  return _drift(_array(baseline), _array(changed, like=baseline))


def gain(base: CellScores, trained: CellScores) -> Drift:
  """Compares two checkpoints in one cell.

  Args:
    base: The checkpoint that is compared with.
    trained: The checkpoint that is compared.

  Returns:
    The drift from `base` to `trained`.

  Raises:
    ValueError: The protocols, seeds or items differ.
  """
  if base.protocol != trained.protocol:
    raise ValueError(
      "two checkpoints can only be compared under one protocol, got "
      f"{base.protocol} and {trained.protocol} for {base.cell.label}; run both "
      "with the same configuration."
    )
  return drift(base, trained)


def _array(
  scores: CellScores, like: CellScores | None = None
) -> Float[np.ndarray, "S N"]:
  """Returns the verdicts as [seeds, items], in the order of `like`."""
  order = scores if like is None else like
  first = next(iter(order.verdicts.values()))
  try:
    array = np.array(
      [
        [scores.verdicts[seed][item] for item in first]
        for seed in order.verdicts
      ],
      np.float64,
    )
  except KeyError as error:
    raise ValueError(
      f"cells can only be compared on the same seeds and items; {error} is "
      f"missing in {scores.cell.label}."
    ) from error
  sizes = {len(verdicts) for verdicts in scores.verdicts.values()}
  if len(scores.verdicts) != len(array) or sizes != {array.shape[1]}:
    raise ValueError(
      "cells can only be compared on the same seeds and items; "
      f"{scores.cell.label} has more of them."
    )
  return array


def _drift(
  before: Float[np.ndarray, "S N"], after: Float[np.ndarray, "S N"]
) -> Drift:
  by_item = after.mean(axis=0) - before.mean(axis=0)
  low, high = _interval(by_item)
  num_seeds = len(after)
  noise = None
  std = 0.0
  if num_seeds > 1:
    variances = [x.mean(axis=1).var(ddof=1) for x in (before, after)]
    noise = float(np.sqrt(np.mean(variances) * 2 / num_seeds))
    std = float(np.sqrt(variances[1]))
  return Drift(
    float(after.mean()), std, float(by_item.mean()), low, high, noise
  )


def _interval(by_item: Float[np.ndarray, " N"]) -> tuple[float, float]:
  """Returns the bootstrap interval of a mean over items; the same each time."""
  generator = np.random.default_rng(0)
  count = len(by_item)
  means = np.concatenate(
    [
      by_item[generator.integers(0, count, (_BLOCK, count))].mean(axis=1)
      for _ in range(_NUM_RESAMPLES // _BLOCK)
    ]
  )
  low, high = np.percentile(means, [2.5, 97.5])
  return float(low), float(high)


def axis_cells(baseline: Cell, cells: Sequence[Cell], axis: str) -> list[Cell]:
  """Returns the cells that differ from the baseline in one axis only."""
  return [
    cell
    for cell in cells
    if cell != baseline
    and all(
      getattr(cell, other) == getattr(baseline, other)
      for other in AXES
      if other != axis
    )
  ]


def sentence(axis: str, drifts: Mapping[str, Drift]) -> str:
  """Says in one sentence whether an axis moves the score beyond seed noise.

  Args:
    axis: Name of the axis.
    drifts: Value of the axis to its drift against the baseline; not empty.

  Returns:
    The sentence.
  """
  value, largest = max(drifts.items(), key=lambda kv: abs(kv[1].difference))
  text = (
    f"The largest difference by {axis} is {100 * largest.difference:+.1f} "
    f"points ({value}; 95 % of the resampled items {100 * largest.low:+.1f} to "
    f"{100 * largest.high:+.1f})"
  )
  mark = ";" if largest.noise is None else ","
  return f"{text}{mark} {largest.noise_verdict}."
