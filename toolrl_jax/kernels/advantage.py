"""Advantage: rewards of one group to advantages of its kept rollouts.

From rewards [G] and the kept indices [S] to advantages [S]. The caller vmaps
over groups. It does not know how the rollouts were kept or what is done with
groups that carry no signal.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from toolrl_jax import types

# Rewards this close, relative to the largest, are one value with rounding.
_EQUAL_REWARDS = 4 * float(jnp.finfo(jnp.float32).eps)


def group_advantage(
  reward: Float[Array, " G"],
  indices: Int[Array, " S"],
  is_valid: Bool[Array, " G"],
  *,
  statistics: str = "kept",
  std: str = "population",
  eps: float = 1e-6,
) -> types.GroupAdvantage:
  """Centres and scales rewards inside one prompt's group.

      A_i = (r_i - mean(r)) / (std(r) + eps)

  See "DeepSeekMath" (arXiv:2402.03300, section 4.1.2). Where the rewards are
  equal up to rounding, A_i is exactly 0: dividing rounding errors by a tiny
  std would turn them into a signal.

  Args:
    reward: Reward of each rollout, in reward units.
    indices: Kept rollouts, each in [0, G).
    is_valid: False for rollouts to ignore: they enter no statistic and get
      advantage 0.
    statistics: Whether mean and std are over the "kept" rollouts or over
      "all". Over "all", the kept advantages need not sum to 0.
    std: "population" (divisor n), "sample" (n - 1), or "none" (only centred).
    eps: Added to the standard deviation, in reward units.

  Returns:
    Advantages of the kept rollouts, and whether the rewards behind the
    statistics are all equal (also when fewer than two are valid).

  Raises:
    ValueError: `statistics` or `std` has no such value.
  """
  if statistics not in ("kept", "all"):
    raise ValueError(
      f"statistics must be 'kept' or 'all', got {statistics!r}; set "
      "config.advantage.statistics."
    )
  if std not in ("population", "sample", "none"):
    raise ValueError(
      f"std must be 'population', 'sample' or 'none', got {std!r}; set "
      "config.advantage.std."
    )
  reward = reward.astype(jnp.float32)
  kept, is_kept_valid = reward[indices], is_valid[indices]
  is_over_kept = statistics == "kept"
  sample = kept if is_over_kept else reward
  mask = is_kept_valid if is_over_kept else is_valid
  count = jnp.sum(mask)

  low = jnp.min(sample, where=mask, initial=jnp.inf)
  high = jnp.max(sample, where=mask, initial=-jnp.inf)
  largest = jnp.maximum(jnp.abs(low), jnp.abs(high))
  is_equal = (count < 2) | (high - low <= _EQUAL_REWARDS * largest)

  # Measured from the lowest reward, so that a large common part cannot
  # swallow a small spread.
  origin = jnp.where(count > 0, low, 0.0)
  deviation = jnp.where(mask, sample - origin, 0.0)
  mean = jnp.sum(deviation) / jnp.maximum(count, 1)
  centred = kept - origin - mean
  if std != "none":
    squares = jnp.sum(jnp.where(mask, (deviation - mean) ** 2, 0.0))
    divisor = count - 1 if std == "sample" else count
    centred /= jnp.sqrt(squares / jnp.maximum(divisor, 1)) + eps
  advantage = jnp.where(is_kept_valid & ~is_equal, centred, 0.0)
  return types.GroupAdvantage(advantage, is_equal)
