"""The body of a chat request, checked: from bytes to a typed record.

Fields of OpenAI's API that would change the answer and that the engine has
not are refused with the reason; those that change nothing are let through.
Knows neither templates nor the engine.
"""

from typing import Annotated, Any, Literal

import pydantic
import pydantic_core

from toolrl_jax.parsing import call_objects
from toolrl_jax.serving.api_error import ApiError

# JSON that nests deeper has no use in a request, and recursive code after us.
_MAX_DEPTH = 64
_MAX_STOPS = 4


class _FirstMistake(pydantic.FailFast):
  """Ends a list at its first mistake: of a million one is enough."""

  # A part of a union must be hashable.
  __hash__ = object.__hash__


class _Part(pydantic.BaseModel):
  """A part of it; fields that are not named here say nothing to us."""

  model_config = pydantic.ConfigDict(strict=True)


class TextPart(_Part):
  """A piece of a content that comes in pieces."""

  type: Literal["text"]
  text: str


Content = str | Annotated[list[TextPart], _FirstMistake()]


class Function(_Part):
  """The call in an assistant's message."""

  name: str
  arguments: str


class Call(_Part):
  """A call with its id."""

  id: str
  type: Literal["function"] = "function"
  function: Function


class SystemMessage(_Part):
  """What the model is told at first."""

  role: Literal["system", "developer"]
  content: Content


class UserMessage(_Part):
  """What the user says."""

  role: Literal["user"]
  content: Content


class AssistantMessage(_Part):
  """What the model said before."""

  role: Literal["assistant"]
  content: Content | None = None
  reasoning_content: str | None = None
  tool_calls: Annotated[list[Call], _FirstMistake()] | None = None


class ToolMessage(_Part):
  """What a tool returned."""

  role: Literal["tool"]
  content: Content
  tool_call_id: str


Message = Annotated[
  SystemMessage | UserMessage | AssistantMessage | ToolMessage,
  pydantic.Field(discriminator="role"),
]


class ToolFunction(_Part):
  """A tool's document."""

  name: Annotated[str, pydantic.Field(min_length=1)]
  description: str | None = None
  parameters: dict[str, Any] | None = None


class Tool(_Part):
  """A tool that the model may call."""

  type: Literal["function"]
  function: ToolFunction


class StreamOptions(_Part):
  """Options of a streamed answer."""

  include_usage: bool = False


class ChatRequest(pydantic.BaseModel):
  """What is asked for; None is the server's default.

  Attributes:
    max_tokens: Longest completion; older name of `max_completion_tokens`.
    seed: Names the samples, together with the prompt.
  """

  model_config = pydantic.ConfigDict(strict=True, extra="forbid")

  model: str
  messages: Annotated[
    list[Message], _FirstMistake(), pydantic.Field(min_length=1)
  ]
  tools: Annotated[list[Tool], _FirstMistake()] | None = None
  tool_choice: Any = None
  stream: bool | None = None
  stream_options: StreamOptions | None = None
  stop: str | Annotated[list[str], _FirstMistake()] | None = None
  temperature: Annotated[float, pydantic.Field(ge=0, le=2)] | None = None
  top_p: float | None = None
  max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  max_completion_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  seed: int | None = None
  n: Annotated[int, pydantic.Field(ge=1)] | None = None
  # They would change the answer; see `_REFUSED`.
  frequency_penalty: Any = None
  presence_penalty: Any = None
  logit_bias: Any = None
  logprobs: Any = None
  top_logprobs: Any = None
  response_format: Any = None
  parallel_tool_calls: Any = None
  # They change nothing here.
  metadata: Any = None
  prompt_cache_key: Any = None
  safety_identifier: Any = None
  service_tier: Any = None
  store: Any = None
  user: Any = None

  @property
  def stops(self) -> list[str]:
    """Texts that end the answer."""
    return [self.stop] if isinstance(self.stop, str) else self.stop or []

  @property
  def limit(self) -> int | None:
    """Longest completion that is asked for."""
    return self.max_completion_tokens or self.max_tokens

  @property
  def is_tools_shown(self) -> bool:
    """Whether the model sees the tools and may call them."""
    return bool(self.tools) and self.tool_choice in (None, "auto")


# Values of the fields that the engine has not under which they mean nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
  "frequency_penalty": (None, 0),
  "presence_penalty": (None, 0),
  "logit_bias": (None, {}),
  "logprobs": (None, False),
  "top_logprobs": (None, 0),
  "response_format": (None, {"type": "text"}),
  "parallel_tool_calls": (None, True),
}


def read(body: bytes) -> ChatRequest:
  """Reads a request.

  Args:
    body: What the client sent.

  Returns:
    The request.

  Raises:
    ApiError: It is no JSON, has the wrong form, or asks for what is not
      there; status 400.
  """
  try:
    document = pydantic_core.from_json(body, allow_inf_nan=False)
  except ValueError as error:
    raise ApiError(400, f"the body is no JSON: {error}") from error
  if not isinstance(document, dict):
    raise ApiError(400, "the body must be a JSON object.")
  if is_deeper(document, _MAX_DEPTH):
    raise ApiError(400, f"the body nests deeper than {_MAX_DEPTH} levels.")
  try:
    request = ChatRequest.model_validate(document)
  except pydantic.ValidationError as error:
    raise _refusal(error) from error
  _check(request)
  return request


def is_deeper(value: Any, most: int) -> bool:
  """Whether JSON has more than so many levels; walks without recursion."""
  level = [value]
  for _ in range(most):
    level = [
      child for parent in level for child in call_objects.children(parent)
    ]
    if not level:
      return False
  return True


def _refusal(error: pydantic.ValidationError) -> ApiError:
  """Says what the first of the mistakes is, without repeating the value."""
  first = error.errors(include_url=False, include_input=False)[0]
  # After the position of a message comes its role, which says nothing.
  parts = [str(part)[:60] for part in first["loc"]]
  parts = [*parts[:2], *parts[3:]] if parts[0] == "messages" else parts
  if "content" in parts and first["type"] != "missing":
    place = ".".join(parts[: parts.index("content") + 1])
    return ApiError(
      400,
      f'{place}: must be text, or a list of {{"type": "text", "text": ...}}.',
      param=place,
    )
  place = ".".join(parts)
  if first["type"] == "extra_forbidden":
    return ApiError(
      400, f"unknown field {place}; remove it.", param=place,
      code="unknown_parameter",
    )  # fmt: skip
  return ApiError(400, f"{place}: {first['msg']}.", param=place)


def _check(request: ChatRequest) -> None:
  """Refuses what has the right form and cannot be done."""
  for name, allowed in _REFUSED.items():
    if getattr(request, name) not in allowed:
      raise ApiError(
        400, f"{name} is not supported; leave it out.", param=name,
        code="unsupported_parameter",
      )  # fmt: skip
  if request.tool_choice not in (None, "none", "auto"):
    raise ApiError(
      400,
      'tool_choice must be "auto" or "none": the model decides whether it '
      "calls a tool, nothing forces it to.",
      param="tool_choice",
      code="unsupported_value",
    )
  stops = request.stops
  if len(stops) > _MAX_STOPS or not all(stops):
    raise ApiError(
      400, f"stop must be 1 to {_MAX_STOPS} texts, none empty.", param="stop"
    )
  names = [tool.function.name for tool in request.tools or ()]
  if len(set(names)) < len(names):
    raise ApiError(400, "tools must have different names.", param="tools")
