"""Records of a step to the batch of an update, and its parts.

Groups are never split: mini-batches and devices take whole groups, and what
does not divide is filled up with groups of weight 0. The module does not know
the loss or devices.
"""

import jax
import numpy as np
from jaxtyping import Array

from toolrl_jax.training import groups
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


def fill_up(batch: UpdateBatch, multiple: int) -> UpdateBatch:
  """Appends groups of weight 0 until the batch divides by `multiple`."""
  num_missing = -len(batch.prompt_length) % multiple
  if not num_missing:
    return batch

  def pad(x):
    return np.pad(x, [(0, num_missing)] + [(0, 0)] * (np.ndim(x) - 1))

  padded = UpdateBatch(*(pad(x) for x in batch))
  # A prompt has at least one token, also where nobody reads it.
  return padded._replace(prompt_length=np.maximum(padded.prompt_length, 1))


def split_groups(
  batch: UpdateBatch, num_parts: int, key: Array
) -> list[UpdateBatch]:
  """Splits a batch into parts of whole groups, all of one shape.

  Args:
    batch: Groups to split.
    num_parts: Parts, at least 1 and at most the groups.
    key: A `jax.random.key` that orders the groups; one part keeps the order.

  Returns:
    The parts; short ones are filled up with groups of weight 0.

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
  size = -(-num_groups // num_parts)
  return [
    fill_up(UpdateBatch(*(np.asarray(x)[rows] for x in batch)), size)
    for rows in np.array_split(order, num_parts)
  ]


def count_tokens(batch: UpdateBatch, layout: str) -> int:
  """Counts the real tokens that one pass over a batch computes.

  Groups without a completion token only fill the batch and do not count.
  """
  mask = np.asarray(batch.completion_mask)
  is_real = mask.any(axis=(1, 2))
  copies = mask.shape[1] if layout == "repeated" else 1
  prompts = copies * np.asarray(batch.prompt_length)[is_real].sum()
  return int(prompts + mask.sum())
