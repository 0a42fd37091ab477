"""Supervised fine-tuning: prompts with their targets to an update's batch.

A target is a group's only completion (S = 1), so that placement, updates,
checkpoints and metrics are those of `training.update` with the objective
"sft": the loss is the mean over target tokens, and no prompt token carries
any. The module does not know text.
"""

from collections.abc import Sequence

import numpy as np

from toolrl_jax.data import padding
from toolrl_jax.types import PromptBatch, UpdateBatch


def assemble(
  prompts: PromptBatch,
  target_ids: Sequence[Sequence[int]],
  *,
  buckets: Sequence[int],
) -> UpdateBatch:
  """Builds the update's record from prompts and their assistant turns.

  Args:
    prompts: Prompts of the step; more than targets where the batch is short.
    target_ids: Assistant tokens with the stop token, one list a real prompt.
    buckets: Bucket lengths of the targets, in tokens.

  Returns:
    The batch; each row with a target has weight 1, and what only the policy
    loss reads is 0.

  Raises:
    ValueError: When a target is longer than the last bucket.
  """
  num_groups = len(prompts.prompt_length)
  padded = padding.batch(target_ids, buckets=buckets, num_groups=num_groups)
  size = padded.prompt_ids.shape[1]
  is_token = np.arange(size) < padded.prompt_length[:, None]
  is_token &= padded.is_real[:, None]
  zeros = np.zeros((num_groups, 1, size), np.float32)
  return UpdateBatch(
    prompt_ids=prompts.prompt_ids,
    prompt_length=prompts.prompt_length,
    completion_ids=padded.prompt_ids[:, None],
    completion_mask=is_token[:, None],
    old_logprobs=zeros,
    rollout_logprobs=zeros,
    reference_logprobs=zeros,
    advantage=zeros[:, :, 0],
    weight=padded.is_real[:, None].astype(np.float32),
  )
