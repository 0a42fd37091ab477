"""Records of a step to the batch of an update, and its parts.

Groups are never split: mini-batches take whole groups. Also says which groups
of a batch have a gradient at all, and what the others leave in the divisor.
The module does not know devices.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from toolrl_jax.kernels import loss as loss_kernel
from toolrl_jax.training import groups
from toolrl_jax.training.step import UpdateOptions
from toolrl_jax.types import PromptBatch, Rollouts, UpdateBatch


def assemble(
  prompts: PromptBatch, rollouts: Rollouts, kept: groups.KeptGroups
) -> UpdateBatch:
  """Joins the kept rollouts of a step with their prompts and advantages.

  Args:
    prompts: Prompts of the step.
    rollouts: All completions of the step.
    kept: Which of them are trained on.

  Returns:
    The batch on the host; old and reference log-probabilities are 0 until
    `run_updates` fills them in.
  """
  rows = np.asarray(kept.indices)
  take = lambda x: np.take_along_axis(x, rows[..., None], axis=1)
  rollout_logprobs = take(rollouts.logprobs)
  return UpdateBatch(
    prompt_ids=prompts.prompt_ids,
    prompt_length=prompts.prompt_length,
    completion_ids=take(rollouts.completion_ids),
    completion_mask=take(rollouts.completion_mask),
    old_logprobs=np.zeros_like(rollout_logprobs),
    rollout_logprobs=rollout_logprobs,
    reference_logprobs=np.zeros_like(rollout_logprobs),
    advantage=np.asarray(kept.advantage),
    weight=np.asarray(kept.weight),
  )


def split_groups(
  batch: UpdateBatch, num_parts: int, key: Array
) -> list[UpdateBatch]:
  """Splits a batch into parts of whole groups.

  Args:
    batch: Groups to split.
    num_parts: Parts, at least 1 and at most the groups.
    key: A `jax.random.key` that orders the groups; one part keeps the order.

  Returns:
    The parts, of sizes that differ by at most one.

  Raises:
    ValueError: When there are fewer groups than parts.
  """
  if num_parts == 1:
    return [batch]
  num_groups = len(batch.prompt_length)
  if num_parts > num_groups:
    raise ValueError(
      f"minibatches must be at most the {num_groups} groups of a batch, got "
      f"{num_parts}; set config.loss.minibatches."
    )
  order = np.asarray(jax.random.permutation(key, num_groups))
  return [
    UpdateBatch(*(np.asarray(x)[rows] for x in batch))
    for rows in np.array_split(order, num_parts)
  ]


def has_gradient(batch: UpdateBatch, options: UpdateOptions) -> np.ndarray:
  """Says which groups change the parameters, bool [B].

  A group takes part when a rollout of weight has a token. Where the loss is
  the surrogate alone, a group whose advantages are all 0 takes part in the
  divisor only: its loss and gradient are exactly 0.
  """
  is_member = np.asarray(batch.completion_mask).any(axis=2) & (
    np.asarray(batch.weight) > 0
  )
  if options.skips_flat_groups:
    is_member &= np.asarray(batch.advantage) != 0
  return is_member.any(axis=1)


def divisor_of(
  batch: UpdateBatch, is_chosen: np.ndarray, options: UpdateOptions
) -> float:
  """Returns what the chosen groups, bool [B], add to the loss's divisor."""
  if not is_chosen.any():
    return 0.0
  weight = np.asarray(batch.weight) * is_chosen[:, None]
  is_sft = options.objective == "sft"
  aggregation = "token_mean" if is_sft else options.aggregation
  return float(
    _divisor(
      batch.completion_mask, weight, aggregation=aggregation,
      max_tokens=options.max_tokens,
    )
  )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("aggregation", "max_tokens"))
def _divisor(mask, weight, *, aggregation, max_tokens):
  return loss_kernel.aggregate(
    jnp.zeros(mask.shape), mask, weight, aggregation=aggregation,
    max_tokens=max_tokens,
  )[1]  # fmt: skip
