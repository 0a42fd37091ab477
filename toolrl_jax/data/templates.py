"""What a prompt shows: the messages and tools a chat template is given.

From `types.Example` to the arguments of a chat template. Three templates:

    toolrl   The ToolRL layout, the whole dialogue as one user message
             (arXiv:2504.13958). Rows that came in it keep their bytes.
    native   The checkpoint's chat template, turn by turn, with its tools.
    context  The checkpoint's tools in the system message, the whole dialogue
             as one user message (arXiv:2606.00135; the paper does not give
             the exact text, so the wording is ours).

`thinking` says which recorded thinking of earlier turns is shown:

    template  official                      keep               drop
    toolrl    all (the data's own form)     all                none
    native    what the chat template does   all turns          none
    context   after the last user turn      all turns          none

Under native and context an assistant turn with `raw`, its text as a model
wrote it, shows that text, less the thinking that is not to be seen ("official"
is then: after the last user turn, as Qwen3's chat template has it).

This module knows neither tokens nor files.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolrl_jax import types
from toolrl_jax.data import toolrl_layout

Template = Literal["toolrl", "native", "context"]
Thinking = Literal["official", "keep", "drop"]


class RowError(ValueError):
  """One row cannot be shown under a template; other rows can."""


def conversation(
  example: types.Example,
  *,
  template: Template,
  thinking: Thinking,
  system: str,
  think_mark: str,
  wrap_tools: bool = True,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str]]:
  """Builds what the chat template is given.

  Args:
    example: Row to show.
    template: See the module.
    thinking: See the module.
    system: Extra system text after the row's own; empty is none.
    think_mark: Start of the marks that stand for thinking in the messages.
    wrap_tools: Whether tools come as {"type": "function", "function": ...}.

  Returns:
    Messages, tools, and the text of each thinking mark in the messages.

  Raises:
    RowError: The row cannot be shown under this template.
    ValueError: The template is unknown.
  """
  if template == "toolrl":
    return _toolrl_messages(example, thinking, system), [], {}
  if not example.messages:
    raise RowError(
      "its dialogue could not be read from the ToolRL layout; only"
      " prompt.template toolrl can show it"
    )
  tools: list[dict[str, Any]] = [
    {"type": "function", "function": tool} if wrap_tools else dict(tool)
    for tool in example.tools
  ]
  own, turns = _split_system(example.messages)
  system = "\n\n".join(text for text in (own, system) if text)
  messages = [{"role": "system", "content": system}] if system else []
  if template == "context":
    text = context_text(turns, thinking=thinking)
    return [*messages, {"role": "user", "content": text}], tools, {}
  if template != "native":
    raise ValueError(
      f"prompt.template must be toolrl, native or context, got {template!r}."
    )
  thoughts: dict[str, str] = {}
  last_user = _last_user(turns)
  for position, turn in enumerate(turns):
    if "raw" in turn:
      # Chat templates rewrite calls and thinking; a mark passes them.
      mark = f"{think_mark}{len(thoughts)}]"
      thoughts[mark] = _shown_raw(turn["raw"], thinking, position > last_user)
      messages.append({"role": turn["role"], "content": mark})
      continue
    message = _native_message(turn, is_think_passed=thinking == "official")
    if thinking == "keep" and turn.get("think"):
      # Chat templates drop old thinking; a mark in the content passes them.
      mark = f"{think_mark}{len(thoughts)}]"
      thoughts[mark] = f"<think>\n{turn['think']}\n</think>\n"
      # Chat templates break the line before a call, not before an answer.
      thoughts[mark] += "\n" if turn["content"] else ""
      message["content"] = mark + turn["content"]
    messages.append(message)
  return messages, tools, thoughts


def _toolrl_messages(
  example: types.Example, thinking: Thinking, extra: str
) -> list[dict[str, Any]]:
  is_think_shown = thinking != "drop"
  if example.verbatim is None:
    role, turns = _split_system(example.messages)
    head = toolrl_layout.system_text(example.tools, role=role, extra=extra)
    dialogue = toolrl_layout.dialogue_text(turns, is_think_shown=is_think_shown)
  else:
    head, dialogue = (message["content"] for message in example.verbatim)
    head = f"{head}\n\n{extra}" if extra else head
    if not is_think_shown and not example.messages:
      raise RowError(
        "its dialogue could not be read from the ToolRL layout;"
        " prompt.thinking drop cannot find the thinking in it"
      )
    if not is_think_shown and toolrl_layout.has_think(example.messages):
      dialogue = toolrl_layout.dialogue_text(
        example.messages, is_think_shown=False
      )
  return [
    {"role": "system", "content": head},
    {"role": "user", "content": dialogue},
  ]


def _split_system(
  messages: Sequence[Mapping[str, Any]],
) -> tuple[str, Sequence[Mapping[str, Any]]]:
  if messages and messages[0]["role"] == "system":
    return messages[0]["content"], messages[1:]
  return "", messages


def _native_message(
  turn: Mapping[str, Any], *, is_think_passed: bool
) -> dict[str, Any]:
  message = {"role": turn["role"], "content": turn["content"]}
  if turn["role"] == "tool" and "name" in turn:
    message["name"] = turn["name"]
  if turn.get("calls"):
    message["tool_calls"] = [
      {
        "type": "function",
        "function": {"name": call.name, "arguments": dict(call.arguments)},
      }
      for call in turn["calls"]
    ]
  if is_think_passed and turn.get("think"):
    message["reasoning_content"] = turn["think"]
  return message


def _last_user(turns: Sequence[Mapping[str, Any]]) -> int:
  """Returns the position of the last user turn, -1 when there is none."""
  return max(
    (i for i, turn in enumerate(turns) if turn["role"] == "user"), default=-1
  )


def _shown_raw(text: str, thinking: Thinking, is_current: bool) -> str:
  """Returns what is shown of an answer: all of it, or what follows thinking."""
  if thinking == "keep" or (thinking == "official" and is_current):
    return text
  _, is_ended, rest = text.rpartition("</think>")
  return rest.lstrip("\n") if is_ended else text


def context_text(
  turns: Sequence[Mapping[str, Any]], *, thinking: Thinking = "official"
) -> str:
  """Renders a dialogue as the one user message of the context template.

  Args:
    turns: History without the system message.
    thinking: See the module.

  Returns:
    The user message.
  """
  last_user = _last_user(turns)
  blocks = ["This is the dialogue so far."]
  for position, turn in enumerate(turns):
    lines = [f"[{turn['role']}]"]
    if "raw" in turn:
      lines.append(_shown_raw(turn["raw"], thinking, position > last_user))
      blocks.append("\n".join(lines))
      continue
    is_think_shown = thinking == "keep" or (
      thinking == "official" and position > last_user
    )
    if is_think_shown and turn.get("think"):
      lines.append(f"<think>\n{turn['think']}\n</think>")
    if turn["role"] == "tool":
      lines.append(f"<tool_response>\n{turn['content']}\n</tool_response>")
    elif turn["content"]:
      lines.append(turn["content"])
    for call in turn.get("calls", ()):
      document = {"name": call.name, "arguments": dict(call.arguments)}
      text = json.dumps(document, ensure_ascii=False)
      lines.append(f"<tool_call>\n{text}\n</tool_call>")
    blocks.append("\n".join(lines))
  blocks.append("Give the assistant's next turn.")
  return "\n\n".join(blocks)
