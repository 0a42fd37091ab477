"""Rewards of a step to the rollouts it updates on, with their advantages.

Joins the selection and advantage kernels over all groups of a step, in one
compiled function. It does not know texts, tokens or the loss.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from toolrl_jax import types
from toolrl_jax.kernels import advantage as advantage_kernel
from toolrl_jax.kernels import selection

Rule = Literal["max_variance", "random", "stratified"]
ZeroVariance = Literal["drop", "keep"]
Statistics = Literal["kept", "all"]
Std = Literal["population", "sample", "none"]


class GroupOptions(NamedTuple):
  """Static choices of selection and advantage.

  Attributes:
    keep: Rollouts kept a group (S); 0 keeps all.
    rule: How they are chosen.
    zero_variance: "drop" takes groups without contrast out of the divisor,
      "keep" counts them with advantage 0.
    statistics: Mean and std over the "kept" rollouts or over "all".
    std: "population", "sample" or "none".
    eps: Added to the std, in reward units.
  """

  keep: int = 0
  rule: Rule = "max_variance"
  zero_variance: ZeroVariance = "keep"
  statistics: Statistics = "kept"
  std: Std = "population"
  eps: float = 1e-6


class KeptGroups(NamedTuple):
  """The kept rollouts of every group.

  Attributes:
    indices: Positions in the group, ascending, int32 [B, S].
    advantage: Advantage of each, float32 [B, S].
    weight: Weight in the loss and its divisor, float32 [B, S]; 0 for masked
      groups, and for groups without contrast when they are dropped.
    is_zero_variance: Whether all G rewards are equal, bool [B].
  """

  indices: Int[Array | np.ndarray, "B S"]
  advantage: Float[Array | np.ndarray, "B S"]
  weight: Float[Array | np.ndarray, "B S"]
  is_zero_variance: Bool[Array | np.ndarray, " B"]


@functools.partial(jax.jit, static_argnames="options")
def keep_and_weigh(
  reward: Float[Array | np.ndarray, "B G"],
  success: Bool[Array | np.ndarray, "B G"],
  is_real: Bool[Array | np.ndarray, " B"],
  key: Key[Array, ""],
  *,
  options: GroupOptions,
) -> KeptGroups:
  """Chooses and weighs the rollouts of every group.

  Args:
    reward: Reward of each rollout, in reward units.
    success: Whether each rollout is right; the strata of "stratified".
    is_real: False for groups that only fill the batch.
    key: Random key of the step; ties and random choices derive from it.
    options: Static choices.

  Returns:
    The kept rollouts.
  """
  return jax.vmap(functools.partial(_group, options=options))(
    jnp.asarray(reward),
    jnp.asarray(success),
    jnp.asarray(is_real),
    jax.random.split(key, reward.shape[0]),
  )


def _group(
  reward: Float[Array, " G"],
  success: Bool[Array, " G"],
  is_real: Bool[Array, ""],
  key: Key[Array, ""],
  *,
  options: GroupOptions,
) -> KeptGroups:
  group_size = reward.shape[0]
  keep = options.keep or group_size
  weight = jnp.ones(keep)
  if keep == group_size:
    indices = jnp.arange(group_size, dtype=jnp.int32)
  elif options.rule == "max_variance":
    indices = selection.select_max_variance(reward, key, keep=keep)
  elif options.rule == "random":
    indices = selection.select_random(reward, key, keep=keep)
  else:
    indices, weight = selection.select_stratified(success, key, keep=keep)
  is_valid = jnp.ones(group_size, bool)
  kept: types.GroupAdvantage = advantage_kernel.group_advantage(
    reward,
    indices,
    is_valid,
    statistics=options.statistics,
    std=options.std,
    eps=options.eps,
  )
  whole = advantage_kernel.group_advantage(
    reward, indices, is_valid, statistics="all"
  )
  is_counted = is_real
  if options.zero_variance == "drop":
    is_counted &= ~kept.is_zero_variance
  return KeptGroups(
    indices, kept.advantage, weight * is_counted, whole.is_zero_variance
  )
