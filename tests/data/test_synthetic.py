import collections
import json
import re

import pytest

from toolrl_jax.data import synthetic, synthetic_words


def _request(example):
  return example.messages[0]["content"]


def _intents(example):
  by_name = {
    name: intent
    for intent, words in synthetic_words.INTENTS.items()
    for name in words.names
  }
  return frozenset(by_name[tool["name"]] for tool in example.tools)


def test_generate_is_pure_and_a_longer_set_starts_with_the_shorter():
  longer = synthetic.generate(40, split="train", seed=3)
  assert longer == synthetic.generate(40, split="train", seed=3)
  assert longer[:25] == synthetic.generate(25, split="train", seed=3)
  assert longer[0].id == "synthetic-train-3-0"
  assert len({example.id for example in longer}) == 40


@pytest.mark.parametrize(
  "other", [{"split": "sft", "seed": 3}, {"split": "train", "seed": 4}]
)
def test_generate_gives_fresh_examples_for_another_split_or_seed(other):
  first = [
    (e.tools, e.messages) for e in synthetic.generate(50, split="train", seed=3)
  ]
  second = [(e.tools, e.messages) for e in synthetic.generate(50, **other)]
  assert sum(a == b for a, b in zip(first, second, strict=True)) == 0


def test_generate_never_shares_a_tool_set_between_eval_and_train():
  sets = {
    split: {
      _intents(example)
      for example in synthetic.generate(1500, split=split, seed=0)
    }
    for split in ("train", "sft", "eval")
  }
  assert len(sets["eval"]) > 50
  assert not sets["eval"] & (sets["train"] | sets["sft"])
  assert sets["train"] & sets["sft"]


def test_generate_draws_the_stated_shares_of_kinds():
  examples = synthetic.generate(4000, split="eval", seed=1)
  counts = collections.Counter(map(synthetic.kind, examples))
  # Standard deviation of a share is below 0.008 here.
  assert counts["none"] / 4000 == pytest.approx(0.2, abs=0.03)
  assert counts["two"] / 4000 == pytest.approx(0.25, abs=0.03)
  assert counts["one"] / 4000 == pytest.approx(0.55, abs=0.03)


def test_generate_gold_calls_a_listed_tool_with_values_of_the_request():
  for example in synthetic.generate(500, split="train", seed=2):
    tools = {tool["name"]: tool for tool in example.tools}
    assert len(tools) == len(example.tools) in (3, 4)
    for call in example.gold.calls:
      schema = tools[call.name]["parameters"]
      assert list(call.arguments) == schema["required"]
      for name, value in call.arguments.items():
        kind = {"integer": int, "string": str}[
          schema["properties"][name]["type"]
        ]
        assert type(value) is kind
        assert str(value) in _request(example)
    if not example.gold.calls:
      assert example.gold.response == synthetic_words.REFUSAL


def test_generate_no_tool_requests_ask_for_nothing_that_is_listed():
  patterns = {
    re.compile(re.sub(r"\\{\w+\\}", r"\\w+", re.escape(sentence))): intent
    for intent, words in synthetic_words.INTENTS.items()
    for sentence in words.requests
  }
  num_near = num_far = 0
  for example in synthetic.generate(1500, split="train", seed=5):
    if example.gold.calls:
      continue
    found = {
      intent
      for pattern, intent in patterns.items()
      if pattern.fullmatch(_request(example))
    }
    num_near += bool(found)
    num_far += not found
    assert not found & _intents(example)
  assert 0.15 < num_near / (num_near + num_far) < 0.4


def test_vocabularies_are_disjoint():
  values = [
    value for vocabulary in synthetic_words.VOCABULARIES for value in vocabulary
  ]
  assert len(values) == len(set(values))


def test_render_writes_the_format_by_hand():
  first, second = synthetic.types.ToolCall("a", {"x": "u", "n": 3}), None
  second = synthetic.types.ToolCall("b", {})
  assert synthetic.render([first, second]) == (
    "<think>a, b</think>\n<tool_call>\n"
    '{"name":"a","parameters":{"x":"u","n":3}}\n'
    '{"name":"b","parameters":{}}\n</tool_call>'
  )
  assert synthetic.render([]) == (
    "<think>none</think>\n<response>No tool fits.</response>"
  )


def _calls(text):
  body = text.split("<tool_call>\n")[1].split("\n</tool_call>")[0]
  return [json.loads(line) for line in body.split("\n")]


def test_demonstrations_have_the_stated_faults_and_none_on_no_tool_rows():
  examples = synthetic.generate(4000, split="sft", seed=0)
  targets = synthetic.demonstrations(examples, seed=0, clean_frac=0.0)
  again = synthetic.demonstrations(examples, seed=0, clean_frac=0.0)
  other = synthetic.demonstrations(examples, seed=1, clean_frac=0.0)
  assert targets == again
  assert targets != other
  is_faulty = collections.defaultdict(list)
  num_forgotten = 0
  for example, target in zip(examples, targets, strict=True):
    right = synthetic.render(example.gold.calls)
    kind = synthetic.kind(example)
    is_faulty[kind].append(target != right)
    if kind != "none":
      assert 1 <= len(_calls(target)) <= 2
      num_forgotten += len(_calls(target)) < len(example.gold.calls)
  share = {kind: sum(x) / len(x) for kind, x in is_faulty.items()}
  assert share["none"] == 0.0
  assert share["one"] == pytest.approx(0.7, abs=0.04)
  assert share["two"] == pytest.approx(0.75, abs=0.04)
  # 0.75 * 0.9 of the requests for two calls lose one.
  assert num_forgotten / len(is_faulty["two"]) == pytest.approx(0.675, abs=0.05)


def test_demonstrations_begin_with_right_ones():
  examples = synthetic.generate(400, split="sft", seed=0)
  right = [synthetic.render(e.gold.calls) for e in examples]
  targets = synthetic.demonstrations(examples, seed=0, clean_frac=0.75)
  assert targets[:300] == right[:300]
  num_faulty = sum(
    a != b for a, b in zip(targets[300:], right[300:], strict=True)
  )
  # 100 * (0.55 * 0.7 + 0.25 * 0.75) = 57.25 are expected.
  assert 42 < num_faulty < 73


def test_demonstrations_without_faults_are_the_gold():
  examples = synthetic.generate(200, split="sft", seed=0)
  targets = synthetic.demonstrations(
    examples, seed=0, fault_frac_one=0.0, fault_frac_two=0.0
  )
  assert targets == [synthetic.render(e.gold.calls) for e in examples]


def test_unfit_arguments_are_refused_in_one_line():
  with pytest.raises(ValueError, match="num must be at least 0, got -1"):
    synthetic.generate(-1, split="train", seed=0)
  with pytest.raises(ValueError, match=r"must be in \[0, 1\], got 1.5"):
    synthetic.demonstrations([], seed=0, fault_frac_one=1.5)
