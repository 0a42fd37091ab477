"""Averages by hand, the forms of documents, and the reading of outcomes."""

import pytest

from toolrl_jax import types
from toolrl_jax.evaluation import (
  benchmark,
  bfcl,
  bfcl_documents,
  bfcl_outcomes,
  bfcl_scores,
  conversation,
)
from toolrl_jax.parsing import tool_calls


def _verdicts(**fractions):
  """Four items a category, of which so many quarters are right."""
  return {
    name: [1.0] * int(4 * value) + [0.0] * int(4 - 4 * value)
    for name, value in fractions.items()
  }


@pytest.mark.quick
def test_table_averages_as_the_leaderboard_and_the_paper():
  verdicts = _verdicts(
    simple_python=1.0,
    simple_java=0.5,
    simple_javascript=0.0,
    multiple=1.0,
    parallel=0.5,
    parallel_multiple=0.25,
    irrelevance=0.5,
    live_irrelevance=1.0,
    live_relevance=0.0,
    multi_turn_base=0.75,
    multi_turn_miss_func=0.5,
    multi_turn_miss_param=0.25,
    multi_turn_long_context=0.0,
  )
  # Live is weighted by items: (8 + 1 + 0 + 0) / (10 + 5 + 1 + 4) = 0.45.
  verdicts |= {
    "live_simple": [1.0] * 8 + [0.0] * 2,
    "live_multiple": [1.0] + [0.0] * 4,
    "live_parallel": [0.0],
    "live_parallel_multiple": [0.0] * 4,
  }
  table, notes = bfcl_scores.table(verdicts)
  # simple = (1 + 0.5 + 0) / 3 = 0.5; (0.5 + 1 + 0.5 + 0.25) / 4 = 0.5625.
  assert table["v4/non_live"] == pytest.approx(0.5625)
  assert table["v4/live"] == pytest.approx(0.45)
  assert table["v4/irrelevance"] == pytest.approx(0.75)
  assert table["v4/multi_turn"] == pytest.approx(0.375)
  # 0.1 (0.5625 + 0.45 + 0.75) + 0.3 * 0.375 + 0.4 * 0.
  assert table["v4/overall"] == pytest.approx(0.28875)
  assert table["paper/multi"] == pytest.approx(0.375)
  assert table["paper/single"] == pytest.approx(0.50625)
  assert table["paper/avg"] == pytest.approx(0.440625)
  assert notes[0].endswith("not run: web_search, memory.")


@pytest.mark.quick
def test_table_reproduces_a_published_row():
  # Claude Sonnet 4.5 (FC): multi-turn 69, 65, 52.5, 59 of 100 gives 61.37.
  right = {"base": 138, "miss_func": 130, "miss_param": 105}
  right["long_context"] = 118
  verdicts = {
    f"multi_turn_{name}": [1.0] * n + [0.0] * (200 - n)
    for name, n in right.items()
  }
  table, _ = bfcl_scores.table(verdicts)
  assert table["paper/multi"] == pytest.approx(0.61375)


@pytest.mark.quick
def test_table_counts_what_was_not_run_as_zero_in_the_overall_alone():
  table, notes = bfcl_scores.table({"multi_turn_base": [1.0], "multiple": []})
  # 0.3 * (1 + 0 + 0 + 0) / 4.
  assert table == {
    "multi_turn_base": 1.0,
    "v4/overall": pytest.approx(0.075),
  }
  assert "memory, simple_python" in notes[0] and "multiple" in notes[0]
  # A missing live category counts with its full size, as in the package.
  live, _ = bfcl_scores.table({"live_simple": [1.0] * 258})
  assert live["v4/overall"] == pytest.approx(0.1 * 258 / 1351)


@pytest.mark.quick
def test_bfcl_refuses_unknown_categories_and_counts():
  with pytest.raises(ValueError, match="categories must be different ones"):
    bfcl.Bfcl(categories=["simple"])
  with pytest.raises(ValueError, match="categories must be different ones"):
    bfcl.Bfcl(categories=["multiple", "multiple"])
  with pytest.raises(ValueError, match="max_items must be at least 0, got -1"):
    bfcl.Bfcl(max_items=-1)
  assert bfcl.Bfcl().headline == "paper/avg"
  assert bfcl.Bfcl(categories=["multiple"]).headline == "items"


_DOCUMENT = {
  "name": "bank.pay",
  "description": "Pays.",
  "parameters": {
    "type": "dict",
    "properties": {
      "type": {"type": "float", "description": "Sum."},
      "to": {"type": "tuple", "items": {"type": "dict", "properties": {}}},
      "note": {"type": "any"},
      "day": {"type": "string", "enum": ["dict", "float"]},
    },
    "required": ["type"],
  },
  "response": {"type": "dict"},
}


@pytest.mark.quick
def test_shown_keeps_raw_documents_and_maps_types_for_json_schema():
  assert bfcl_documents.shown([_DOCUMENT]) == (_DOCUMENT,)
  (shown,) = bfcl_documents.shown(
    [_DOCUMENT], form="json_schema", names="underscored"
  )
  assert shown == {
    "name": "bank_pay",
    "description": "Pays. Returns: {'type': 'dict'}",
    "parameters": {
      "type": "object",
      "properties": {
        # A parameter called "type", and values that look like types.
        "type": {"type": "number", "description": "Sum."},
        "to": {"type": "array", "items": {"type": "object", "properties": {}}},
        "note": {"type": "string"},
        "day": {"type": "string", "enum": ["dict", "float"]},
      },
      "required": ["type"],
    },
  }


def _answer(text):
  return conversation.Answer(
    text, tool_calls.parse_completion(text, style="native")
  )


@pytest.mark.quick
def test_read_calls_takes_no_half_readable_answer():
  one = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
  half = '<tool_call>\n{"name": "f"}\n</tool_call>'
  assert bfcl_outcomes.read_calls(_answer(one)) == (
    types.ToolCall("f", {"a": 1}),
  )
  assert bfcl_outcomes.read_calls(_answer(f"{one}\n{half}")) == ()
  # Thinking that never ends holds no call.
  assert bfcl_outcomes.read_calls(_answer(f"<think>{one}")) == ()
  step = bfcl_outcomes.step_record(_answer(half), ())
  assert step["is_try"] and step["calls"] == []


@pytest.mark.quick
@pytest.mark.parametrize(
  "outcome",
  [
    None,
    "text",
    {},
    {"turns": []},
    {"turns": [[]]},
    {"turns": [["x"]]},
    {"turns": [[{"calls": [{"name": 1, "arguments": {}}]}]]},
    {"turns": [[{"calls": [{"name": "f", "arguments": "{}"}]}]]},
    {"turns": [[{"calls": [{"name": "f"}]}]]},
  ],
)
def test_turns_of_takes_anything(outcome):
  assert bfcl_outcomes.turns_of(outcome) is None


def _outcome(*turns):
  """Each turn is a list of names called in its only step."""
  return {
    "turns": [
      [{"calls": [{"name": name, "arguments": {}} for name in names]}]
      for names in turns
    ]
  }


@pytest.mark.quick
def test_abstention_counts_silent_turns_and_enforces_them():
  category = "multi_turn_miss_param"
  row = {"gold": [["f()"], [], ["g()"], []]}
  items = [benchmark.Item(str(i), category, row) for i in range(4)]
  outcomes = {
    "0": _outcome(["f"], [], ["g"], []),  # silent in both
    "1": _outcome(["f"], ["h"], ["g"], []),  # chatty in one
    "2": _outcome(["f"], []),  # ended before the last
  }
  verdicts = {"0": 1.0, "1": 1.0, "2": 0.0, "3": 0.0}
  metrics = bfcl_outcomes.abstention(items, outcomes, verdicts)
  # Of 8 turns with empty gold: 2 + 1 + 1 + 0 are silent.
  assert metrics[f"{category}/abstention"] == pytest.approx(0.5)
  assert metrics[f"{category}/enforced"] == pytest.approx(0.25)


@pytest.mark.quick
def test_abstention_tells_unreadable_tries_from_silence():
  items = [benchmark.Item(str(i), "irrelevance", {}) for i in range(3)]
  silent, tried = _outcome([]), _outcome([])
  tried["turns"][0][0]["is_try"] = True
  outcomes = {"0": silent, "1": tried, "2": _outcome(["f"])}
  metrics = bfcl_outcomes.abstention(items, outcomes, {})
  assert metrics == {"irrelevance/no_try": pytest.approx(1 / 3)}
