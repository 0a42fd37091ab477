"""Calls to the texts of their results, on BFCL's executable back-ends.

Part of `bfcl_worker` and, like it, of the standard library alone. It does not
know which back-ends there are.

Model text never becomes code. A call is a name and a JSON object, and reaches
a back-end as `getattr(instance, name)(**arguments)` when the name is one of
its public methods. The package executes call strings with `eval` instead
(`execute_multi_turn_func_call`, bfcl-eval 2026.3.23). Three outcomes differ:

1. A name that is no method gives the package's text for an unknown name, also
   where it is a Python builtin, which the package would run.
2. Text arguments arrive as they are; the package also rewrites every `name(`
   inside them, which can fail a right answer.
3. NaN and infinity, which are no JSON but are read, arrive as numbers; the
   package answers that the name `nan` is not defined.
"""

import ast
import inspect
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# No prompt of the benchmark comes near; hostile calls can.
MAX_TEXT_CHARS = 4_000_000

# As in the package's execute_multi_turn_func_call.
_DENIED = ("kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run")


class Call(NamedTuple):
  """One call, of a model or of a gold.

  Attributes:
    name: Method name.
    positional: Arguments without a name; only golds have them.
    arguments: Arguments by name.
  """

  name: str
  positional: tuple[Any, ...]
  arguments: Mapping[str, Any]


def model_call(document: Mapping[str, Any]) -> Call:
  """Reads a model's call.

  Args:
    document: JSON object with `name` and the object `arguments`.

  Returns:
    The call.
  """
  return Call(str(document["name"]), (), dict(document["arguments"]))


def parse_gold_call(text: str) -> Call:
  """Reads a gold's call text; only literals are arguments.

  Args:
    text: As in the ground truth of a multi-turn entry.

  Returns:
    The call.

  Raises:
    ValueError: The text is not one call with literal arguments.
  """
  call = ast.parse(text, mode="eval").body
  if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
    raise ValueError(f"a gold call must be name(arguments), got {text[:80]!r}.")
  return Call(
    call.func.id,
    tuple(ast.literal_eval(value) for value in call.args),
    {str(part.arg): ast.literal_eval(part.value) for part in call.keywords},
  )


def perform(instances: Iterable[Any], calls: Iterable[Call]) -> list[str]:
  """Runs calls in order on the instances that have the methods.

  Args:
    instances: Back-ends; of methods with one name the last one's counts.
    calls: Calls in order.

  Returns:
    The result of each call, as the package words it.

  Raises:
    MemoryError: The memory limit was met.
  """
  methods: dict[str, Any] = {}
  for instance in instances:
    for name, method in inspect.getmembers(instance, inspect.ismethod):
      if not name.startswith("_"):
        methods[name] = method
  texts = []
  for call in calls:
    try:
      if call.name not in methods:
        raise NameError(_unknown_text(call.name))
      value = methods[call.name](*call.positional, **call.arguments)
      texts.append(result_text(value)[:MAX_TEXT_CHARS])
    except MemoryError:
      raise
    except Exception as error:  # noqa: BLE001  what a back-end raises is text
      texts.append(f"Error during execution: {error!s}"[:MAX_TEXT_CHARS])
  return texts


def _unknown_text(name: str) -> str:
  """The package's words for a name that no back-end has."""
  method = name.split("(")[0]
  method = method.split(".")[1] if "." in method else method
  if method in _DENIED:
    return f"Function call {method} is not allowed."
  return f"name {name.split('.')[0]!r} is not defined"


def result_text(value: Any) -> str:
  """Writes a method's value as the package does.

  Args:
    value: What the method returned.

  Returns:
    Texts as they are, dicts as JSON where that is possible, others by `str`.
  """
  if isinstance(value, str):
    return value
  if isinstance(value, dict):
    try:
      return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
      return str(value)
  return str(value)
