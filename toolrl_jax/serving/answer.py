"""The text of a completion to a chat message, whole and while it comes.

From text to thought, content and tool calls, by the parser that scores
training. Calls are known at the end only, since one that cannot be read
changes what the others mean; thought and content are released before it as
far as nothing that may follow can change them. The released pieces always add
up to the whole. Model text is data: nothing here raises. Knows no tokens.
"""

import json
import math
from typing import Any, NamedTuple

from toolrl_jax import types
from toolrl_jax.model import text_stream
from toolrl_jax.parsing import tool_calls

_THINK = ("<think>", "</think>")
_CALL = "<tool_call>"
_RESPONSE = ("<response>", "</response>")


class Message(NamedTuple):
  """A chat message, or what one gained.

  Attributes:
    reasoning: The thought; empty when there is none.
    content: What is said to the user; empty when nothing is.
    calls: Calls that could be read, each as name and JSON text of arguments.
  """

  reasoning: str = ""
  content: str = ""
  calls: tuple[tuple[str, str], ...] = ()


class AnswerReader:
  """Reads one completion as it comes."""

  def __init__(self, style: tool_calls.Style, *, is_call_wanted: bool):
    """Starts before the first text.

    Args:
      style: Layout of the calls that the model was asked for.
      is_call_wanted: Whether the request has tools; else calls are text.
    """
    self._style, self._is_call_wanted = style, is_call_wanted
    self._text = ""
    self._told = Message()

  def feed(self, text: str) -> Message:
    """Takes more text and returns what is certain and new."""
    self._text += text
    return self._tell(certain(self._text, self._style))

  def finish(self) -> Message:
    """Returns what is left at the end, with the calls."""
    return self._tell(
      read(self._text, self._style, is_call_wanted=self._is_call_wanted)
    )

  def _tell(self, message: Message) -> Message:
    told, self._told = self._told, message
    return Message(
      message.reasoning[len(told.reasoning) :],
      message.content[len(told.content) :],
      message.calls,
    )


def read(
  text: str, style: tool_calls.Style, *, is_call_wanted: bool
) -> Message:
  """Reads a whole completion.

  Args:
    text: The completion without its end token.
    style: Layout of its calls.
    is_call_wanted: Whether calls are calls; else they stay in the content.

  Returns:
    The message. Calls that cannot be read stand in the content as they are.
  """
  parsed = tool_calls.parse_completion(text, style=style)
  thought, rest, _ = _split(text)
  said = rest.strip()
  calls = parsed.calls if is_call_wanted else ()
  is_toolrl = style == "toolrl"
  has_response = parsed.response is not None
  if has_response and (is_toolrl or calls):
    said = parsed.response or ""
  elif is_toolrl and said.startswith(_RESPONSE[0]):
    said = said.removeprefix(_RESPONSE[0]).strip()  # It was cut.
  elif calls:
    said = ""
  return Message(
    thought.strip(),
    said,
    tuple((_encodable(call.name), _json(call)) for call in calls),
  )


def certain(text: str, style: tool_calls.Style) -> Message:
  """Returns what a completion says whatever follows.

  Args:
    text: The completion so far.
    style: Layout of its calls.

  Returns:
    A message without calls, whose texts begin those of the whole.
  """
  thought, rest, is_thinking = _split(text)
  if is_thinking:
    return Message(_until(thought, _THINK[1]))
  return Message(thought.strip(), _certain_content(text, rest.lstrip(), style))


def _certain_content(text: str, rest: str, style: tool_calls.Style) -> str:
  if style != "toolrl":
    return _until(rest, _CALL)
  # Only what stands in the first response of the whole text is the content,
  # and a text without any is known to be so at the end.
  is_first = text.find(_RESPONSE[0]) == len(text) - len(rest)
  if not is_first:
    return ""
  return _until(rest.removeprefix(_RESPONSE[0]).lstrip(), _RESPONSE[1])


def _split(text: str) -> tuple[str, str, bool]:
  """Returns thought, what follows it, and whether the thought still goes on.

  While the text may yet turn out to begin with a thought, it does go on.
  """
  head = text.lstrip()
  if not head.startswith(_THINK[0]):
    return "", text, _THINK[0].startswith(head)
  thought, is_ended, rest = head.removeprefix(_THINK[0]).partition(_THINK[1])
  return thought.lstrip(), rest, not is_ended


def _until(text: str, tag: str) -> str:
  """Returns what stands before a tag, or before what may become one."""
  before, is_there, _ = text.partition(tag)
  if not is_there:
    before = text[: len(text) - text_stream.held_length(text, (tag,))]
  return before.rstrip()


def _json(call: types.ToolCall) -> str:
  """Writes arguments as JSON; numbers that JSON has not become null."""
  arguments = _without_nan(dict(call.arguments))
  return _encodable(json.dumps(arguments, ensure_ascii=False))


def _encodable(text: str) -> str:
  """Replaces the halves of characters that JSON's escapes can spell."""
  return text.encode("utf-8", "replace").decode("utf-8")


def _without_nan(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _without_nan(item) for key, item in value.items()}
  if isinstance(value, list):
    return [_without_nan(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
