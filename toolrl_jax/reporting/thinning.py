"""Curves of any length to curves that a page can hold.

From the points of a long run to the means of equal stretches of steps. It does
not know what the numbers are.
"""

import numpy as np

from toolrl_jax.reporting import runs


def thin(curve: runs.Curve, *, most: int, of: str = "mean") -> runs.Curve:
  """Puts neighbouring points together.

  Args:
    curve: Points by rising step.
    most: Most points returned, at least 1.
    of: "mean" or "max" of the points put together.

  Returns:
    The curve itself where it is short enough. Else one point a stretch, at its
    last step, over its finite values; NaN where it has none.

  Raises:
    ValueError: If `most` is below 1.
  """
  if most < 1:
    raise ValueError(f"most must be at least 1, got {most}; leave it out.")
  if len(curve.steps) <= most:
    return curve
  ends = np.linspace(0, len(curve.steps), most + 1).astype(int)[1:]
  starts = np.concatenate([[0], ends[:-1]])
  is_finite = np.isfinite(curve.values)
  if of == "max":
    values = np.maximum.reduceat(
      np.where(is_finite, curve.values, -np.inf), starts
    )
    values = np.where(np.isfinite(values), values, np.nan)
  else:
    sums = np.add.reduceat(np.where(is_finite, curve.values, 0.0), starts)
    counts = np.add.reduceat(is_finite.astype(int), starts)
    values = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
  return runs.Curve(curve.steps[ends - 1], values)
