"""One evaluated conversation: what it asks the model, and what it is told.

A conversation is a generator. It yields an `Ask` and is sent the `Answer`, or
yields a `Wait` and is sent what somebody outside said, and so on; what it
returns is its outcome, a JSON object that its benchmark scores later. So a
benchmark is written as if it talked to one model alone, while the responder
keeps many conversations in the air. Nothing here knows tokens, templates or
devices.

    def converse(item):
      answer = yield Ask(messages=..., tools=..., turn=0, step=0)
      return {"text": answer.text}
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal, NamedTuple

from toolrl_jax import types

_THINK_END = "</think>"


class Ask(NamedTuple):
  """What a conversation wants answered next.

  Attributes:
    messages: The whole history, in the form of `types.Example.messages`; an
      assistant turn made by `assistant_turn` keeps its sampled text.
    tools: Tool documents, in the form of `types.Example.tools`.
    turn: Number of the user turn, from 0.
    step: Number of the model's answer within the turn, from 0; (turn, step)
      occurs once in a conversation and is part of the name of its samples.
    verbatim: Exact [system, user] messages of a prompt that came rendered in
      the ToolRL layout; None for others.
    speaker: Whose part the model has. As "user" it plays the one who talks to
      the model that is scored: its prompts are in the chat template whatever
      the protocol asks, and its answers are not counted.
  """

  messages: tuple[Mapping[str, Any], ...]
  tools: tuple[Mapping[str, Any], ...] = ()
  turn: int = 0
  step: int = 0
  verbatim: tuple[Mapping[str, str], ...] | None = None
  speaker: Literal["agent", "user"] = "agent"


class Wait(NamedTuple):
  """Something outside the model that a conversation waits for.

  Others go on meanwhile.

  Attributes:
    call: Run on a thread of its own, with others beside it. Its value is sent
      to the conversation, what it raises is raised there.
  """

  call: Callable[[], Any]


class Answer(NamedTuple):
  """What the model said.

  Attributes:
    text: The completion without its stop token.
    parsed: The same, read in the layout of calls that the run asks for.
    is_cut: It ended at the token limit, or the prompt left no room for it.
    num_prompt_tokens: Tokens of the prompt.
    num_tokens: Tokens of the completion, the stop token included.
  """

  text: str
  parsed: types.ParsedCompletion
  is_cut: bool = False
  num_prompt_tokens: int = 0
  num_tokens: int = 0

  @property
  def is_over_long(self) -> bool:
    """Whether the prompt left no room for an answer."""
    return self.is_cut and not self.text

  @property
  def spoken(self) -> str:
    """What follows the thinking; empty when the thinking never ends."""
    _, is_ended, rest = self.text.rpartition(_THINK_END)
    if is_ended:
      return rest.strip()
    return "" if "<think>" in self.text else self.text.strip()


Conversation = Generator[Ask | Wait, Any, Mapping[str, Any]]


def assistant_turn(answer: Answer) -> dict[str, Any]:
  """Returns the history entry of an answer.

  Args:
    answer: What the model said.

  Returns:
    A message with its `content` (the answer text), `think` and `calls` where
    there are any, and `raw`, the text as it was sampled.
  """
  head, is_ended, _ = answer.text.partition(_THINK_END)
  said = answer.parsed.response
  if said is None:
    # Calls that could not be read are still what was said.
    said = "" if answer.parsed.calls else answer.spoken
  turn: dict[str, Any] = {
    "role": "assistant",
    "content": said,
    "raw": answer.text,
  }
  if is_ended:
    turn["think"] = head.rpartition("<think>")[2].strip()
  if answer.parsed.calls:
    turn["calls"] = answer.parsed.calls
  return turn


def tool_turn(content: str, name: str = "") -> dict[str, Any]:
  """Returns the history entry of a tool's result."""
  turn = {"role": "tool", "content": content}
  return turn | {"name": name} if name else turn
