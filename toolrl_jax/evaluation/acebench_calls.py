"""Bracketed call lists, `[Api(key='value'), ...]`, to calls and back.

From model text to ToolCall records, without ever running it: the syntax tree
is walked, and what it holds is turned into plain values. Upstream (ACEBench,
`model_inference/utils.py`) reads the same trees but hands arithmetic and
lambdas to Python's `eval`; here arithmetic on numbers is worked out and the
rest stays its own source text. It does not know which calls are right.
"""

import ast
import json
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.parsing import call_objects

# The longest gold answer has 2,300 characters.
MAX_CHARS = 20_000
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
  ast.Div: operator.truediv,
}
# Beyond this an integer no longer converts to a float.
_MAX_NUMBER = 1e300


def read(text: str) -> tuple[types.ToolCall, ...] | None:
  """Reads a text that is one call list and nothing else.

  Args:
    text: Model text; white space around it is ignored.

  Returns:
    The calls in order, none for `[]`; None for any other text.
  """
  body = _parse(text)
  if not isinstance(body, ast.List | ast.Tuple):
    return None
  return _calls(body.elts)


def read_first_block(text: str) -> tuple[types.ToolCall, ...] | None:
  """Reads the first balanced `[...]` of a text, wherever it stands.

  As upstream, brackets inside strings count too.

  Args:
    text: Model text.

  Returns:
    The calls in order; None when there is no block or it is no call list.
  """
  start = text.find("[")
  depth = 0
  for index in range(start, len(text)) if start >= 0 else ():
    depth += (text[index] == "[") - (text[index] == "]")
    if depth == 0:
      return read(text[start : index + 1])
  return None


def read_message(text: str) -> tuple[types.ToolCall, ...] | None:
  """Reads what an agent sends to be executed: brackets may be missing.

  Args:
    text: Model text.

  Returns:
    At least one call; None when the text is anything else.
  """
  body = _parse(text.strip().strip("[]'"))
  if isinstance(body, ast.List | ast.Tuple):
    return _calls(body.elts) or None
  return _calls([body]) if isinstance(body, ast.Call) else None


def render(calls: Sequence[types.ToolCall]) -> str:
  """Writes calls as a call list; `read` gives them back.

  Args:
    calls: Calls whose names and keys are identifiers; names may be dotted.

  Returns:
    `[Api(key='value'), ...]`.
  """
  texts = [
    f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"
    for call in calls
  ]
  return f"[{', '.join(texts)}]"


def as_json(value: Any) -> Any:
  """Returns a copy as JSON gives it back, in text that UTF-8 can write.

  A model can write half a surrogate pair as an escape; it becomes "?".

  Args:
    value: Anything; what JSON does not have becomes text.

  Returns:
    Dictionaries with text keys, lists, text, numbers, truth values, None.
  """
  text = json.dumps(value, default=str, ensure_ascii=False)
  return json.loads(text.encode("utf-8", "replace"))


def _parse(text: str) -> ast.expr | None:
  """Parses one expression; None for what Python's parser refuses."""
  if len(text) > MAX_CHARS:
    return None
  try:
    # An odd escape in a model's string is no concern of ours.
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      return ast.parse(text.strip(), mode="eval").body
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return None


def _calls(nodes: Sequence[ast.expr]) -> tuple[types.ToolCall, ...] | None:
  """Reads call nodes; one that cannot be read spoils them all."""
  calls = []
  try:
    for node in nodes:
      if not isinstance(node, ast.Call):
        return None
      calls.append(types.ToolCall(_name(node.func), _arguments(node, 0)))
  # TypeError: a list as the key of a dictionary.
  except (ValueError, TypeError, RecursionError, MemoryError):
    return None
  return tuple(calls)


def _name(node: ast.expr) -> str:
  """Reads a possibly dotted name."""
  parts = []
  while isinstance(node, ast.Attribute):
    parts.append(node.attr)
    node = node.value
  if not isinstance(node, ast.Name):
    raise ValueError("a call must name its tool.")
  return ".".join([node.id, *reversed(parts)])


def _arguments(node: ast.Call, depth: int) -> dict[str, Any]:
  """Reads the keyword arguments; others are ignored, as upstream does."""
  arguments = {}
  for keyword in node.keywords:
    if keyword.arg is None:
      raise ValueError("a call must spell its arguments out.")
    arguments[keyword.arg] = _value(keyword.value, depth + 1)
  return arguments


def _value(node: ast.expr, depth: int) -> Any:
  """Turns a node into a plain value.

  A bare word is a string, a call inside an argument is {name: arguments}.
  """
  if depth > call_objects.MAX_DEPTH:
    raise ValueError("arguments nest too deep.")
  match node:
    case ast.Constant():
      return _constant(node)
    case ast.Name():
      return node.id
    case ast.List():
      return [_value(item, depth + 1) for item in node.elts]
    case ast.Tuple():
      return tuple(_value(item, depth + 1) for item in node.elts)
    case ast.Dict():
      return _dictionary(node, depth)
    case ast.Call():
      return {_name(node.func): _arguments(node, depth)}
    case ast.UnaryOp() | ast.BinOp():
      return _number(node, depth)
    case ast.Subscript() | ast.Lambda() | ast.Attribute():
      return ast.unparse(node)
  raise ValueError("an argument must be a value.")


def _constant(node: ast.Constant) -> Any:
  """Keeps what JSON has; the rest becomes text."""
  value = node.value
  if value is Ellipsis:
    return "..."
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  if isinstance(value, int) and abs(value) >= _MAX_NUMBER:
    # Too long to be written in decimal; it equals no gold.
    return hex(value)
  if value is None or isinstance(value, bool | int | float | str):
    return value
  return ast.unparse(node)


def _dictionary(node: ast.Dict, depth: int) -> dict[Any, Any]:
  """Reads a dictionary; its keys must be constants or bare words."""
  pairs = {}
  for key, value in zip(node.keys, node.values):
    if not isinstance(key, ast.Constant | ast.Name):
      raise ValueError("a key must be a constant.")
    pairs[_value(key, depth + 1)] = _value(value, depth + 1)
  return pairs


def _number(node: ast.UnaryOp | ast.BinOp, depth: int) -> Any:
  """Works arithmetic on numbers out; anything else is its source text."""
  if isinstance(node, ast.UnaryOp):
    value = _value(node.operand, depth + 1)
    if _is_number(value) and isinstance(node.op, ast.USub):
      return -value
    return ast.unparse(node)
  left, right = (_value(side, depth + 1) for side in (node.left, node.right))
  combine = _ARITHMETIC.get(type(node.op))
  if combine is None or not (_is_number(left) and _is_number(right)):
    return ast.unparse(node)
  try:
    value = combine(left, right)
    is_small = abs(value) < _MAX_NUMBER
  except ArithmeticError:
    return ast.unparse(node)
  return value if is_small else ast.unparse(node)


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)
