"""The ToolRL layout, read and written."""

import json

import pyarrow.parquet
import pytest

from toolrl_jax import types
from toolrl_jax.data import toolrl_layout

TOOL = {
  "name": "find hotel",
  "description": "Finds a hotel.\n2. Name: not an entry",
  "parameters": {
    "type": "object",
    "properties": {
      "city": {"type": "string", "description": "Where."},
      "stars": {"type": "int", "description": "How good.", "default": 3},
    },
    "required": ["city"],
  },
}
MESSAGES = (
  {"role": "user", "content": "A hotel in Rome?"},
  {
    "role": "assistant",
    "content": "",
    "think": "I look.",
    "calls": (types.ToolCall("find hotel", {"city": "Rome"}),),
  },
  {"role": "tool", "name": "find hotel", "content": '{"id": 7}'},
  {"role": "assistant", "content": "Number 7.", "think": "Found."},
  {"role": "user", "content": "Another one."},
)
DIALOGUE = """\
**Dialogue Records History**
<user> A hotel in Rome? </user>

<think> I look. </think>
<tool_call>
{"name": "find hotel", "parameters": {"city": "Rome"}}
</tool_call>
<obs> [{"name": "find hotel", "results": {"id": 7}}] </obs>

<think> Found. </think>
<response> Number 7. </response>

<user> Another one. </user>"""


def test_dialogue_text_has_the_blocks_of_the_layout():
  assert toolrl_layout.dialogue_text(MESSAGES) == DIALOGUE


def test_dialogue_text_can_leave_thinking_out():
  text = toolrl_layout.dialogue_text(MESSAGES, is_think_shown=False)
  expected = DIALOGUE.replace("<think> I look. </think>\n", "")
  assert text == expected.replace("<think> Found. </think>\n", "")


def test_parse_dialogue_reads_what_dialogue_text_wrote():
  assert toolrl_layout.parse_dialogue(DIALOGUE) == MESSAGES


def test_dialogue_text_joins_results_of_several_calls():
  messages = (
    {"role": "user", "content": "Both."},
    {"role": "tool", "name": "a", "content": "plain"},
    {"role": "tool", "name": "b", "content": "[1, 2]"},
  )
  text = toolrl_layout.dialogue_text(messages)
  assert text.endswith(
    '<obs> [{"name": "a", "results": "plain"},'
    ' {"name": "b", "results": [1, 2]}] </obs>'
  )
  assert toolrl_layout.parse_dialogue(text) == messages


def test_dialogue_text_shows_a_result_without_name_as_it_is():
  messages = (
    {"role": "user", "content": "Go."},
    {"role": "tool", "content": "done"},
  )
  text = toolrl_layout.dialogue_text(messages)
  assert text.endswith("<user> Go. </user>\n\n<obs> done </obs>")


def test_system_text_lists_tools_by_the_layout():
  text = toolrl_layout.system_text([TOOL], extra="Be brief.")
  entry = (
    "1. Name: find hotel\nDescription: Finds a hotel.\n2. Name: not an entry\n"
    'Parameters: {"city": {"description": "Where.", "type": "string",'
    ' "default": ""}, "stars": {"description": "How good.", "type":'
    ' "int, optional", "default": 3}}\n\n**Steps for Each Turn**\n'
  )
  assert entry in text
  headings = [line for line in text.splitlines() if line.startswith("**")]
  assert headings == [
    "**Available Tools**",
    "**Steps for Each Turn**",
    "**Output Format**",
    "**Important Notes**",
  ]
  assert text.endswith("\n\nBe brief.")


def test_parse_tools_is_not_misled_by_a_numbered_line():
  role, tools = toolrl_layout.parse_tools(
    toolrl_layout.system_text([TOOL, TOOL], role="Role.")
  )
  assert role == "Role."
  assert [tool["name"] for tool in tools] == ["find hotel", "find hotel"]
  assert tools[0]["description"] == TOOL["description"]


def test_parse_dialogue_keeps_text_that_mentions_a_tag():
  text = "**Dialogue Records History**\n<user> What is </user> in XML? </user>"
  assert toolrl_layout.parse_dialogue(text) == (
    {"role": "user", "content": "What is </user> in XML?"},
  )


@pytest.mark.parametrize(
  ("text", "reason"),
  [
    ("<user> hi </user>", "must start with"),
    ("**Dialogue Records History**\nhello", "no block"),
    ("**Dialogue Records History**\n<obs> x </obs>", "no <user>"),
    (
      "**Dialogue Records History**\n<user> a </user>\n"
      "<response> b </response>",
      "must end with",
    ),
    (
      "**Dialogue Records History**\n<user> a </user>\n"
      "<tool_call>\nnot JSON\n</tool_call>\n<obs> b </obs>",
      "gold calls",
    ),
  ],
)
def test_parse_dialogue_says_what_is_wrong(text, reason):
  with pytest.raises(ValueError, match=reason):
    toolrl_layout.parse_dialogue(text)


@pytest.mark.parametrize(
  ("listing", "reason"),
  [
    ("1. Name: a\nParameters: {}", "lacks a field"),
    ("1. Name: a\nDescription: b\nParameters: {", "not JSON"),
    ("1. Name: a\nDescription: b\nParameters: []", "not a JSON object"),
  ],
)
def test_parse_tools_says_what_is_wrong(listing, reason):
  text = f"**Available Tools**\nLead.\n{listing}\n\n**Steps for Each Turn**\n"
  with pytest.raises(ValueError, match=reason):
    toolrl_layout.parse_tools(text)
  with pytest.raises(ValueError, match="needs"):
    toolrl_layout.parse_tools("no list")


def test_real_rows_are_read_and_written_alike(shared_dir):
  folder = shared_dir / "data" / "toolrl"
  table = pyarrow.parquet.read_table(folder / "test.parquet").to_pylist()
  rows = [[item["content"] for item in row["prompt"]] for row in table]
  raw = json.loads((folder / "rlla_sft.json").read_text())
  rows += [[row["instruction"], row["input"]] for row in raw]
  different, num_tools = [], []
  for system, user in rows:
    messages, tools = toolrl_layout.parse_rows(system, user)
    if toolrl_layout.dialogue_text(messages) != user:
      different.append(user)
    num_tools.append(len(tools))
    listing = system.partition("You are")[2].partition("**Available")[2]
    # Every tool comes out of our own system text as it went in.
    text = toolrl_layout.system_text(tools)
    assert toolrl_layout.parse_tools(text)[1] == tools
    assert listing.count("\nParameters: ") == len(tools)
  assert len(rows) == 480
  assert (max(num_tools[:80]), max(num_tools[80:])) == (7, 8)
  # Four dialogues spell letters as escapes in their observations; the others
  # come out byte for byte.
  assert len(different) == 4
  assert all(r"\u" in user for user in different)
