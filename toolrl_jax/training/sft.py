"""Supervised fine-tuning: prompts with their targets to an update's batch.

A target is a group's only completion (S = 1), so that placement, updates,
checkpoints and metrics are those of `training.update` with the objective
"sft": the loss is the mean over target tokens, and no prompt token carries
any. The module does not know text.
"""

import numpy as np
from jaxtyping import Bool, Int

from toolrl_jax.types import UpdateBatch


def assemble(
  prompt_ids: Int[np.ndarray, "B P"],
  prompt_length: Int[np.ndarray, " B"],
  target_ids: Int[np.ndarray, "B T"],
  target_mask: Bool[np.ndarray, "B T"],
) -> UpdateBatch:
  """Builds the update's record from prompts and their assistant turns.

  Args:
    prompt_ids: Prompts, padded on the right.
    prompt_length: Real tokens of each, at least 1.
    target_ids: Assistant tokens with the stop token, padded on the right.
    target_mask: True on real target tokens; all False leaves a row out.

  Returns:
    The batch; each row with a target has weight 1, and what only the policy
    loss reads is 0.
  """
  zeros = np.zeros(
    (*target_ids.shape[:1], 1, *target_ids.shape[1:]), np.float32
  )
  return UpdateBatch(
    prompt_ids=prompt_ids,
    prompt_length=prompt_length,
    completion_ids=target_ids[:, None],
    completion_mask=target_mask[:, None],
    old_logprobs=zeros,
    rollout_logprobs=zeros,
    reference_logprobs=zeros,
    advantage=zeros[:, :, 0],
    weight=target_mask.any(axis=1)[:, None].astype(np.float32),
  )
