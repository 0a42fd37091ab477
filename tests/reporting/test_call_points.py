"""Points of calls beside the reward that the kernel gives."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl_jax import scoring
from toolrl_jax.parsing import tool_calls
from toolrl_jax.reporting import call_points


def _text(calls, style="toolrl"):
  key = {"toolrl": "parameters", "native": "arguments"}[style]
  lines = [json.dumps({"name": n, key: a}) for n, a in calls]
  if style == "native":
    return "\n".join(f"<tool_call>\n{line}\n</tool_call>" for line in lines)
  body = "\n".join(lines)
  return f"<think>t</think>\n<tool_call>\n{body}\n</tool_call>"


def test_compare_counts_by_hand():
  gold = _text([("a", {"x": 1, "y": 2}), ("b", {"z": 3})])
  made = _text([("b", {"z": 4}), ("a", {"x": 1, "w": 2}), ("c", {})])
  points = call_points.compare(made, gold)
  # Names: 2 of 3. Keys: b 1 of 1, a 1 of 3. Values: only x.
  assert points.names == pytest.approx(2 / 3)
  assert points.parameters == pytest.approx(4 / 3)
  assert (points.max_parameters, points.values, points.max_values) == (2, 1, 3)
  assert points.fraction == pytest.approx((2 / 3 + 4 / 3 + 1) / 6)


def test_compare_leaves_out_what_would_keep_a_page_waiting():
  gold = _text([("a", {"x": 1})] * 100)
  assert call_points.compare(_text([("a", {"x": 1})] * 200), gold) is not None
  assert call_points.compare(_text([("a", {"x": 1})] * 201), gold) is None


def test_compare_differs_by_matching_where_a_call_is_repeated():
  gold, made = _text([("a", {"x": 1})]), _text([("a", {"x": 1})] * 2)
  assert call_points.compare(made, gold, matching="optimal").names == 1
  assert call_points.compare(made, gold, matching="greedy").names == 0.5


@pytest.mark.parametrize(
  ("made", "status"),
  [
    ("", "NO_CALL"),
    ("<tool_call>\n{", "UNCLOSED"),
    ("<tool_call>\n{\n</tool_call>", "BAD_JSON"),
    ('<tool_call>\n{"name": "a"}\n</tool_call>', "NO_ARGUMENTS"),
  ],
)
def test_compare_gives_unreadable_calls_nothing(made, status):
  points = call_points.compare(made, _text([("a", {"x": 1})]))
  assert (points.status, points.fraction) == (status, 0)


def test_compare_gives_none_where_the_gold_has_no_call():
  for gold in ("", "<response>none</response>", "\ud800"):
    assert call_points.compare(_text([("a", {})]), gold) is None


def test_compare_reads_the_native_layout():
  calls = [("a", {"x": 1}), ("b", {})]
  points = call_points.compare(
    _text(calls, "native"), _text(calls[::-1], "native"), style="native"
  )
  assert points.fraction == 1


_CALLS = st.lists(
  st.tuples(
    st.sampled_from("ab"),
    st.dictionaries(
      st.sampled_from("xyz"),
      st.sampled_from([1, True, 1.0, "1", [1], {}, None]),
      max_size=3,
    ),
  ),
  max_size=4,
)


@pytest.mark.parametrize("matching", ["optimal", "greedy"])
@settings(max_examples=60, deadline=None)
@given(made=_CALLS, wanted=_CALLS.filter(bool))
def test_compare_adds_up_to_the_kernels_reward(matching, made, wanted):
  gold = tool_calls.parse_gold(_text(wanted))
  parts = scoring.score_completions(
    [_text(made)], [gold], reward={"matching": matching}
  )
  points = call_points.compare(_text(made), _text(wanted), matching=matching)
  assert -3 + 6 * points.fraction == pytest.approx(
    float(parts.correctness[0]), abs=1e-4
  )
