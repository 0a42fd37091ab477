"""Selection: which rollouts of a group are kept for the update.

From the rewards of one group [G] to the indices of the kept rollouts [S], in
ascending order. The caller vmaps over groups. It does not know what the
rollouts say, and it scales no advantage.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key


def select_max_variance(
  reward: Float[Array, " G"], key: Key[Array, ""], *, keep: int
) -> Int[Array, " S"]:
  """Keeps the rollouts whose rewards vary most.

      S* = argmax over S of Var({r_j : j in S}),  |S| = keep

  The best set is made of the i lowest and the keep - i highest rewards for
  some i, so all candidates are compared with one sort and prefix sums,
  O(G log G). See "Not All Rollouts are Useful" (arXiv:2504.13818, lemma 3.1)
  and arXiv:2606.00135.

  Ties are broken by chance, as any fixed rule (the shortest, the first) would
  bias the update: among equal rewards every rollout is kept equally often, and
  among sets of equal variance each split is.

  Args:
    reward: Reward of each rollout, in reward units; finite.
    key: Random key of the ties.
    keep: Rollouts kept, in [1, G].

  Returns:
    Indices of the kept rollouts, ascending, int32.

  Raises:
    ValueError: `keep` is outside [1, G].
  """
  _check_keep(keep, reward.shape[0], least=1)
  tie_key, split_key = jax.random.split(key)
  shuffled = jax.random.permutation(tie_key, reward.shape[0])
  order = shuffled[jnp.argsort(reward[shuffled], stable=True)]
  # Centred and scaled to [-1, 1]: the sums below would lose a spread that is
  # small beside the rewards themselves, and rewards 0/1 become exact integers.
  low, high = reward[order[0]], reward[order[-1]]
  half_range = (high - low) / 2
  centred = (reward[order] - low) - half_range
  scaled = centred / jnp.where(half_range > 0, half_range, 1.0)

  num_low = jnp.arange(keep + 1)
  sums = _sum_of_ends(scaled, num_low, keep)
  squares = _sum_of_ends(scaled**2, num_low, keep)
  spread = keep * squares - sums**2  # keep^2 times the variance
  is_best = spread >= spread.max() - 1e-6 * keep**2
  chance = jax.random.uniform(split_key, spread.shape)
  best = jnp.argmax(jnp.where(is_best, chance, -1.0))

  rank = jnp.arange(keep)
  offset = jnp.where(rank < best, 0, reward.shape[0] - keep)
  return jnp.sort(order[rank + offset]).astype(jnp.int32)


def select_random(
  reward: Float[Array, " G"], key: Key[Array, ""], *, keep: int
) -> Int[Array, " S"]:
  """Keeps rollouts by chance, every set of `keep` equally often.

  Args:
    reward: Reward of each rollout; only its length matters.
    key: Random key of the choice.
    keep: Rollouts kept, in [1, G].

  Returns:
    Indices of the kept rollouts, ascending, int32.

  Raises:
    ValueError: `keep` is outside [1, G].
  """
  _check_keep(keep, reward.shape[0], least=1)
  shuffled = jax.random.permutation(key, reward.shape[0])
  return jnp.sort(shuffled[:keep]).astype(jnp.int32)


def select_stratified(
  is_success: Bool[Array, " G"], key: Key[Array, ""], *, keep: int
) -> tuple[Int[Array, " S"], Float[Array, " S"]]:
  """Keeps rollouts of both outcomes and weights them back to the whole group.

      w_j = n+ / m+  for a success,   n- / m-  for a failure

  Of n+ successes and n- failures, m+ and m- are kept, drawn uniformly within
  their stratum: half of `keep` each (the odd one is a failure), filled from
  the other stratum where one is too small. A stratum that is not empty keeps
  at least one, so w_j is the inverse of the chance to be kept and

      E[ sum over kept of w_j A_j g_j ] = sum over all of A_j g_j

  for advantages A_j that do not depend on the choice (statistics over "all")
  and a divisor that counts w_j. The strata are the `success` of the reward;
  rewards inside a stratum may differ, the estimate stays unbiased.

  Args:
    is_success: Whether each rollout succeeded.
    key: Random key of the choice.
    keep: Rollouts kept, in [2, G].

  Returns:
    Indices of the kept rollouts, ascending, int32, and their weights, at least
    1, float32; the weights of a group sum to G.

  Raises:
    ValueError: `keep` is outside [2, G].
  """
  group_size = is_success.shape[0]
  _check_keep(keep, group_size, least=2)
  num_success = jnp.sum(is_success)
  num_failure = group_size - num_success
  keep_success = jnp.clip(keep // 2, keep - num_failure, num_success)
  keep_failure = keep - keep_success

  shuffled = jax.random.permutation(key, group_size)
  outcome = is_success[shuffled]
  rank = jnp.where(outcome, jnp.cumsum(outcome), jnp.cumsum(~outcome)) - 1
  is_kept = rank < jnp.where(outcome, keep_success, keep_failure)
  kept_first = jnp.argsort(~is_kept, stable=True)
  indices = jnp.sort(shuffled[kept_first[:keep]]).astype(jnp.int32)
  weight = jnp.where(
    is_success[indices],
    num_success / jnp.maximum(keep_success, 1),
    num_failure / jnp.maximum(keep_failure, 1),
  )
  return indices, weight.astype(jnp.float32)


def _sum_of_ends(
  values: Float[Array, " G"], num_low: Int[Array, " N"], keep: int
) -> Float[Array, " N"]:
  """Sums the `num_low` first and the `keep - num_low` last values."""
  prefix = jnp.concatenate([jnp.zeros(1, values.dtype), jnp.cumsum(values)])
  high_start = values.shape[0] - keep + num_low
  return prefix[num_low] + prefix[-1] - prefix[high_start]


def _check_keep(keep: int, group_size: int, *, least: int) -> None:
  """Raises ValueError unless least <= keep <= group_size."""
  if not least <= keep <= group_size:
    raise ValueError(
      f"keep must be in [{least}, {group_size}] for groups of {group_size} "
      f"rollouts, got {keep}; set config.selection.keep."
    )
