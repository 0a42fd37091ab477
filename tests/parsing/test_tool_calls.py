"""Tests of toolrl_jax/parsing/tool_calls.py and call_objects.py."""

import json
import re

import hypothesis
import hypothesis.strategies as st
import pyarrow.parquet
import pytest

from toolrl_jax import types
from toolrl_jax.parsing import call_objects, tool_calls

CALL_LINE = '{"name": "a", "parameters": {"p": 1}}'
ONE_CALL = f"<think>t</think>\n<tool_call>\n{CALL_LINE}\n</tool_call>"
Status = types.ParseStatus


def _native(*contents, think=""):
  blocks = [f"<tool_call>\n{content}\n</tool_call>" for content in contents]
  return think + "\n".join(blocks)


def _toolrl(lines):
  return f"<think>t</think>\n<tool_call>\n{lines}\n</tool_call>"


# ----- statuses of the ToolRL layout -----


@pytest.mark.parametrize(
  ("text", "status"),
  [
    (ONE_CALL, Status.OK),
    (_toolrl(CALL_LINE + "\n" + CALL_LINE), Status.OK),
    ("", Status.NO_CALL),
    ("only words", Status.NO_CALL),
    ("<think>t</think>\n<response>hi</response>", Status.NO_CALL),
    ("<tool_call>\n" + CALL_LINE, Status.UNCLOSED),
    (CALL_LINE + "</tool_call>", Status.UNCLOSED),
    ("</tool_call>" + CALL_LINE + "<tool_call>", Status.UNCLOSED),
    (_toolrl(""), Status.BAD_JSON),
    (_toolrl("   "), Status.BAD_JSON),
    (_toolrl(CALL_LINE + "\n\n" + CALL_LINE), Status.BAD_JSON),
    (_toolrl(json.dumps(json.loads(CALL_LINE), indent=1)), Status.BAD_JSON),
    (_toolrl(CALL_LINE + "\n{broken"), Status.BAD_JSON),
    (_toolrl("<tool_call>"), Status.BAD_JSON),
    (_toolrl("[" + CALL_LINE + "]"), Status.NOT_OBJECT),
    (_toolrl("3"), Status.NOT_OBJECT),
    (_toolrl("null"), Status.NOT_OBJECT),
    (_toolrl('"text"'), Status.NOT_OBJECT),
    (_toolrl('{"parameters": {}}'), Status.BAD_NAME),
    (_toolrl('{"name": ["a"], "parameters": {}}'), Status.BAD_NAME),
    (_toolrl('{"name": "a"}'), Status.NO_ARGUMENTS),
    (_toolrl('{"name": "a", "arguments": {}}'), Status.NO_ARGUMENTS),
    (_toolrl('{"name": "a", "parameters": [1]}'), Status.NO_ARGUMENTS),
  ],
)
def test_parse_completion_gives_the_status_of_each_defect(text, status):
  parsed = tool_calls.parse_completion(text)
  assert parsed.status == status
  assert parsed.is_parsed == (status in (Status.OK, Status.NO_CALL))
  if status not in (Status.OK, Status.NO_ARGUMENTS):
    assert parsed.calls == ()


def test_parse_completion_reads_first_block_only():
  second = ONE_CALL.replace('"a"', '"b"')
  parsed = tool_calls.parse_completion(ONE_CALL + second)
  assert [call.name for call in parsed.calls] == ["a"]


def test_parse_completion_is_spoilt_by_tag_in_toolrl_thinking():
  text = ONE_CALL.replace("<think>t", "<think>I use <tool_call> now")
  assert tool_calls.parse_completion(text).status == Status.BAD_JSON


def test_parse_completion_marks_further_keys():
  line = '{"name": "a", "parameters": {"p": 1}, "id": 7}'
  parsed = tool_calls.parse_completion(_toolrl(line + "\n" + CALL_LINE))
  assert parsed.call_shapes == (types.CallShape.EXTRA, types.CallShape.PLAIN)
  assert parsed.calls[0] == types.ToolCall("a", {"p": 1})


def test_parse_completion_last_duplicate_key_wins():
  line = '{"name": "a", "parameters": {"p": 1, "p": 2}}'
  parsed = tool_calls.parse_completion(_toolrl(line))
  assert parsed.calls[0].arguments == {"p": 2}


@pytest.mark.parametrize(
  "value",
  ["NaN", "Infinity", "-Infinity", "1e999", "-0.0", "1" * 400, '"\\ud800"'],
)
def test_parse_completion_reads_odd_scalars(value):
  line = CALL_LINE.replace("1", value)
  for style, key in (("toolrl", "parameters"), ("native", "arguments")):
    text = _toolrl(line.replace("parameters", key))
    parsed = tool_calls.parse_completion(text, style=style)
    assert parsed.status == Status.OK


@pytest.mark.parametrize("style", ["toolrl", "native", "n1"])
@pytest.mark.parametrize(
  ("value", "status"),
  [
    ("1" * 5000, Status.BAD_JSON),
    ("[" * 100_000 + "]" * 100_000, Status.BAD_JSON),
    ("[" * 300 + "]" * 300, Status.TOO_DEEP),
    ('{"k":' * 300 + "1" + "}" * 300, Status.TOO_DEEP),
  ],
)
def test_parse_completion_survives_hostile_json(style, value, status):
  text = '<tool_call>\n{"name": "a", "parameters": {"p": %s}}\n</tool_call>'
  text = text % value
  if style != "toolrl":
    text = text.replace("parameters", "arguments")
  assert tool_calls.parse_completion(text, style=style).status == status


def test_load_measures_depth_not_brackets():
  wide = "[" + ",".join(["[]"] * 500) + "]"
  assert len(call_objects.load(wide)) == 500
  at_limit = "[" * call_objects.MAX_DEPTH + "]" * call_objects.MAX_DEPTH
  assert isinstance(call_objects.load(at_limit), list)
  assert call_objects.load("[" + at_limit + "]") is Status.TOO_DEEP


# ----- format -----

_PATTERNS = {
  "response": r"^<think>.*?</think>{n}<response>.*?</response>$",
  "calls": r"^<think>.*?</think>{n}<tool_call>\n.*?\n</tool_call>$",
  "both": (
    r"^<think>.*?</think>{n}<tool_call>\n.*?\n</tool_call>\n"
    r"<response>.*?</response>$"
  ),
  "none": r"^<think>.*?</think>$",
}
_ONLY_ONE = {
  "response": ("<response>", "</response>"),
  "calls": ("<tool_call>", "</tool_call>"),
  "both": ("<tool_call>", "</tool_call>", "<response>", "</response>"),
  "none": (),
}


def _kinds_by_regex(text, newlines):
  return {
    kind
    for kind, pattern in _PATTERNS.items()
    if re.search(pattern.replace("{n}", newlines), text, re.DOTALL)
    and all(text.count(tag) == 1 for tag in _ONLY_ONE[kind])
  }


_PIECES = [
  "<think>",
  "</think>",
  "<tool_call>",
  "</tool_call>",
  "<response>",
  "</response>",
  "</think>\n<tool_call>\n",
  "\n</tool_call>\n<response>",
  "\n",
  "\n\n",
  "x",
  " ",
  CALL_LINE,
]


@hypothesis.given(st.lists(st.sampled_from(_PIECES), max_size=12))
@hypothesis.settings(max_examples=400, deadline=None)
def test_formats_equal_the_published_patterns(pieces):
  text = "".join(pieces)
  parsed = tool_calls.parse_completion(text)
  assert parsed.formats_one == _kinds_by_regex(text.strip(), r"\n")
  assert parsed.formats_one_or_two == _kinds_by_regex(text.strip(), r"\n{1,2}")


def test_formats_tell_one_newline_from_two():
  two = ONE_CALL.replace("</think>\n", "</think>\n\n")
  parsed = tool_calls.parse_completion(two)
  assert parsed.formats_one == set()
  assert parsed.formats_one_or_two == {"calls"}
  three = two.replace("</think>\n", "</think>\n\n")
  assert tool_calls.parse_completion(three).formats_one_or_two == set()


def test_parse_completion_takes_linear_time_on_repeated_tags():
  # A lazy regular expression needs about 10^10 steps for this text.
  text = "<think>" + "</think>\n<tool_call>\n" * 100_000
  parsed = tool_calls.parse_completion(text)
  assert parsed.status == Status.UNCLOSED
  assert parsed.formats_one == set()


# ----- native layout -----


def test_native_reads_every_block_and_the_text_outside():
  text = "I look.\n" + _native(
    '{"name": "a", "arguments": {"p": 1}}', '{"name": "b", "arguments": {}}'
  )
  parsed = tool_calls.parse_completion(text, style="native")
  assert parsed.status == Status.OK
  assert [call.name for call in parsed.calls] == ["a", "b"]
  assert parsed.response == "I look."
  assert parsed.formats_one == {"both"}


@pytest.mark.parametrize(
  ("text", "kinds_one", "kinds_two"),
  [
    (_native("{}"), {"calls"}, {"calls"}),
    (_native("{}", think="<think>t</think>\n"), {"calls"}, {"calls"}),
    (_native("{}", think="<think>t</think>\n\n"), set(), {"calls"}),
    (_native("{}", think="<think>t</think>"), set(), set()),
    ("<think>t</think>\nhello", {"response"}, {"response"}),
    ("<think>t</think>", {"none"}, {"none"}),
    ("hello", {"response"}, {"response"}),
    ("", {"none"}, {"none"}),
    ("<think>never ends <tool_call>", set(), set()),
    ("<tool_call>{}", set(), set()),
    ("{}</tool_call>", set(), set()),
  ],
)
def test_native_formats(text, kinds_one, kinds_two):
  parsed = tool_calls.parse_completion(text, style="native")
  assert parsed.formats_one == kinds_one
  assert parsed.formats_one_or_two == kinds_two


def test_native_ignores_tags_inside_thinking():
  think = "<think>maybe <tool_call>{}</tool_call> or not</think>\n"
  text = _native('{"name": "a", "arguments": {}}', think=think)
  parsed = tool_calls.parse_completion(text, style="native")
  assert parsed.status == Status.OK
  assert [call.name for call in parsed.calls] == ["a"]
  answer = tool_calls.parse_completion(think + "no", style="native")
  assert not answer.has_call and answer.response == "no"


def test_native_is_spoilt_by_one_bad_block():
  text = _native('{"name": "a", "arguments": {}}', "{broken")
  parsed = tool_calls.parse_completion(text, style="native")
  assert parsed.status == Status.BAD_JSON and parsed.calls == ()


def test_native_accepts_pretty_printed_json():
  text = _native(json.dumps({"name": "a", "arguments": {"p": 1}}, indent=2))
  parsed = tool_calls.parse_completion(text, style="native")
  assert parsed.calls == (types.ToolCall("a", {"p": 1}),)


def test_n1_reads_the_list_in_the_last_block():
  calls = '[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]'
  text = f"<tool_call>no</tool_call><tool_call>{calls}</tool_call>"
  parsed = tool_calls.parse_completion(text, style="n1")
  assert [call.name for call in parsed.calls] == ["a", "b"]
  lone = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
  assert len(tool_calls.parse_completion(lone, style="n1").calls) == 1
  quoted = f"<tool_call>{json.dumps(calls)}</tool_call>"
  assert len(tool_calls.parse_completion(quoted, style="n1").calls) == 2
  empty = tool_calls.parse_completion("<tool_call>[]</tool_call>", style="n1")
  assert empty.status == Status.OK and empty.calls == ()


# ----- thinking -----


@pytest.mark.parametrize(
  ("text", "num_words"),
  [
    ("<think> one two\nthree </think>", 3),
    ("<think></think>", 0),
    ("no tags", 0),
    ("<think>a b", 0),
    ("a b</think>", 0),
    ("</think><think> a b </think> c </think>", 2),
    ("<think> a <think> b c </think>", 2),
    ("<think> a </think> b <think> c", 0),
  ],
)
def test_num_think_words_counts_last_thought(text, num_words):
  assert tool_calls.parse_completion(text).num_think_words == num_words


# ----- totality -----

_texts = st.lists(
  st.one_of(
    st.sampled_from(
      [
        *_PIECES,
        "{",
        "}",
        "[",
        '"name":',
        '"parameters":',
        '{"name": "a", "arguments": {"p": NaN}}',
        "\x00",
        "\ud800",
        "9" * 4400,
        "[" * 80,
        "﻿",
      ]
    ),
    st.text(max_size=8),
  ),
  max_size=14,
).map("".join)


@hypothesis.given(_texts, st.sampled_from(["toolrl", "native", "n1"]))
@hypothesis.settings(max_examples=400, deadline=None)
def test_parse_completion_never_raises(text, style):
  parsed = tool_calls.parse_completion(text, style=style)
  assert parsed.status in types.ParseStatus
  assert len(parsed.calls) == len(parsed.call_shapes)
  assert parsed.num_think_words >= 0
  for call in parsed.calls:
    assert isinstance(call.name, str) and isinstance(call.arguments, dict)


_json_values = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.floats(allow_nan=False)
  | st.text(max_size=6),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3)
  ),
  max_leaves=6,
)
_tags = st.sampled_from(["", "<tool_call>", "</tool_call>", "</think>"])
_names = st.tuples(_tags, st.text(max_size=5)).map("".join)
_calls = st.builds(
  types.ToolCall, _names, st.dictionaries(_names, _json_values, max_size=3)
)
_responses = st.none() | st.text(alphabet="ab c.\nxé", max_size=9).map(
  str.strip
)
_golds = st.builds(
  types.Gold, st.lists(_calls, max_size=3).map(tuple), _responses
)


@hypothesis.given(_golds)
@hypothesis.settings(max_examples=200, deadline=None)
def test_render_gold_is_undone_by_both_parsers(gold):
  text = tool_calls.render_gold(gold)
  assert tool_calls.parse_gold(text) == gold
  parsed = tool_calls.parse_completion(text)
  assert parsed.calls == gold.calls
  assert gold.kind in parsed.formats_one


@hypothesis.given(_golds, st.sampled_from(["native", "n1"]))
@hypothesis.settings(max_examples=200, deadline=None)
def test_render_gold_is_read_back_in_arguments_layouts(gold, style):
  text = tool_calls.render_gold(gold, style=style)
  parsed = tool_calls.parse_completion(text, style=style)
  assert parsed.calls == gold.calls
  assert parsed.response == (gold.response or None)
  assert parsed.has_think
  bare = tool_calls.render_gold(gold, style=style, think="")
  assert tool_calls.parse_completion(bare, style=style).calls == gold.calls


def test_render_gold_can_be_written_to_a_file():
  gold = types.Gold((types.ToolCall("a", {"p": "\ud800"}),))
  text = tool_calls.render_gold(gold)
  assert text.encode("utf-8").isascii()
  assert tool_calls.parse_gold(text) == gold


# ----- gold texts -----


def test_parse_gold_reads_each_kind():
  call = types.ToolCall("a", {"p": 1})
  answer = "\n<response> hi </response>"
  assert tool_calls.parse_gold(ONE_CALL) == types.Gold((call,), None)
  assert tool_calls.parse_gold(ONE_CALL + answer) == types.Gold((call,), "hi")
  only_answer = tool_calls.parse_gold("<think> t </think>" + answer)
  assert only_answer == types.Gold((), "hi")
  assert only_answer.kind == "response"
  assert tool_calls.parse_gold("<think> t </think>").kind == "none"
  assert tool_calls.parse_gold("<response></response>").kind == "response"


def test_parse_gold_ignores_tags_in_thinking_and_answer():
  text = ONE_CALL.replace("<think>t", "<think>a <tool_call> and <response>")
  assert tool_calls.parse_gold(text).calls == (types.ToolCall("a", {"p": 1}),)
  quoting = "<think>t</think>\n<response>use <tool_call></response>"
  assert tool_calls.parse_gold(quoting) == types.Gold((), "use <tool_call>")


@pytest.mark.parametrize(
  "text",
  [
    "",
    "just words",
    "<tool_call>\n{broken\n</tool_call>",
    "<tool_call>\n</tool_call>",
    "<tool_call>\n" + CALL_LINE,
    '<tool_call>\n{"name": "a"}\n</tool_call>',
    "<think>t</think>\n<response>cut off",
    '<tool_call>\n{"name": "a", "parameters": {"p": [NaN]}}\n</tool_call>',
  ],
)
def test_parse_gold_refuses_bad_gold_in_one_line(text):
  with pytest.raises(ValueError, match="gold") as error:
    tool_calls.parse_gold(text)
  assert "\n" not in str(error.value)


def test_parse_gold_reads_every_toolrl_row(shared_dir):
  folder = shared_dir / "data" / "toolrl"
  table = pyarrow.parquet.read_table(folder / "test.parquet")
  test_texts = [
    row["ground_truth"] for row in table["reward_model"].to_pylist()
  ]
  rows = json.loads((folder / "rlla_sft.json").read_text(encoding="utf-8"))
  # Calls a row, 0 to 5, as counted in the specification of the data.
  for texts, counts in (
    (test_texts, [9, 36, 23, 8, 3, 1]),
    ([row["output"] for row in rows], [54, 187, 109, 33, 13, 4]),
  ):
    golds = [tool_calls.parse_gold(text) for text in texts]
    num_calls = [len(gold.calls) for gold in golds]
    assert [num_calls.count(n) for n in range(6)] == counts
    assert all(gold.kind in ("calls", "response") for gold in golds)
