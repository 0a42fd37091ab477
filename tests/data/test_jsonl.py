"""The package's own JSONL format."""

import json

import pytest

from toolrl_jax import types
from toolrl_jax.data import jsonl

USER = {"role": "user", "content": "A room for two."}
SCHEMA = {"type": "object", "properties": {"guests": {"type": "integer"}}}
TOOL = {"name": "book", "description": "Books.", "parameters": SCHEMA}
CALL = {"name": "book", "arguments": {"guests": 2}}
LINE = {
  "id": "r1",
  "messages": [USER],
  "tools": [TOOL],
  "gold": {"calls": [CALL]},
}


def read(line):
  return jsonl.read_line(json.dumps(line), default_id="f:1")


def test_read_line_reads_a_single_step():
  (row,) = read(LINE)
  assert row.example == types.Example(
    id="r1",
    messages=(USER,),
    tools=(TOOL,),
    gold=types.Gold(calls=(types.ToolCall("book", {"guests": 2}),)),
  )
  assert (row.think, row.target) == ("", None)


def test_read_line_fills_in_what_may_be_missing():
  (row,) = read({"messages": [USER], "gold": {"response": "Done."}})
  assert row.example == types.Example(
    "f:1", (USER,), (), types.Gold((), "Done.")
  )


def test_read_line_reads_gold_without_any_call():
  (row,) = read(LINE | {"gold": {"calls": []}})
  assert row.example.gold.kind == "none"


def test_read_line_keeps_thinking_and_exact_target():
  (row,) = read(
    LINE | {"gold": {"calls": [CALL], "think": "Easy."}, "target": "exact"}
  )
  assert (row.think, row.target) == ("Easy.", "exact")


def test_read_line_reads_openai_forms():
  (row,) = read(
    {
      "messages": [
        USER,
        {
          "role": "assistant",
          "content": None,
          "reasoning_content": "Book it.",
          "tool_calls": [
            {
              "id": "1",
              "type": "function",
              "function": {"name": "book", "arguments": '{"guests": 2}'},
            }
          ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
      ],
      "tools": [{"type": "function", "function": TOOL}],
      "gold": {"response": "Booked."},
    }
  )
  assert row.example.tools == (TOOL,)
  assert row.example.messages[1:] == (
    {
      "role": "assistant",
      "content": "",
      "think": "Book it.",
      "calls": (types.ToolCall("book", {"guests": 2}),),
    },
    {"role": "tool", "content": "ok", "name": "book"},
  )


def test_read_line_wraps_a_flat_map_of_parameters():
  flat = {"guests": {"type": "int", "description": "How many."}}
  (row,) = read(LINE | {"tools": [TOOL | {"parameters": flat}]})
  assert row.example.tools[0]["parameters"] == {
    "type": "object",
    "properties": flat,
  }
  (row,) = read(LINE | {"tools": [{"name": "stop"}]})
  assert row.example.tools[0]["parameters"] == {
    "type": "object",
    "properties": {},
  }


def test_read_line_cuts_a_trajectory():
  turns = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL], "step": True},
    {"role": "tool", "content": "ok"},
    {"role": "assistant", "content": "Booked.", "think": "It worked."},
  ]
  rows = read({"id": "t", "messages": turns, "tools": [TOOL]})
  assert [row.example.id for row in rows] == ["t/1"]
  rows = read({"id": "t", "messages": turns, "steps": "all"})
  assert [row.example.id for row in rows] == ["t/1", "t/2"]
  assert [row.think for row in rows] == ["", "It worked."]
  assert all("step" not in m for row in rows for m in row.example.messages)


@pytest.mark.parametrize(
  ("line", "reason"),
  [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ('{"messages": NaN}', "not JSON: it holds NaN"),
    ("[]", "must be a JSON object"),
    ("{}", "messages must be a list"),
    ({"messages": [{"role": "bot"}]}, "role is one of"),
    ({"messages": [USER, {"role": "system"}]}, "only the first"),
    ({"messages": [{"role": "user", "content": 5}]}, "content must be text"),
    ({"messages": [USER]}, "a line needs gold"),
    ({"messages": [USER], "steps": "some"}, "steps must be"),
    ({"messages": [USER], "max_user_turns": -1}, "max_user_turns"),
    (LINE | {"messages": [{"role": "system", "content": "a"}]}, "a user turn"),
    (
      LINE | {"messages": [USER, {"role": "assistant", "content": "b"}]},
      "must end with a user",
    ),
    (LINE | {"gold": "book()"}, "gold must be an object"),
    (LINE | {"gold": {}}, "gold must be an object"),
    (LINE | {"gold": {"response": 1}}, "must be text"),
    (LINE | {"gold": {"calls": [{"name": 1}]}}, "a call must have a name"),
    (
      LINE | {"gold": {"calls": [{"name": "a", "arguments": "{"}]}},
      "arguments are not JSON",
    ),
    (LINE | {"gold": {"calls": ["book"]}}, "must be an object"),
    (LINE | {"target": 1}, "target must be text"),
    (LINE | {"tools": {}}, "tools must be a list"),
    (LINE | {"tools": [{"name": 1}]}, "a tool must have a name"),
    (LINE | {"tools": [TOOL | {"parameters": []}]}, None),
    (
      LINE | {"tools": [TOOL | {"parameters": {"properties": {"a": 1}}}]},
      "must each be an object",
    ),
  ],
)
def test_read_line_says_what_is_wrong(line, reason):
  text = line if isinstance(line, str) else json.dumps(line)
  if reason is None:
    assert len(jsonl.read_line(text, default_id="f:1")) == 1
    return
  with pytest.raises(ValueError, match=reason):
    jsonl.read_line(text, default_id="f:1")
