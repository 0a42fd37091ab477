"""Numbers of a step from its records."""

import numpy as np
import pytest

from toolrl_jax import scoring, types
from toolrl_jax.rollout import ledger
from toolrl_jax.training import groups, step_metrics

_CALL = (
  '<think>t</think>\n<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>'
)
_ANSWER = "<think>t</think>\n<response>no</response>"
_GOLD_CALL = types.Gold((types.ToolCall("a", {}),))
_GOLD_ANSWER = types.Gold((), "no")


def _kept(is_equal):
  zeros = np.zeros((2, 2), np.float32)
  return groups.KeptGroups(
    np.zeros((2, 2), np.int32), zeros, zeros, np.array(is_equal)
  )


def test_reward_metrics_counts_groups_and_texts():
  golds = [_GOLD_CALL, _GOLD_ANSWER]
  scored = scoring.parse_and_score(
    [[_CALL, _CALL], [_CALL, _ANSWER]], golds, reward={}
  )
  row = step_metrics.reward_metrics(scored, golds, _kept([True, False]))
  # Call rows earn 4 each; the answer row 0 for a call and 1 for the answer.
  assert row["reward/total"] == pytest.approx((4 + 4 + 0 + 1) / 4)
  assert row["reward/success_frac"] == 0.75
  assert row["rollout/tool_call_frac"] == 0.75
  assert row["rollout/gold_call_frac"] == 0.5
  assert row["filter/all_right_frac"] == 0.5
  assert row["filter/all_wrong_frac"] == 0.0
  assert row["filter/zero_variance_frac"] == 0.5


def test_rollout_metrics_leaves_masked_groups_out():
  mask = np.zeros((2, 1, 4), bool)
  mask[0, 0, :3] = True
  zeros = np.zeros((2, 1, 4), np.float32)
  rollouts = types.Rollouts(
    np.zeros((2, 1, 4), np.int32), mask, zeros, zeros,
    np.array([[types.FINISH_LENGTH], [types.FINISH_STOP]], np.int32),
  )  # fmt: skip
  prompts = types.PromptBatch(
    np.zeros((2, 8), np.int32),
    np.array([7, 1], np.int32),
    np.array([True, False]),
  )
  row = step_metrics.rollout_metrics(
    rollouts, prompts, ledger.RolloutStats(num_prefills=1)
  )
  assert row["rollout/tokens"] == 3
  assert row["rollout/length_tokens"] == 3
  assert row["rollout/prompt_tokens"] == 7
  assert row["rollout/cut_frac"] == 1
  assert row["rollout/prefills"] == 1


def test_collapse_watch_warns_when_it_starts():
  watch = step_metrics.CollapseWatch(min_parse_frac=0.5, min_tool_call_frac=0.5)
  good = {
    "rollout/parse_fail_frac": 0.1,
    "rollout/tool_call_frac": 0.6,
    "rollout/gold_call_frac": 0.8,
  }
  assert watch.check(good, 1) == []
  [parse] = watch.check({**good, "rollout/parse_fail_frac": 0.6}, 2)
  assert "40%" in parse
  [call] = watch.check({**good, "rollout/tool_call_frac": 0.3}, 3)
  assert "30%" in call


def test_summary_table_shows_the_change():
  table = step_metrics.summary_table(
    {"heldout/exact_greedy_frac": {"before": 0.25, "after": 0.5}}
  )
  assert table.splitlines()[1].split() == [
    "exact_greedy_frac", "0.250", "0.500", "+0.250",
  ]  # fmt: skip
