"""BFCL's ground truth as the answers of a model that knows it.

From items to calls and texts that the scorer should pass; the items that no
right answer can pass are named by `unpassable`. For checking
the evaluation itself; never a score.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.evaluation import benchmark, bfcl_execution, conversation
from toolrl_jax.parsing import tool_calls

_DONE = "Done."
_EMPTY_LIST = "new ArrayList<>()"


def reply(item: benchmark.Item, ask: conversation.Ask) -> str:
  """Answers one step of an item's conversation.

  All calls of a turn come in its first step; the next says that it is done.

  Args:
    item: Item of the benchmark.
    ask: What its conversation asks.

  Returns:
    A completion in the native layout.
  """
  if ask.step > 0:
    return _DONE
  return text(turns(item)[ask.turn])


def text(calls: Sequence[types.ToolCall]) -> str:
  """Writes calls in the native layout; a plain sentence for none."""
  if not calls:
    return "None of these tools fits."
  gold = types.Gold(calls=tuple(calls))
  return tool_calls.render_gold(gold, style="native", think="")


def turns(item: benchmark.Item) -> list[tuple[types.ToolCall, ...]]:
  """Returns the gold calls of every turn.

  Args:
    item: Item of the benchmark.

  Returns:
    One tuple of calls a turn; single-turn items have one turn.
  """
  entry, gold = item.row["entry"], item.row["gold"]
  if item.category.startswith("multi_turn"):
    documents = [*entry["function"]]
    for announced in entry.get("missed_function", {}).values():
      documents += announced
    return [
      tuple(
        _keyworded(bfcl_execution.parse_gold_call(call), documents)
        for call in turn
      )
      for turn in gold
    ]
  if "irrelevance" in item.category:
    return [()]
  if gold is None:
    return [(types.ToolCall(entry["function"][0]["name"], {}),)]
  return [tuple(_single(entry, alternatives) for alternatives in gold)]


def _keyworded(
  call: bfcl_execution.Call, documents: Sequence[Mapping[str, Any]]
) -> types.ToolCall:
  """Gives arguments by position their names, from the document."""
  arguments = dict(call.arguments)
  if call.positional:
    names = next(
      list(document["parameters"]["properties"])
      for document in documents
      if document["name"] == call.name
    )
    arguments = dict(zip(names, call.positional)) | arguments
  return types.ToolCall(call.name, arguments)


def _single(
  entry: Mapping[str, Any], alternatives: Mapping[str, Any]
) -> types.ToolCall:
  """Takes the first value of each parameter that is not "left out"."""
  ((name, gold),) = alternatives.items()
  documents = entry.get("plain_function", entry["function"])
  # With a single document the package does not compare names by it.
  document = next((one for one in documents if one["name"] == name), None)
  parameters = document["parameters"] if document else {}
  required = parameters.get("required", ())
  properties = parameters.get("properties", gold)
  arguments = {}
  for parameter, values in gold.items():
    # Some golds allow a parameter of another function to be left out.
    if "" in values and parameter not in properties:
      continue
    given = [value for value in values if value != ""]
    if given:
      arguments[parameter] = _concrete(given[0])
    elif parameter in required and values:
      arguments[parameter] = values[0]
  if document is not None and "plain_function" in entry:
    is_java = "javascript" not in entry["id"]
    arguments = {
      parameter: (java_text if is_java else javascript_text)(
        value, properties[parameter]
      )
      for parameter, value in arguments.items()
    }
  return types.ToolCall(name, arguments)


def _concrete(value: Any) -> Any:
  """Replaces the alternatives inside dicts by the first of each."""
  if isinstance(value, list):
    return [_concrete(part) for part in value]
  if not isinstance(value, dict):
    return value
  chosen = {}
  for key, values in value.items():
    if not isinstance(values, list):
      chosen[key] = values
    elif given := [part for part in values if part != ""]:
      chosen[key] = _concrete(given[0])
  return chosen


def java_text(value: Any, schema: Mapping[str, Any]) -> str:
  """Writes a value as the Java literal that the package's reader takes.

  Args:
    value: Gold value.
    schema: The parameter's schema, with Java's types.

  Returns:
    A literal; a text stays as it is: it is a string or names a variable.
  """
  if isinstance(value, str):
    return value
  kind = schema["type"]
  nested = schema.get("items", {}).get("type", "")
  if kind == "ArrayList":
    parts = ", ".join(_java_element(part, nested) for part in value)
    return f"new ArrayList<>(Arrays.asList({parts}))" if value else _EMPTY_LIST
  if kind == "Array":
    # The reader keeps quotes inside arrays, so there are none.
    parts = ", ".join(java_text(part, {"type": nested}) for part in value)
    return f"new {nested or 'Object'}[]{{{parts}}}"
  if isinstance(value, dict):
    puts = " ".join(
      f'put("{key}", {_java_element(part, "")});' for key, part in value.items()
    )
    return f"new HashMap<>() {{{{ {puts} }}}}" if value else "new HashMap<>()"
  if isinstance(value, bool):
    return "true" if value else "false"
  suffix = {"long": "L", "float": "f"}.get(kind, "")
  return f"{value}{suffix}"


def _java_element(value: Any, nested: str) -> str:
  """Writes an element of a list, or a map's value, with its quotes."""
  if isinstance(value, str):
    if nested == "any":
      return value
    return f"'{value}'" if nested == "char" else f'"{value}"'
  return java_text(value, {"type": nested})


def javascript_text(value: Any, schema: Mapping[str, Any]) -> str:
  """Writes a value as the JavaScript literal that the package's reader takes.

  Args:
    value: Gold value.
    schema: The parameter's schema, with JavaScript's types.

  Returns:
    A literal; a text stays as it is.
  """
  if isinstance(value, str):
    return value
  suffix = "n" if schema["type"] == "Bigint" else ""
  return json.dumps(value, ensure_ascii=False) + suffix


def unpassable(item: benchmark.Item) -> str:
  """Says why no right answer can pass, from an item's document and gold.

  Args:
    item: Item of the benchmark.

  Returns:
    The reason; empty when the gold can be met.
  """
  if item.category.startswith("multi_turn") or item.row["gold"] is None:
    return ""
  entry = item.row["entry"]
  documents = entry.get("plain_function", entry["function"])
  for alternatives in item.row["gold"]:
    ((name, gold),) = alternatives.items()
    named = [one for one in documents if one["name"] == name]
    if not named:
      continue
    reason = _contradiction(named[0]["parameters"], gold)
    if reason:
      return reason
  return ""


def _contradiction(
  parameters: Mapping[str, Any], gold: Mapping[str, Any]
) -> str:
  """Finds a parameter whose document and gold exclude each other."""
  properties = parameters["properties"]
  for parameter in parameters["required"]:
    if not gold.get(parameter):
      return f"no value of the required {parameter!r} is right"
  for parameter, values in gold.items():
    if "" not in values and parameter not in properties:
      return f"the gold needs {parameter!r}, which the document lacks"
    schema = properties.get(parameter, {})
    if "" not in values and not any(_is_writable(v, schema) for v in values):
      return f"the type of {parameter!r} cannot hold its gold"
  return ""


def _is_writable(value: Any, schema: Mapping[str, Any]) -> bool:
  """Whether some literal of the type is read and compared as this value.

  Java's reader makes all elements of a list of `any` texts; a text inside a
  gold map is taken for the list of its characters.
  """
  if schema.get("type") == "HashMap" and isinstance(value, Mapping):
    return all(isinstance(part, list) for part in value.values())
  if schema.get("type") != "ArrayList" or not isinstance(value, list):
    return True
  if schema.get("items", {}).get("type") != "any":
    return True
  return all(isinstance(part, str) for part in value)
