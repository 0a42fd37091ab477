import json

import hypothesis
import pytest
from hypothesis import strategies

from toolrl_jax.serving import answer

pytestmark = pytest.mark.quick

CALL = '{"name": "f", "parameters": {"a": 1}}'
NATIVE = '{"name": "f", "arguments": {"a": 1}}'


def _read(text, style="toolrl", *, is_call_wanted=True):
  return answer.read(text, style, is_call_wanted=is_call_wanted)


@pytest.mark.parametrize(
  ("style", "text", "expected"),
  [
    (
      "toolrl",
      f"<think> why </think>\n<tool_call>\n{CALL}\n{CALL}\n</tool_call>",
      ("why", "", (("f", '{"a": 1}'),) * 2),
    ),
    (
      "toolrl",
      f"<think>t</think>\n<tool_call>\n{CALL}\n</tool_call>\n"
      "<response> said </response>",
      ("t", "said", (("f", '{"a": 1}'),)),
    ),
    ("toolrl", "<think>t</think>\n<response> so </response>", ("t", "so", ())),
    # Cut in the response, and in the thought.
    ("toolrl", "<think>t</think>\n<response> so it", ("t", "so it", ())),
    ("toolrl", "<think> so it", ("so it", "", ())),
    ("toolrl", "no tags at all", ("", "no tags at all", ())),
    # Calls that cannot be read stay as text.
    (
      "toolrl",
      "<think>t</think>\n<tool_call>\n{oops\n</tool_call>",
      ("t", "<tool_call>\n{oops\n</tool_call>", ()),
    ),
    (
      "native",
      f"well\n<tool_call>\n{NATIVE}\n</tool_call>",
      ("", "well", (("f", '{"a": 1}'),)),
    ),
    (
      "native",
      f"<think>\nt\n</think>\n\n<tool_call>\n{NATIVE}\n</tool_call>",
      ("t", "", (("f", '{"a": 1}'),)),
    ),
    ("native", "plain <tool_call>{", ("", "plain <tool_call>{", ())),
    (
      "n1",
      f"<think>t</think><tool_call>[{NATIVE}]</tool_call>",
      ("t", "", (("f", '{"a": 1}'),)),
    ),
  ],
)
def test_read_gives_thought_content_and_calls(style, text, expected):
  assert tuple(_read(text, style)) == expected


def test_read_without_tools_leaves_calls_in_the_content():
  text = f"<tool_call>\n{CALL}\n</tool_call>"
  assert tuple(_read(text, is_call_wanted=False)) == ("", text, ())


def test_calls_with_numbers_and_names_that_json_has_not_can_be_sent():
  line = '{"name": "f\\ud800", "parameters": {"a": [NaN, 1e999, "\\udc00"]}}'
  ((name, arguments),) = _read(f"<tool_call>\n{line}\n</tool_call>").calls
  assert name == "f?"
  assert json.loads(arguments) == {"a": [None, None, "?"]}


def test_feed_releases_thought_and_content_before_the_end():
  reader = answer.AnswerReader("toolrl", is_call_wanted=True)
  told = [
    tuple(reader.feed(piece))[:2]
    for piece in (
      "<thi", "nk> be", "cause", " </th", "ink>\n<resp", "onse> Good ", "day",
      " </res",
    )
  ]  # fmt: skip
  assert told == [
    ("", ""), ("be", ""), ("cause", ""), ("", ""), ("", ""), ("", "Good"),
    ("", " day"), ("", ""),
  ]  # fmt: skip
  assert tuple(reader.feed("ponse>")) == ("", "", ())
  assert tuple(reader.finish()) == ("", "", ())


_PARTS = strategies.sampled_from(
  [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<response>",
    "</response>", "\n", " ", "word", "é", "<", "</", CALL, NATIVE,
    f"<tool_call>\n{CALL}\n</tool_call>", f"<tool_call>{NATIVE}</tool_call>",
    "<response> hello there </response>", "<think> t </think>\n",
  ]
)  # fmt: skip


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
  strategies.lists(_PARTS, max_size=8).map("".join),
  strategies.sampled_from(["toolrl", "native", "n1"]),
  strategies.booleans(),
  strategies.integers(1, 7),
)
def test_pieces_add_up_to_the_whole_for_any_text(text, style, wanted, size):
  reader = answer.AnswerReader(style, is_call_wanted=wanted)
  pieces = [
    reader.feed(text[start : start + size])
    for start in range(0, len(text), size)
  ]
  pieces.append(reader.finish())
  whole = _read(text, style, is_call_wanted=wanted)
  assert "".join(piece.reasoning for piece in pieces) == whole.reasoning
  assert "".join(piece.content for piece in pieces) == whole.content
  assert pieces[-1].calls == whole.calls
  assert not any(piece.calls for piece in pieces[:-1])
