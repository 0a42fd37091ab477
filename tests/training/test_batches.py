import jax
import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.training import batches, groups


def test_assemble_takes_the_kept_rollouts():
  prompts = types.PromptBatch(
    np.array([[5, 6, 0]], np.int32), np.array([2], np.int32), np.array([True])
  )
  ids = np.array([[[1, 2], [3, 0], [4, 5]]], np.int32)
  logprobs = -ids.astype(np.float32)
  rollouts = types.Rollouts(
    ids, ids > 0, logprobs, logprobs, np.zeros((1, 3), np.int32)
  )
  kept = groups.KeptGroups(
    indices=np.array([[0, 2]], np.int32),
    advantage=np.array([[1.0, -1.0]], np.float32),
    weight=np.array([[1.0, 2.0]], np.float32),
    is_zero_variance=np.array([False]),
  )
  batch = batches.assemble(prompts, rollouts, kept)
  assert batch.completion_ids.tolist() == [[[1, 2], [4, 5]]]
  assert batch.rollout_logprobs.tolist() == [[[-1, -2], [-4, -5]]]
  assert batch.completion_mask.all()
  assert batch.weight.tolist() == [[1.0, 2.0]]
  assert batch.prompt_ids.tolist() == [[5, 6, 0]]


def test_fill_up_adds_groups_of_weight_zero(random_batch):
  batch = random_batch(batch=3)
  filled = batches.fill_up(batch, 4)
  assert all(len(x) == 4 for x in filled)
  assert not filled.weight[3].any() and not filled.completion_mask[3].any()
  assert filled.prompt_length[3] == 1
  assert batches.fill_up(batch, 3) is batch


def test_split_groups_keeps_groups_whole_and_loses_none(random_batch):
  batch = random_batch(batch=5)
  parts = batches.split_groups(batch, 2, jax.random.key(3))
  assert [len(part.weight) for part in parts] == [3, 3]
  rows = [
    row
    for part in parts
    for row, weight in zip(part.completion_ids, part.weight)
    if weight.any()
  ]
  assert len(rows) == 5
  assert {row.tobytes() for row in rows} == {
    row.tobytes() for row in batch.completion_ids
  }
  again = batches.split_groups(batch, 2, jax.random.key(3))
  np.testing.assert_array_equal(parts[0].prompt_ids, again[0].prompt_ids)
  assert batches.split_groups(batch, 1, jax.random.key(3)) == [batch]


def test_split_groups_rejects_more_parts_than_groups(random_batch):
  with pytest.raises(ValueError, match="at most the 2 groups"):
    batches.split_groups(random_batch(batch=2), 3, jax.random.key(0))


def test_count_tokens_counts_a_shared_prompt_once(random_batch):
  batch = random_batch(batch=2, kept=3)
  batch = batch._replace(prompt_length=np.array([4, 6], np.int32))
  num_completion = int(batch.completion_mask.sum())
  assert batches.count_tokens(batch, "shared") == 10 + num_completion
  assert batches.count_tokens(batch, "repeated") == 30 + num_completion
  filled = batches.fill_up(batch, 4)
  assert batches.count_tokens(filled, "shared") == 10 + num_completion
