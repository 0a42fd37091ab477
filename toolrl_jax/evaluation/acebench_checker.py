"""Right or wrong of ACEBench's normal and special answers.

From calls or text and the gold to a verdict. The rules are those of ACEBench
(`model_eval/checker.py` and `eval_main.py`, in the form that evalscope 1.14.1
compares itself with), written anew; where they are surprising they are kept,
because a score is comparable only under the same leniency:

1. A gold argument that the schema does not require may be left out; one that
   the gold lacks may not be added.
2. Strings pass when they contain the gold; values in a dictionary pass when
   their text contains the gold's.
3. A gold value whose type differs from the schema's settles the argument: any
   value of the right type passes.
4. One model call may serve several gold calls of the same name.

Upstream stops with an exception where schema and gold do not fit together;
here that is a wrong answer. The module knows nothing of files or prompts.
"""

import enum
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax import types

# "number" is an integer and "enum" a type no value has, as upstream.
_PYTHON_TYPES: dict[str, type] = {
  "string": str,
  "any": str,
  "integer": int,
  "int": int,
  "number": int,
  "float": float,
  "boolean": bool,
  "array": list,
  "tuple": list,
  "list": list,
  "list(string)": list,
  "list(enum)": list,
  "objectArray": list,
  "dict": dict,
  "object": dict,
  "enum": enumerate,
}
_NESTED = frozenset(
  {"array", "tuple", "list(string)", "list(enum)", "object", "objectArray"}
)
_IGNORED = re.compile(r"[ ,./\-_*^]")
_REPEAT = re.compile(r"_\d+$")

# What an answer to a special item has to contain.
MISSING = "Missing necessary parameters"
INCORRECT = "There is incorrect value"
LIMITS = "the limitations of the function"


class _Type(enum.Enum):
  """What the types of an argument say."""

  WRONG = enum.auto()
  COMPARE = enum.auto()
  SETTLED = enum.auto()


def gold_calls(answer: Mapping[str, Any]) -> tuple[types.ToolCall, ...]:
  """Reads one gold alternative; a repeated call has `_1`, `_2` on its name.

  Args:
    answer: Name to arguments.

  Returns:
    The gold calls.
  """
  return tuple(
    types.ToolCall(_REPEAT.sub("", name), arguments)
    for name, arguments in answer.items()
  )


def is_normal_right(
  calls: Sequence[types.ToolCall],
  gold: Any,
  documents: Sequence[Mapping[str, Any]],
) -> bool:
  """Checks calls against the gold; any alternative will do.

  Args:
    calls: The model's calls.
    gold: One answer (name to arguments), or a list of alternatives.
    documents: Tool documents of the item.

  Returns:
    Whether one alternative is met.
  """
  alternatives = gold if isinstance(gold, list) else [gold]
  return any(_meets(calls, one, documents) for one in alternatives)


def is_special_right(text: str, gold: Any, category: str) -> bool:
  """Looks for what the answer to a special item must say.

  Args:
    text: The answer without its thinking.
    gold: Tool to missing parameters, parameter to wrong values, or a sentence.
    category: `special_incomplete`, `special_error_param` or
      `special_irrelevant`.

  Returns:
    Whether everything is in the text.
  """
  if category == "special_irrelevant":
    return LIMITS in text
  sentence = MISSING if category == "special_incomplete" else INCORRECT
  wanted = [sentence]
  for name, values in gold.items():
    # Wrong values are to be quoted, the name of their parameter is not.
    wanted += [name] if category == "special_incomplete" else []
    wanted += [str(value) for value in values]
  return all(part in text for part in wanted)


def _meets(
  calls: Sequence[types.ToolCall],
  answer: Mapping[str, Any],
  documents: Sequence[Mapping[str, Any]],
) -> bool:
  """Checks calls against one alternative; their order is free."""
  gold = gold_calls(answer)
  names = Counter(call.name for call in calls)
  if names != Counter(call.name for call in gold):
    return False
  for key, wanted in zip(answer, gold):
    # As upstream: the first document whose name is part of the gold's.
    document = next((d for d in documents if d["name"] in key), None)
    if document is None or not any(
      call.name == wanted.name and _is_call_right(call, wanted, document)
      for call in calls
    ):
      return False
  return True


def _is_call_right(
  call: types.ToolCall, gold: types.ToolCall, document: Mapping[str, Any]
) -> bool:
  """Checks one call against one gold call of the same name."""
  schema = document.get("parameters")
  if not isinstance(schema, Mapping):
    return False
  if not call.arguments or not schema:
    return not call.arguments and not schema
  properties = schema.get("properties", {})
  if gold.arguments == properties:
    return True
  if not gold.arguments or call.name != document["name"]:
    return False
  if any(key not in call.arguments for key in schema.get("required", ())):
    return False
  return all(
    key in properties
    and key in gold.arguments
    and _is_argument_right(value, gold.arguments[key], properties[key])
    for key, value in call.arguments.items()
  )


def _is_argument_right(
  value: Any, gold: Any, schema: Mapping[str, Any]
) -> bool:
  """Checks one argument: first the types, then the value."""
  name = schema.get("type")
  expected = _PYTHON_TYPES.get(name) if isinstance(name, str) else None
  if expected is None:
    return False
  nested = _nested_type(schema) if name in _NESTED else None
  if name == "tuple" and isinstance(value, tuple):
    value = list(value)
  if name == "float" and type(value) is int:
    value = float(value)
  types_say = _compare_types(value, gold, expected, nested)
  if types_say is not _Type.COMPARE:
    return types_say is _Type.SETTLED
  if expected is dict:
    return _is_dict_right(value, gold)
  if expected is list and nested is dict:
    return len(value) == len(gold) and all(
      _is_dict_right(one, other) for one, other in zip(value, gold)
    )
  if expected is str:
    return _plain(gold) in _plain(value)
  if expected is list:
    return [_plain(one) for one in value] == [_plain(one) for one in gold]
  # Numbers and truth values: a fitting type is enough, as upstream.
  return True


def _nested_type(schema: Mapping[str, Any]) -> type | None:
  """Type of the items, guessed from the outer type where it is not given."""
  items, outer = schema.get("items"), schema["type"]
  name = items.get("type") if isinstance(items, Mapping) else None
  if name is None:
    name = next((part for part in ("string", "enum") if part in outer), "dict")
  return _PYTHON_TYPES.get(name) if isinstance(name, str) else None


def _compare_types(
  value: Any, gold: Any, expected: type, nested: type | None
) -> _Type:
  """Compares the types of value, gold and schema.

  The gold "" stands for an optional argument and has no type of its own.
  """
  gold_type = None if gold == "" else type(gold)
  fits = _Type.COMPARE
  if gold_type is not None and gold_type is not expected:
    fits = _Type.SETTLED
  value = _as_bool(value)
  is_expected = type(value) is expected
  if not is_expected:
    is_gold_like = gold_type is not None and (
      type(value) is gold_type or gold == value
    )
    return _Type.SETTLED if is_gold_like else _Type.WRONG
  if nested is None:
    return fits
  if not isinstance(gold, list | dict | str):
    return _Type.WRONG
  # Only lists inside the gold list have their items looked at.
  is_one_right = any(
    not isinstance(item, list)
    or all(
      _compare_types(one, item, nested, None) is not _Type.WRONG
      for one in value
    )
    for item in gold
  )
  return fits if is_one_right else _Type.WRONG


def _is_dict_right(value: Any, gold: Any) -> bool:
  """Checks a dictionary: the same keys, and the gold's text in each value."""
  if not isinstance(value, dict) or not isinstance(gold, dict):
    return False
  if len(value) != len(gold):
    return False
  for key, one in value.items():
    one = _as_bool(one)
    if key not in gold:
      return False
    if isinstance(gold[key], dict):
      if not _is_dict_right(one, gold[key]):
        return False
    elif str(_plain(gold[key])) not in str(_plain(one)):
      return False
  return True


def _as_bool(value: Any) -> Any:
  """Takes the bare words `true` and `false` for truth values."""
  if isinstance(value, str):
    return {"true": True, "false": False}.get(value, value)
  return value


def _plain(value: Any) -> Any:
  """Strips a string of blanks, some punctuation, case and kind of quote."""
  if isinstance(value, str):
    return _IGNORED.sub("", value).lower().replace("'", '"')
  return value
