"""What each template shows of a dialogue."""

import pytest

from toolrl_jax import types
from toolrl_jax.data import prompt, templates

TOOL = {
  "name": "look",
  "description": "Looks.",
  "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}
MESSAGES = (
  {"role": "system", "content": "Sys."},
  {"role": "user", "content": "one"},
  {
    "role": "assistant",
    "content": "",
    "think": "old",
    "calls": (types.ToolCall("look", {"at": "é"}),),
  },
  {"role": "tool", "name": "look", "content": "three"},
  {"role": "assistant", "content": "four", "think": "older"},
  {"role": "user", "content": "five"},
  {
    "role": "assistant",
    "content": "six",
    "think": "new",
    "calls": (
      types.ToolCall("look", {"at": "a"}),
      types.ToolCall("look", {"at": "b"}),
    ),
  },
  {"role": "tool", "name": "look", "content": "seven"},
  {"role": "tool", "name": "look", "content": "eight"},
)
EXAMPLE = types.Example("e", MESSAGES, (TOOL,), types.Gold())
VERBATIM = types.Example(
  "v",
  MESSAGES,
  (TOOL,),
  types.Gold(),
  verbatim=(
    {"role": "system", "content": "Exact system."},
    {"role": "user", "content": "Exact user. "},
  ),
)
UNPARSED = VERBATIM._replace(messages=(), tools=())

NATIVE_HEAD = """\
<|im_start|>system
Sys.

# Tools
<tools>
{"type": "function", "function": {"name": "look", "description": "Looks.", \
"parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
</tools><|im_end|>
<|im_start|>user
one<|im_end|>
"""
NATIVE_OLD = """\
<|im_start|>assistant
<tool_call>
{"name": "look", "arguments": {"at": "é"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
three
</tool_response><|im_end|>
<|im_start|>assistant
four<|im_end|>
<|im_start|>user
five<|im_end|>
"""
NATIVE_NEW = """\
<|im_start|>assistant
<think> new </think>
six
<tool_call>
{"name": "look", "arguments": {"at": "a"}}
</tool_call>
<tool_call>
{"name": "look", "arguments": {"at": "b"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
seven
</tool_response>
<tool_response>
eight
</tool_response><|im_end|>
<|im_start|>assistant
"""


def test_native_is_the_chat_template_turn_by_turn(chat_tokenizer):
  text = prompt.render(EXAMPLE, chat_tokenizer, template="native")
  assert text == NATIVE_HEAD + NATIVE_OLD + NATIVE_NEW


def test_native_can_drop_all_thinking(chat_tokenizer):
  text = prompt.render(
    EXAMPLE, chat_tokenizer, template="native", thinking="drop"
  )
  new = NATIVE_NEW.replace("<think> new </think>\n", "")
  assert text == NATIVE_HEAD + NATIVE_OLD + new


def test_native_can_keep_thinking_that_the_template_drops(chat_tokenizer):
  text = prompt.render(
    EXAMPLE, chat_tokenizer, template="native", thinking="keep"
  )
  old = NATIVE_OLD.replace(
    "assistant\n<tool", "assistant\n<think>\nold\n</think>\n\n<tool"
  ).replace("\nfour", "\n<think>\nolder\n</think>\n\nfour")
  new = NATIVE_NEW.replace("<think> new </think>", "<think>\nnew\n</think>\n")
  assert text == NATIVE_HEAD + old + new


@pytest.mark.parametrize("template", ["native", "context"])
def test_extra_system_text_follows_the_own(chat_tokenizer, template):
  text = prompt.render(
    EXAMPLE, chat_tokenizer, template=template, system="More."
  )
  assert text.startswith("<|im_start|>system\nSys.\n\nMore.\n\n# Tools\n")


def test_context_is_one_user_message(chat_tokenizer):
  text = prompt.render(EXAMPLE, chat_tokenizer, template="context")
  assert text.count("<|im_start|>user") == 1
  assert text.startswith(NATIVE_HEAD.partition("<|im_start|>user")[0])
  assert text.endswith(
    """\
[user]
five

[assistant]
<think>
new
</think>
six
<tool_call>
{"name": "look", "arguments": {"at": "a"}}
</tool_call>
<tool_call>
{"name": "look", "arguments": {"at": "b"}}
</tool_call>

[tool]
<tool_response>
seven
</tool_response>

[tool]
<tool_response>
eight
</tool_response>

Give the assistant's next turn.<|im_end|>
<|im_start|>assistant
"""
  )


@pytest.mark.parametrize(
  ("thinking", "shown"),
  [("official", ["new"]), ("keep", ["old", "older", "new"]), ("drop", [])],
)
def test_context_text_shows_thinking_as_asked(thinking, shown):
  text = templates.context_text(MESSAGES[1:], thinking=thinking)
  words = [part.split("\n</think>")[0] for part in text.split("<think>\n")[1:]]
  assert words == shown


def test_toolrl_keeps_the_bytes_of_a_row_that_has_them(chat_tokenizer):
  text = prompt.render(VERBATIM, chat_tokenizer)
  assert text == (
    "<|im_start|>system\nExact system.<|im_end|>\n"
    "<|im_start|>user\nExact user. <|im_end|>\n<|im_start|>assistant\n"
  )
  assert prompt.render(UNPARSED, chat_tokenizer) == text
  more = prompt.render(VERBATIM, chat_tokenizer, system="More.")
  assert more == text.replace("system.", "system.\n\nMore.")


def test_toolrl_can_drop_the_thinking_of_such_a_row(chat_tokenizer):
  text = prompt.render(VERBATIM, chat_tokenizer, thinking="drop")
  assert text.startswith("<|im_start|>system\nExact system.<|im_end|>\n")
  assert "<think>" not in text and "<user> one </user>" in text
  # Nothing to drop: the bytes stay.
  plain = VERBATIM._replace(messages=({"role": "user", "content": "x"},))
  assert "Exact user. " in prompt.render(plain, chat_tokenizer, thinking="drop")


def test_toolrl_renders_other_rows_in_the_layout(chat_tokenizer):
  text = prompt.render(EXAMPLE, chat_tokenizer)
  assert text.startswith("<|im_start|>system\nSys.\n\n**Available Tools**\n")
  assert "\n1. Name: look\nDescription: Looks.\nParameters: " in text
  assert text.count("<|im_start|>user") == 1
  assert "<think> old </think>\n<tool_call>\n" in text
  assert text.endswith(
    "<tool_call>\n"
    '{"name": "look", "parameters": {"at": "a"}}\n'
    '{"name": "look", "parameters": {"at": "b"}}\n'
    "</tool_call>\n<response> six </response>\n"
    '<obs> [{"name": "look", "results": "seven"},'
    ' {"name": "look", "results": "eight"}] </obs><|im_end|>\n'
    "<|im_start|>assistant\n"
  )
  dropped = prompt.render(EXAMPLE, chat_tokenizer, thinking="drop")
  assert "<think> old" not in dropped


@pytest.mark.parametrize(
  ("template", "thinking"),
  [("native", "official"), ("context", "keep"), ("toolrl", "drop")],
)
def test_a_row_whose_dialogue_is_unknown_is_refused(
  chat_tokenizer, template, thinking
):
  with pytest.raises(templates.RowError, match="could not be read"):
    prompt.render(
      UNPARSED, chat_tokenizer, template=template, thinking=thinking
    )
