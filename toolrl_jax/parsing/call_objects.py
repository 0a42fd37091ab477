"""JSON of tool calls to ToolCall records, without ever raising.

From the JSON texts of calls to the calls or to the reason why they cannot be
read. It does not know where in a completion the texts stood.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolrl_jax import types

# Deeper JSON is refused: a record must stay safe for recursive code after us.
MAX_DEPTH = 64


class ReadCalls(NamedTuple):
  """Calls that were read, or why they could not be.

  Attributes:
    status: OK, NO_ARGUMENTS, or why there are no calls.
    calls: The calls in order.
    shapes: Shape of each call.
  """

  status: types.ParseStatus
  calls: tuple[types.ToolCall, ...] = ()
  shapes: tuple[types.CallShape, ...] = ()


def load(text: str) -> Any:
  """Reads JSON; what cannot be read becomes a ParseStatus.

  Args:
    text: JSON text. As Python's reader has it, NaN and Infinity count as
      numbers and the last of duplicate keys wins.

  Returns:
    The JSON value, or BAD_JSON or TOO_DEEP.
  """
  try:
    value = json.loads(text)
  except (ValueError, RecursionError):
    return types.ParseStatus.BAD_JSON
  # Counting brackets is cheap and nearly always settles it.
  if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
    return types.ParseStatus.TOO_DEEP
  return value


def _is_deep(value: Any) -> bool:
  """Whether JSON nests deeper than MAX_DEPTH; walks without recursion."""
  level = [value]
  for _ in range(MAX_DEPTH):
    level = [child for parent in level for child in children(parent)]
    if not level:
      return False
  return True


def children(value: Any) -> list[Any]:
  """Lists what a JSON value holds directly.

  Args:
    value: A JSON value.

  Returns:
    Values of an object, items of a list, nothing of anything else.
  """
  if isinstance(value, Mapping):
    return list(value.values())
  return list(value) if isinstance(value, list | tuple) else []


def read_calls(values: Sequence[Any], key: str) -> ReadCalls:
  """Turns JSON values into calls; the first bad one spoils them all.

  Args:
    values: What `load` gave for each call.
    key: Key of the arguments: "parameters" or "arguments".

  Returns:
    The calls with their shapes, or the status of the first bad value.
  """
  calls, shapes = [], []
  for value in values:
    if isinstance(value, types.ParseStatus):
      return ReadCalls(value)
    if not isinstance(value, dict):
      return ReadCalls(types.ParseStatus.NOT_OBJECT)
    name, arguments = value.get("name"), value.get(key)
    if not isinstance(name, str):
      return ReadCalls(types.ParseStatus.BAD_NAME)
    if not isinstance(arguments, dict):
      shape, arguments = types.CallShape.NO_ARGUMENTS, {}
    elif len(value) > 2:
      shape = types.CallShape.EXTRA
    else:
      shape = types.CallShape.PLAIN
    calls.append(types.ToolCall(name, arguments))
    shapes.append(shape)
  is_whole = types.CallShape.NO_ARGUMENTS not in shapes
  status = types.ParseStatus.OK if is_whole else types.ParseStatus.NO_ARGUMENTS
  return ReadCalls(status, tuple(calls), tuple(shapes))
