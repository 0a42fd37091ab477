"""Prompts to padded batches of few lengths.

From token ids to `types.PromptBatch`: all prompts of a batch have the length
of one bucket. Knows nothing of text.
"""

from collections.abc import Sequence

import numpy as np

from toolrl_jax import types

_SMALLEST_BUCKET = 128


def default_buckets(max_prompt_tokens: int) -> tuple[int, ...]:
  """Gives the usual bucket lengths.

  Args:
    max_prompt_tokens: Longest prompt, at least 1.

  Returns:
    Powers of two from 128 below the longest prompt, then its own length.
  """
  buckets, length = [], _SMALLEST_BUCKET
  while length < max_prompt_tokens:
    buckets.append(length)
    length *= 2
  return (*buckets, max_prompt_tokens)


def bucket_for(length: int, buckets: Sequence[int]) -> int:
  """Gives the smallest bucket that holds a length.

  Args:
    length: Tokens.
    buckets: Bucket lengths in any order.

  Returns:
    The bucket length.

  Raises:
    ValueError: No bucket is long enough.
  """
  fitting = [bucket for bucket in buckets if bucket >= length]
  if not fitting:
    raise ValueError(
      f"a prompt must fit the longest bucket, {max(buckets, default=0)}, has"
      f" {length} tokens; add a bucket to config.data.prompt_buckets."
    )
  return min(fitting)


def batch(
  prompts: Sequence[Sequence[int]],
  *,
  buckets: Sequence[int],
  num_groups: int,
) -> types.PromptBatch:
  """Pads prompts on the right to one bucket and to a fixed number of groups.

  Args:
    prompts: Token ids of each prompt, none empty; at most `num_groups`.
    buckets: Bucket lengths; the smallest that holds all prompts is taken.
    num_groups: Groups of the batch (B); those without a prompt are masked:
      `is_real` False, one token 0.

  Returns:
    The batch.

  Raises:
    ValueError: There are too many prompts, an empty one, or a too long one.
  """
  if len(prompts) > num_groups or not all(len(ids) for ids in prompts):
    raise ValueError(
      f"a batch takes up to {num_groups} prompts of at least one token, got"
      f" {len(prompts)}; lower config.sampler.prompts_per_step or encode again."
    )
  longest = max((len(ids) for ids in prompts), default=1)
  num_tokens = bucket_for(longest, buckets)
  prompt_ids = np.zeros((num_groups, num_tokens), np.int32)
  prompt_length = np.ones(num_groups, np.int32)
  for row, ids in enumerate(prompts):
    prompt_ids[row, : len(ids)] = ids
    prompt_length[row] = len(ids)
  is_real = np.arange(num_groups) < len(prompts)
  return types.PromptBatch(prompt_ids, prompt_length, is_real)
