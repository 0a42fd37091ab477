import jax
import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.training import batches, groups, step


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


def test_split_groups_keeps_groups_whole_and_loses_none(random_batch):
  batch = random_batch(batch=5)
  parts = batches.split_groups(batch, 2, jax.random.key(3))
  assert [len(part.weight) for part in parts] == [3, 2]
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


def test_has_gradient_leaves_out_groups_whose_gradient_is_zero(random_batch):
  batch = random_batch(batch=4)
  batch.advantage[1] = 0
  batch.weight[2] = 0
  options = step.UpdateOptions()
  chosen = batches.has_gradient(batch, options)
  assert chosen.tolist() == [True, False, False, True]
  # A term beside the surrogate reaches groups without advantage, too.
  for changes in ({"kl_coef": 0.1}, {"entropy_coef": 0.1}):
    chosen = batches.has_gradient(batch, options._replace(**changes))
    assert chosen.tolist() == [True, True, False, True]
  nothing = batch._replace(advantage=np.zeros_like(batch.advantage))
  assert not batches.has_gradient(nothing, options).any()


@pytest.mark.parametrize(
  ("aggregation", "expected"),
  [("token_mean", 7.0), ("sequence_mean", 3.0), ("fixed", 3.0)],
)
def test_divisor_of_counts_the_chosen_groups(
  random_batch, aggregation, expected
):
  mask = np.zeros((2, 2, 4), bool)
  mask[0, 0, :3] = mask[0, 1, :2] = mask[1, 0, :4] = True
  batch = random_batch(batch=2, kept=2, size=4)._replace(
    completion_mask=mask, weight=np.array([[1, 2], [1, 1]], np.float32)
  )
  options = step.UpdateOptions(aggregation=aggregation)
  chosen = np.array([True, False])
  assert batches.divisor_of(batch, chosen, options) == expected
  assert batches.divisor_of(batch, chosen & False, options) == 0.0
