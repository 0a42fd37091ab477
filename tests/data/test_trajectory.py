"""Requirements (a) to (f) of cutting a trajectory into prompts."""

import copy

import pytest

from toolrl_jax import types
from toolrl_jax.data import dataset, prompt, trajectory
from toolrl_jax.parsing import tool_calls

TOOLS = (
  {
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
  },
)


def call(at):
  return (types.ToolCall("look", {"at": at}),)


# Each turn has a word of its own.
TURNS = (
  {"role": "system", "content": "zero"},
  {"role": "user", "content": "one"},
  {"role": "assistant", "content": "", "calls": call("two"), "step": True},
  {"role": "tool", "name": "look", "content": "three"},
  {"role": "assistant", "content": "four", "step": False},
  {"role": "user", "content": "five"},
  {"role": "assistant", "content": "six", "calls": call("seven"), "step": True},
  {"role": "tool", "name": "look", "content": "eight"},
  {"role": "assistant", "content": "nine", "step": True},
)
WORDS = ("zero", "one", "two", "three", "four")
WORDS += ("five", "six", "seven", "eight", "nine")
RECORD = trajectory.Trajectory("trip", TURNS, TOOLS)


def test_cut_gives_one_example_for_each_marked_turn():
  examples = trajectory.cut(RECORD)
  assert [example.id for example in examples] == ["trip/1", "trip/3", "trip/4"]
  assert [example.gold for example in examples] == [
    types.Gold(calls=call("two")),
    types.Gold(calls=call("seven"), response="six"),
    types.Gold(response="nine"),
  ]
  assert [len(example.messages) for example in examples] == [2, 6, 8]
  assert all(example.tools == TOOLS for example in examples)


def test_cut_can_take_all_turns_or_calls_only():
  def ids(steps):
    return [example.id for example in trajectory.cut(RECORD, steps=steps)]

  assert ids("all") == ["trip/1", "trip/2", "trip/3", "trip/4"]
  assert ids("calls") == ["trip/1", "trip/3"]


def test_cut_is_pure_and_its_ids_are_stable():
  record = copy.deepcopy(RECORD)
  first = trajectory.cut(record)
  assert record == RECORD
  assert trajectory.cut(record) == first
  # The id of a step does not depend on which other turns are marked.
  everything = {e.id: e for e in trajectory.cut(record, steps="all")}
  assert [everything[example.id] for example in first] == first


def test_cut_lets_no_later_turn_into_a_prompt(chat_tokenizer):
  last_words = {"trip/1": 1, "trip/2": 3, "trip/3": 5, "trip/4": 8}
  for example in trajectory.cut(RECORD, steps="all"):
    for template in ("native", "context", "toolrl"):
      # "one" stands in the template's own words too.
      text = prompt.render(example, chat_tokenizer, template=template)
      later = WORDS[last_words[example.id] + 1 :]
      assert not [word for word in later if word in text.split("one", 1)[1]]
      assert WORDS[last_words[example.id]] in text


def test_cut_prompt_and_gold_reproduce_the_next_history(chat_tokenizer):
  examples = trajectory.cut(RECORD, steps="all")
  for now, following in zip(examples[:-1], examples[1:], strict=True):
    text = prompt.render(now, chat_tokenizer, template="native")
    text += tool_calls.render_gold(now.gold, style="native", think="")
    text += "<|im_end|>\n"
    after = prompt.render(following, chat_tokenizer, template="native")
    assert after.startswith(text)
    rest = len(now.messages) + 1
    assert following.messages[: len(now.messages)] == now.messages
    assert all(
      turn["role"] != "assistant" for turn in following.messages[rest:]
    )


def test_cut_drops_old_turns_whole_and_keeps_the_system_message():
  example = trajectory.cut(RECORD, max_user_turns=1)[-1]
  assert [turn["content"] for turn in example.messages] == [
    "zero",
    "five",
    "six",
    "eight",
  ]
  assert example.tools == TOOLS
  assert trajectory.cut(RECORD, max_user_turns=2) == trajectory.cut(RECORD)


def test_cut_ids_keep_steps_of_one_trajectory_together():
  stems = {example.id.rpartition("/")[0] for example in trajectory.cut(RECORD)}
  assert stems == {"trip"}


@pytest.mark.parametrize(
  ("turns", "reason"),
  [
    ([{"role": "assistant", "content": "hello"}], "no user turn"),
    (
      [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": " "},
      ],
      "is empty",
    ),
    (
      [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
      ],
      "follows 'assistant'",
    ),
  ],
)
def test_cut_says_what_is_wrong(turns, reason):
  record = trajectory.Trajectory("t", tuple(turns), ())
  with pytest.raises(ValueError, match=reason):
    trajectory.cut(record, steps="all")


def test_cut_without_marks_gives_nothing():
  record = trajectory.Trajectory("t", ({"role": "user", "content": "a"},), ())
  assert trajectory.cut(record) == []


def test_cut_through_a_file_keeps_recorded_thinking(tmp_path):
  file = tmp_path / "trips.jsonl"
  file.write_text(
    '{"id": "t", "messages": [{"role": "user", "content": "a"},'
    ' {"role": "assistant", "content": "<think>\\nwhy\\n</think>\\n\\nb",'
    ' "step": true}]}\n'
  )
  loaded = dataset.load(str(file))
  assert [example.id for example in loaded.examples] == ["t/1"]
  assert loaded.targets == [
    "<think> why </think>\n<response> b </response>",
  ]
