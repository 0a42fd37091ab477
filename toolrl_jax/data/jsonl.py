"""Reads one line of the package's own JSONL format.

From the text of a line to examples and their target texts. A line is one JSON
object and holds either a single step or a whole trajectory.

    {"id": "book-1",                      optional; default file name and row
     "messages": [                        the dialogue, see below
       {"role": "system", "content": "You book rooms."},
       {"role": "user", "content": "A room for two, please."}],
     "tools": [                           optional; default none
       {"name": "book", "description": "Books a room.",
        "parameters": {"type": "object",
                       "properties": {"guests": {"type": "integer"}},
                       "required": ["guests"]}}],
     "gold": {                            the right answer of a single step
       "calls": [{"name": "book", "arguments": {"guests": 2}}],
       "response": "text",                optional, as are calls
       "think": "text"},                  optional, for SFT
     "target": "text"}                    optional, exact text for SFT

Messages have `role` (system, first only; user; assistant; tool) and `content`
(text; null is empty). Assistant turns may hold `think` (also read from
`reasoning_content`, or from a leading `<think>...</think>` of the content) and
`tool_calls`; tool turns may hold `name`, which is else taken from the calls
before them. A single step ends with a user or tool turn.

A trajectory has no `gold`; it holds all turns, and is cut into one example for
each assistant turn with `"step": true`, see `data/trajectory.py`. Instead of
marks the line may say `"steps": "all"` or `"steps": "calls"`, and
`"max_user_turns": N` limits the history.

The OpenAI forms are read too: tools and calls inside `{"type": "function",
"function": {...}}`, arguments as JSON text, and parameters as a flat map of
names. `{"calls": []}` as gold means that no tool is to be called.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from toolrl_jax import types
from toolrl_jax.data import trajectory

_ROLES = ("system", "user", "assistant", "tool")
_STEPS = ("marked", "all", "calls")


class Row(NamedTuple):
  """An example as read from a file.

  Attributes:
    example: The example.
    think: Recorded thinking of the right answer; empty where there is none.
    target: Exact text of the right answer; None where the file gives none.
  """

  example: types.Example
  think: str
  target: str | None


def read_line(text: str, *, default_id: str) -> list[Row]:
  """Reads one line.

  Args:
    text: One JSON object.
    default_id: Id where the line has none.

  Returns:
    One row for a single step, one for each step of a trajectory.

  Raises:
    ValueError: The line is not in the format; the message says where.
  """
  try:
    line = json.loads(text, parse_constant=_refuse)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"the line is not JSON: {error}") from error
  if not isinstance(line, dict):
    raise ValueError("the line must be a JSON object.")
  messages = _messages(line.get("messages"))
  tools = tuple(_tool(tool) for tool in _items(line, "tools"))
  example_id = str(line.get("id", default_id))
  if "gold" not in line:
    return _trajectory_rows(line, example_id, messages, tools)
  if not any(message["role"] == "user" for message in messages):
    raise ValueError("messages must have a user turn.")
  if messages[-1]["role"] not in ("user", "tool"):
    raise ValueError(
      "messages of a single step must end with a user or tool turn, the answer"
      " stands in gold."
    )
  target = line.get("target")
  if target is not None and not (isinstance(target, str) and target.strip()):
    raise ValueError("target must be text that is not empty.")
  messages = tuple(_without(message, "step") for message in messages)
  gold, think = _gold(line["gold"])
  return [Row(types.Example(example_id, messages, tools, gold), think, target)]


def _refuse(constant: str) -> None:
  # Python reads NaN and Infinity; NaN as gold would equal nothing.
  raise ValueError(f"it holds {constant}")


def _trajectory_rows(
  line: Mapping[str, Any],
  example_id: str,
  messages: tuple[dict[str, Any], ...],
  tools: tuple[dict[str, Any], ...],
) -> list[Row]:
  steps = line.get("steps", "marked")
  if steps not in _STEPS:
    raise ValueError(f"steps must be marked, all or calls, got {steps!r}.")
  max_user_turns = line.get("max_user_turns", 0)
  if type(max_user_turns) is not int or max_user_turns < 0:
    raise ValueError(
      f"max_user_turns must be a whole number >= 0, got {max_user_turns!r}."
    )
  examples = trajectory.cut(
    trajectory.Trajectory(example_id, messages, tools),
    steps=steps,
    max_user_turns=max_user_turns,
  )
  if not examples:
    raise ValueError(
      'a line needs gold, or an assistant turn marked with "step": true.'
    )
  turns = [turn for turn in messages if turn["role"] == "assistant"]
  # The id of a step ends with the number of its assistant turn, from 1.
  numbers = [int(example.id.rpartition("/")[2]) for example in examples]
  thoughts = [turns[number - 1].get("think", "") for number in numbers]
  return [
    Row(example, think, None)
    for example, think in zip(examples, thoughts, strict=True)
  ]


def _messages(raw: Any) -> tuple[dict[str, Any], ...]:
  if not isinstance(raw, list) or not raw:
    raise ValueError("messages must be a list with at least one message.")
  messages, names = [], []
  for position, item in enumerate(raw):
    if not isinstance(item, dict) or item.get("role") not in _ROLES:
      raise ValueError(
        f"message {position} must be an object whose role is one of"
        f" {', '.join(_ROLES)}."
      )
    if item["role"] == "system" and position:
      raise ValueError(f"message {position}: only the first may be system.")
    message = {"role": item["role"], "content": item.get("content") or ""}
    if not isinstance(message["content"], str):
      raise ValueError(f"message {position}: content must be text.")
    if item["role"] == "assistant":
      message |= _assistant_fields(item, message["content"], position)
      names = [call.name for call in message.get("calls", ())]
    if item["role"] == "tool":
      # Results stand in the order of the calls.
      name = item.get("name") or (names.pop(0) if names else None)
      message |= {} if name is None else {"name": str(name)}
    messages.append(message)
  return tuple(messages)


def _assistant_fields(
  item: Mapping[str, Any], content: str, position: int
) -> dict[str, Any]:
  fields: dict[str, Any] = {}
  think = item.get("think") or item.get("reasoning_content") or ""
  if not isinstance(think, str):
    raise ValueError(f"message {position}: think must be text.")
  head, end, rest = content.partition("</think>")
  if not think and end and head.lstrip().startswith("<think>"):
    think = head.lstrip().removeprefix("<think>")
    fields["content"] = rest.lstrip()
  if think.strip():
    fields["think"] = think.strip()
  calls = tuple(_call(call) for call in _items(item, "tool_calls"))
  if calls:
    fields["calls"] = calls
  if "step" in item:
    fields["step"] = item["step"] is True
  return fields


def _gold(raw: Any) -> tuple[types.Gold, str]:
  if not isinstance(raw, dict) or not raw.keys() & {"calls", "response"}:
    raise ValueError("gold must be an object with calls, response or both.")
  response, think = raw.get("response"), raw.get("think") or ""
  if not isinstance(response, str | None) or not isinstance(think, str):
    raise ValueError("response and think of gold must be text.")
  calls = tuple(_call(call) for call in _items(raw, "calls"))
  return types.Gold(calls=calls, response=response), think


def _call(raw: Any) -> types.ToolCall:
  raw = _unwrapped(raw)
  arguments = raw.get("arguments", {})
  if isinstance(arguments, str):
    try:
      arguments = json.loads(arguments, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
      raise ValueError(f"arguments are not JSON: {error}") from error
  if not isinstance(raw.get("name"), str) or not isinstance(arguments, dict):
    raise ValueError("a call must have a name and an object of arguments.")
  return types.ToolCall(raw["name"], arguments)


def _tool(raw: Any) -> dict[str, Any]:
  raw = _unwrapped(raw)
  name, schema = raw.get("name"), raw.get("parameters") or {}
  description = raw.get("description") or ""
  if not isinstance(name, str) or not isinstance(schema, dict):
    raise ValueError("a tool must have a name and an object of parameters.")
  if not isinstance(description, str):
    raise ValueError(f"description of tool {name!r} must be text.")
  # A schema names its type; a flat map has an object for every parameter.
  is_flat = all(isinstance(entry, dict) for entry in schema.values())
  if is_flat and "properties" not in schema:
    schema = {"type": "object", "properties": schema}
  properties = schema.get("properties", {})
  if not isinstance(properties, dict) or not all(
    isinstance(entry, dict) for entry in properties.values()
  ):
    raise ValueError(f"parameters of tool {name!r} must each be an object.")
  return {"name": name, "description": description, "parameters": schema}


def _unwrapped(raw: Any) -> Mapping[str, Any]:
  """Takes off OpenAI's `{"type": "function", "function": ...}`."""
  if isinstance(raw, dict) and isinstance(raw.get("function"), dict):
    raw = raw["function"]
  if not isinstance(raw, dict):
    raise ValueError("a tool or a call must be an object.")
  return raw


def _items(raw: Mapping[str, Any], name: str) -> list[Any]:
  items = raw.get(name)
  if items is None:
    return []
  if not isinstance(items, list):
    raise ValueError(f"{name} must be a list.")
  return items


def _without(message: Mapping[str, Any], name: str) -> dict[str, Any]:
  return {key: value for key, value in message.items() if key != name}
