"""Texts, padded rewards and samples of a step."""

import jax
import numpy as np

from toolrl_jax import scoring, types
from toolrl_jax.training import completions, groups

_CALL = (
  '<think>t</think>\n<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>'
)


def test_padded_reward_gives_masked_groups_zero():
  parts = scoring.score_completions(
    [[_CALL, "x"]], [types.Gold((types.ToolCall("a", {}),))], reward={}
  )
  prompts = types.PromptBatch(
    np.zeros((3, 4), np.int32),
    np.ones(3, np.int32),
    np.array([True, False, False]),
  )
  reward, success = completions.padded_reward(parts, prompts)
  np.testing.assert_array_equal(reward, [[4, -3], [0, 0], [0, 0]])
  np.testing.assert_array_equal(success, [[1, 0], [0, 0], [0, 0]])


def test_shuffled_in_groups_permutes_both_alike_inside_each_group():
  reward = np.arange(40, dtype=np.float32).reshape(4, 10)
  success = reward % 2 == 0
  shuffled, shuffled_success = completions.shuffled_in_groups(
    reward, success, jax.random.key(0)
  )
  np.testing.assert_array_equal(np.sort(shuffled, axis=1), reward)
  np.testing.assert_array_equal(shuffled_success, shuffled % 2 == 0)
  # Each group in an order of its own.
  assert len({tuple(row % 10) for row in shuffled}) == 4


def test_samples_show_one_rollout_a_group(make_rollouts):
  gold = types.Gold((types.ToolCall("a", {}),))
  example = types.Example("id-1", (), (), gold)
  text = [[_CALL, "x"]]
  scored = scoring.parse_and_score(text, [gold], reward={})
  zeros = np.zeros((1, 1), np.float32)
  kept = groups.KeptGroups(
    np.array([[1]], np.int32), zeros, zeros, np.array([False])
  )
  [sample] = completions.samples(
    [example], text, make_rollouts([[3], [4]]), scored, kept, count=4,
    style="toolrl",
  )  # fmt: skip
  assert sample["id"] == "id-1"
  assert sample["completion"] == _CALL
  assert sample["total"] == 4.0
  assert sample["success"] is True
  assert sample["is_kept"] is False
  assert sample["finish"] == "stop"
