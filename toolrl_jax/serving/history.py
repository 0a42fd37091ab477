"""Messages and tools of a chat request to the record that templates show.

From `ChatRequest` to `types.Example`, the same form that rows of training data
have, so that the prompt of a served request is that of a training row. Knows
neither templates nor tokens.
"""

from collections.abc import Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.parsing import call_objects
from toolrl_jax.serving import chat_request
from toolrl_jax.serving.api_error import ApiError

_NO_PARAMETERS = {"type": "object", "properties": {}}


def example(request: chat_request.ChatRequest) -> types.Example:
  """Returns the history and the tools of a request.

  Args:
    request: A checked request.

  Raises:
    ApiError: A message does not fit the ones before it; status 400.
  """
  names: dict[str, str] = {}
  messages = []
  for position, message in enumerate(request.messages):
    where = f"messages.{position}"
    match message:
      case chat_request.SystemMessage():
        if position:
          raise ApiError(
            400, "a system message must be the first one.", param=where
          )
        turn = {"role": "system", "content": _text(message.content)}
      case chat_request.UserMessage():
        turn = {"role": "user", "content": _text(message.content)}
      case chat_request.AssistantMessage():
        turn = _assistant(message, where)
        names |= {call.id: call.function.name for call in _calls(message)}
      case chat_request.ToolMessage():
        if message.tool_call_id not in names:
          raise ApiError(
            400,
            "a tool message must answer a call of an assistant message before "
            "it: its tool_call_id is that of none.",
            param=f"{where}.tool_call_id",
          )
        turn = {
          "role": "tool",
          "content": _text(message.content),
          "name": names[message.tool_call_id],
        }
    messages.append(turn)
  tools = request.tools if request.is_tools_shown else None
  return types.Example(
    "request", tuple(messages), tuple(map(_tool, tools or ())), types.Gold()
  )


def _text(content: chat_request.Content | None) -> str:
  if content is None or isinstance(content, str):
    return content or ""
  return "".join(part.text for part in content)


def _calls(
  message: chat_request.AssistantMessage,
) -> Sequence[chat_request.Call]:
  return message.tool_calls or ()


def _assistant(
  message: chat_request.AssistantMessage, where: str
) -> dict[str, Any]:
  """Returns an earlier answer with its thought and its calls."""
  turn: dict[str, Any] = {
    "role": "assistant",
    "content": _text(message.content),
  }
  if message.reasoning_content:
    turn["think"] = message.reasoning_content
  calls = []
  for index, call in enumerate(_calls(message)):
    arguments = call_objects.load(call.function.arguments)
    if not isinstance(arguments, dict):
      raise ApiError(
        400,
        "the arguments of a call must be the text of a JSON object, nested at "
        f"most {call_objects.MAX_DEPTH} levels.",
        param=f"{where}.tool_calls.{index}.function.arguments",
      )
    calls.append(types.ToolCall(call.function.name, arguments))
  if calls:
    turn["calls"] = tuple(calls)
  return turn


def _tool(tool: chat_request.Tool) -> dict[str, Any]:
  """Returns a tool's document; templates read all three of its fields."""
  function = tool.function
  return {
    "name": function.name,
    "description": function.description or "",
    "parameters": function.parameters or _NO_PARAMETERS,
  }
