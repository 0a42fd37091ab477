"""Answers in the form of OpenAI's chat completions: whole, and in chunks.

From chats to JSON objects. Knows no HTTP.
"""

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from toolrl_jax.serving import answer
from toolrl_jax.serving.api_error import ApiError
from toolrl_jax.serving.chat import Chat, Choice, Piece

_END = "[DONE]"


class ChatDocuments:
  """The documents of one chat; they share its id."""

  def __init__(self, model: str, chat: Chat):
    self._chat = chat
    self._head = {
      "id": f"chatcmpl-{uuid.uuid4().hex}",
      "created": int(time.time()),
      "model": model,
    }

  def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
    """Returns the answer to a request that does not stream."""
    return {
      **self._head,
      "object": "chat.completion",
      "choices": [
        {
          "index": index,
          "message": {"role": "assistant", "refusal": None}
          | {"content": choice.message.content or None}
          | _fields(choice.message),
          "logprobs": None,
          "finish_reason": choice.finish,
        }
        for index, choice in enumerate(choices)
      ],
      "usage": self._usage(),
    }

  async def events(
    self, *, is_usage_wanted: bool
  ) -> AsyncIterator[Mapping[str, Any] | str]:
    """Yields the chunks of a streamed answer, and the word that ends it.

    Args:
      is_usage_wanted: Whether a last chunk tells of the tokens.
    """
    more = {"usage": None} if is_usage_wanted else {}
    for index in range(self._chat.num_choices):
      delta = {"role": "assistant", "content": ""}
      yield self._chunk([_choice(index, delta)], more)
    try:
      async for piece in self._chat.pieces():
        for choice in _choices(piece):
          yield self._chunk([choice], more)
    except ApiError as error:
      # The status is sent; clients look for this.
      yield error.document()
      return
    if is_usage_wanted:
      yield self._chunk([], {"usage": self._usage()})
    yield _END

  def _chunk(
    self, choices: Sequence[Mapping[str, Any]], more: Mapping[str, Any]
  ) -> dict[str, Any]:
    return {
      **self._head,
      "object": "chat.completion.chunk",
      "choices": list(choices),
      **more,
    }

  def _usage(self) -> dict[str, int]:
    usage = self._chat.usage
    return {
      "prompt_tokens": usage.num_prompt_tokens,
      "completion_tokens": usage.num_tokens,
      "total_tokens": sum(usage),
    }


def _choices(piece: Piece) -> list[dict[str, Any]]:
  """Returns the deltas of a piece: texts, calls, and the end apart."""
  message = piece.message
  deltas = []
  texts = {"reasoning_content": message.reasoning, "content": message.content}
  if texts := {name: text for name, text in texts.items() if text}:
    deltas.append(_choice(piece.choice, texts))
  for position, call in enumerate(_calls(message)):
    deltas.append(
      _choice(piece.choice, {"tool_calls": [{"index": position, **call}]})
    )
  if piece.finish:
    deltas.append(_choice(piece.choice, {}, piece.finish))
  return deltas


def _choice(
  index: int, delta: Mapping[str, Any], finish: str | None = None
) -> dict[str, Any]:
  return {
    "index": index,
    "delta": dict(delta),
    "logprobs": None,
    "finish_reason": finish,
  }


def _fields(message: answer.Message) -> dict[str, Any]:
  """Returns the fields that only some messages have."""
  fields: dict[str, Any] = {}
  if message.reasoning:
    fields["reasoning_content"] = message.reasoning
  if message.calls:
    fields["tool_calls"] = _calls(message)
  return fields


def _calls(message: answer.Message) -> list[dict[str, Any]]:
  return [
    {
      "id": f"call_{uuid.uuid4().hex[:24]}",
      "type": "function",
      "function": {"name": name, "arguments": arguments},
    }
    for name, arguments in message.calls
  ]
