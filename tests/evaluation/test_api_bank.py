"""API-Bank: the 597 real items, their gold as a model, and upstream's rules."""

import collections
import json

import pytest

from toolrl_jax import types
from toolrl_jax.evaluation import api_bank, conversation
from toolrl_jax.parsing import tool_calls

# Items whose gold names a tool outside their prompt.
_HIDDEN = [f"level_2_{n}" for n in (6, 13, 14, 19, 25, 54)]
_GOLD = {"name": "Find", "parameters": {"city": "Rome"}}
_CALL = json.dumps(_GOLD)
_WRONG = '{"name": "Find", "parameters": {"city": "Oslo"}}'


@pytest.fixture(scope="module")
def bank(shared_dir):
  return api_bank.ApiBank(str(shared_dir / "data/api_bank"))


def _outcome(bench, item, text, style="toolrl"):
  """Answers an item with a text; the conversation must ask just once."""
  talk = bench.converse(item)
  ask = next(talk)
  assert ask.verbatim == item.row["verbatim"]
  assert (ask.turn, ask.step) == (0, 0)
  parsed = tool_calls.parse_completion(text, style=style)
  with pytest.raises(StopIteration) as stop:
    talk.send(conversation.Answer(text, parsed))
  return json.loads(json.dumps(stop.value.value))


def _score(bench, write, style="toolrl"):
  """Scores all items, each answered with what `write` makes of its gold."""
  outcomes = {
    item.id: _outcome(bench, item, write(item.row["gold"]), style)
    for item in bench.items()
  }
  return bench.score(outcomes)


def _block(*lines):
  body = "\n".join(lines)
  return f"<think> t </think>\n<tool_call>\n{body}\n</tool_call>"


def _rules(text):
  return api_bank.judge(api_bank.read_objects(text), _GOLD)


def _gold_text(gold, style="toolrl"):
  call = types.ToolCall(gold["name"], gold["parameters"])
  return tool_calls.render_gold(types.Gold((call,)), style=style)


def test_items_are_the_597_of_three_levels(bank):
  items = bank.items()
  levels = collections.Counter(item.category for item in items)
  assert levels == {"level_1": 399, "level_2": 67, "level_3": 131}
  assert len({item.id for item in items}) == 597
  values = [v for i in items for v in i.row["gold"]["parameters"].values()]
  assert all(isinstance(value, str) for value in values)


def test_items_keep_the_bytes_of_the_prompts(bank, shared_dir):
  rows = []
  for level in (1, 2, 3):
    file = shared_dir / f"data/api_bank/level-{level}-api_processed.json"
    rows += json.loads(file.read_text(encoding="utf-8"))
  prompts = [
    tuple(text["content"] for text in i.row["verbatim"]) for i in bank.items()
  ]
  assert prompts == [(row["system"], row["user"]) for row in rows]


def test_items_lose_no_tool_and_no_call_of_the_prompt(bank):
  for item in bank.items():
    system, user = (text["content"] for text in item.row["verbatim"])
    messages = item.row["messages"]
    assert len(item.row["tools"]) == system.count("\nParameters: ")
    num_calls = sum(len(message.get("calls", ())) for message in messages)
    assert num_calls == user.count("<tool_call>")
    assert messages[-1]["role"] == "user"


def test_items_read_the_tool_form_of_level_3(bank):
  item = next(i for i in bank.items() if i.id == "level_3_0")
  assert item.row["tools"] == (
    {
      "name": "QueryMeeting",
      "description": "The API for retrieving the meeting details from the"
      " user's calendar.",
      "parameters": {
        "type": "object",
        "properties": {
          "user_name": {"type": "str", "description": "Name of the user."}
        },
      },
    },
  )


def test_items_join_answers_in_two_parts(bank):
  item = next(i for i in bank.items() if i.id == "level_2_1")
  assert [m["role"] for m in item.row["messages"]] == (
    ["system", "user", "assistant", "user", "assistant", "user"]
  )
  answer = item.row["messages"][2]["content"]
  assert answer.startswith("Sure. Let me search for the relevant tool first.\n")
  assert answer.endswith("Please provide me with your username and password.")


def test_gold_as_model_is_right_597_times_under_every_rule(bank):
  scores = _score(bank, _gold_text)
  assert sum(scores.verdicts.values()) == len(scores.verdicts) == 597
  assert set(scores.table.values()) == {1.0}
  assert len(scores.table) == 4 * 4
  assert scores.counts == {"level_1": 399, "level_2": 67, "level_3": 131}


def test_notes_list_the_items_whose_tool_is_not_shown(bank):
  (note,) = bank.score({}).notes
  assert note == (
    "6 items name a tool that their prompt does not list:"
    f" {', '.join(_HIDDEN)}."
  )


@pytest.mark.parametrize("style", ["native", "n1"])
def test_gold_in_other_layouts_is_right_597_times(shared_dir, style):
  bench = api_bank.ApiBank(str(shared_dir / "data/api_bank"), style=style)
  scores = _score(bench, lambda gold: _gold_text(gold, style), style)
  assert set(scores.table.values()) == {1.0}
  assert style in scores.notes[-1]


@pytest.mark.parametrize(
  "change",
  [
    lambda name, parameters: {"name": name + "s", "parameters": parameters},
    lambda name, parameters: {
      "name": name,
      "parameters": parameters | {"extra": "1"},
    },
    lambda name, parameters: {"name": name, "parameters": [parameters]},
  ],
)
def test_a_changed_call_is_never_right(bank, change):
  scores = _score(
    bank, lambda gold: _block(json.dumps(change(**gold))), "toolrl"
  )
  assert set(scores.table.values()) == {0.0}


def test_a_dropped_call_is_right_nowhere(bank):
  scores = _score(bank, lambda gold: "<think> t </think>\n" + _block())
  assert set(scores.table.values()) == {0.0}


def test_bare_parameters_count_for_upstream_only(bank):
  scores = _score(bank, lambda gold: _block(json.dumps(gold["parameters"])))
  assert scores.table["overall"] == 1.0
  others = {scores.table[f"overall_{m}"] for m in ("hard", "strict", "parsed")}
  assert others == {0.0}


def test_judge_compares_an_object_without_parameters_as_bare():
  gold = {"name": "Scene", "parameters": {"name": "Morning"}}
  rules = api_bank.judge([{"name": "Morning"}], gold)
  assert rules == {"soft": True, "hard": False, "strict": False}


def test_an_empty_object_is_soft_right_where_gold_has_no_parameters(bank):
  empty = [i.id for i in bank.items() if not i.row["gold"]["parameters"]]
  assert len(empty) == 7
  scores = _score(bank, lambda gold: "{}")
  assert [key for key, right in scores.verdicts.items() if right] == empty
  assert scores.table["overall_strict"] == 0.0


@pytest.mark.parametrize(
  ("text", "soft", "hard", "strict"),
  [
    (_block(_CALL), True, True, True),
    # A second call: right by the soft rule, too many by the hard one.
    (_block(_WRONG, _CALL), True, False, True),
    # The last block counts, also when it is inside nothing.
    (_block(_CALL) + _block(_WRONG), False, False, False),
    (_block(_WRONG) + _block(_CALL), True, True, True),
    # A line that is no JSON is left out, without a tag all lines are tried.
    (_block("Here it is:", _CALL), True, True, True),
    (f"Here it is:\n{_CALL}", True, True, True),
    # An unclosed block runs to the end.
    (f"<tool_call>\n{_CALL}", True, True, True),
    # Upstream stops at a number or null, its comparison cannot handle them.
    (_block("7", _CALL), False, False, True),
    (_block("null", _CALL), False, False, True),
    (_block("[1]", _CALL), True, False, True),
    # A string that holds JSON is read once more, one that does not stops.
    (_block(json.dumps(_CALL)), True, False, False),
    (_block('"words"', _CALL), False, False, True),
    # More keys than two are no fault.
    (_block(_CALL[:-1] + ', "id": 1}'), True, True, True),
    ("", False, False, False),
  ],
)
def test_judge_follows_upstream(text, soft, hard, strict):
  assert _rules(text) == {"soft": soft, "hard": hard, "strict": strict}


def test_parsed_reads_the_first_block_and_no_bad_line(bank):
  item = bank.items()[0]
  call = json.dumps(item.row["gold"])
  for text, soft, parsed in (
    (_block(call) + _block(_WRONG), 0, 1),
    (_block(call, "and so on"), 1, 0),
  ):
    scores = bank.score({item.id: _outcome(bank, item, text)})
    assert scores.table["level_1"] == pytest.approx(soft / 399)
    assert scores.table["level_1_parsed"] == pytest.approx(parsed / 399)


def test_score_counts_items_without_outcome_as_failed(bank):
  items = bank.items()
  outcomes = {
    item.id: _outcome(bank, item, _gold_text(item.row["gold"]))
    for item in items
    if item.category == "level_2"
  }
  table = bank.score(outcomes).table
  assert table["level_2"] == 1.0
  assert table["level_1"] == table["level_3"] == 0.0
  assert table["overall"] == pytest.approx(67 / 597)


@pytest.mark.parametrize(
  "text",
  [
    _block("[" * 5000 + "]" * 5000),
    _block('{"a":' * 70 + "1" + "}" * 70),
    _block("1" * 5000),
    _block('{"name": NaN, "parameters": Infinity}'),
    _block("__import__('os').getcwd()"),
    "<tool_call>" * 1000,
    "\ud800\x00",
  ],
)
def test_score_never_raises_for_what_a_model_says(bank, text):
  item = bank.items()[0]
  scores = bank.score({item.id: _outcome(bank, item, text)})
  assert sum(scores.verdicts.values()) == 0


@pytest.mark.parametrize(
  "outcome", [{}, {"text": None}, {"calls": 3}, {"calls": [1, None]}]
)
def test_score_takes_a_broken_outcome_for_a_failed_item(bank, outcome):
  scores = bank.score({bank.items()[0].id: outcome})
  assert sum(scores.verdicts.values()) == 0


def test_max_per_category_takes_the_first_of_each_level(shared_dir):
  path = str(shared_dir / "data/api_bank")
  bench = api_bank.ApiBank(path, max_items=2)
  assert [item.id for item in bench.items()] == [
    f"level_{level}_{n}" for level in (1, 2, 3) for n in (0, 1)
  ]


def test_provenance_names_files_and_rule(bank):
  record = bank.provenance()
  assert record["level_1"].startswith("51ebc8209ba467ce")
  assert record["level_2"].startswith("75c8097b3127d1f7")
  assert record["level_3"].startswith("57228427976f0572")
  assert "soft" in record["rule"]


def test_api_bank_names_a_missing_or_broken_file(tmp_path):
  with pytest.raises(ValueError, match="level-1-api_processed.json, not read"):
    api_bank.ApiBank(str(tmp_path))
  row = {"system": "s", "user": "u", "answer": []}
  for text in ("{", "[1]", "{}x", json.dumps([row]), "\xff", "[]]"):
    file = tmp_path / "level-1-api_processed.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match="must be a JSON list") as error:
      api_bank.ApiBank(str(tmp_path))
    assert "\n" not in str(error.value)


def test_notes_say_when_the_files_are_others(shared_dir, tmp_path):
  for level in (1, 2, 3):
    name = f"level-{level}-api_processed.json"
    source = (shared_dir / "data/api_bank" / name).read_text(encoding="utf-8")
    (tmp_path / name).write_text(source + "\n" * (level == 2), encoding="utf-8")
  notes = api_bank.ApiBank(str(tmp_path)).score({}).notes
  assert "The files of level 2 are not those" in notes[-1]
