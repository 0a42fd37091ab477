"""ACEBench's rules for calls and sentences, one hand-made case each."""

import pytest

from toolrl_jax import types
from toolrl_jax.evaluation import acebench_checker

pytestmark = pytest.mark.quick


def _document(**properties):
  return {
    "name": "find",
    "parameters": {
      "type": "object",
      "properties": {
        name: one if isinstance(one, dict) else {"type": one}
        for name, one in properties.items()
      },
      "required": ["must"] if "must" in properties else [],
    },
  }


def _is_right(arguments, gold, document, name="find"):
  return acebench_checker.is_normal_right(
    [types.ToolCall(name, arguments)], {"find": gold}, [document]
  )


_STRINGS = _document(must="string", may="string")
_GOLD = {"must": "New York", "may": "x"}


@pytest.mark.parametrize(
  ("arguments", "is_right"),
  [
    ({"must": "New York", "may": "x"}, True),
    # What the schema does not require may be left out ...
    ({"must": "new-york"}, True),
    # ... what it does, may not; and nothing may be added.
    ({"may": "x"}, False),
    ({"must": "New York", "more": 1}, False),
    # A string passes that contains the gold.
    ({"must": "the city of NEW YORK"}, True),
    ({"must": "York"}, False),
    ({"must": 3}, False),
    ({"must": None}, False),
    ({}, False),
  ],
)
def test_strings_and_presence(arguments, is_right):
  assert _is_right(arguments, _GOLD, _STRINGS) is is_right


@pytest.mark.parametrize(
  ("schema", "gold", "value", "is_right"),
  [
    # Numbers and truth values need the right type only, as upstream.
    ("integer", 3, 4, True),
    ("integer", 3, 4.0, False),
    ("integer", 3, True, False),
    ("number", 1.5, 2.5, True),
    ("float", 1.5, 2, True),
    ("boolean", True, False, True),
    ("boolean", True, "false", True),
    ("boolean", True, "yes", False),
    # A gold of another type than the schema's settles the argument.
    ("integer", "3", "4", True),
    ({"type": "string"}, "", "anything", True),
    # Lists are compared in order, strings in them without their dress.
    ({"type": "array", "items": {"type": "string"}}, ["A b"], ["ab"], True),
    (
      {"type": "array", "items": {"type": "string"}},
      ["a", "b"],
      ["b", "a"],
      False,
    ),
    ({"type": "array", "items": {"type": "string"}}, [], [], False),
    ({"type": "array", "items": {"type": "string"}}, ["a"], ("a",), False),
    # Dictionaries: the same keys, and the gold's text in each value.
    ("object", {"k": "ab", "n": 5}, {"k": "xabx", "n": 15}, True),
    ("object", {"k": "ab"}, {"k": "ab", "n": 1}, False),
    ("object", {"k": {"m": 1}}, {"k": {"m": 2}}, False),
    ("object", {"k": {"m": 1}}, {"k": 1}, False),
    (
      {"type": "array", "items": {"type": "object"}},
      [{"k": 1}, {"k": 2}],
      [{"k": 1}],
      False,
    ),
    ("a type nobody knows", "x", "x", False),
  ],
)
def test_values_by_type(schema, gold, value, is_right):
  document = _document(key=schema)
  assert _is_right({"key": value}, {"key": gold}, document) is is_right


def test_alternatives_names_and_counts():
  gold = [{"find": {"must": "a"}}, {"find": {"must": "b"}}]
  for city, is_right in (("a", True), ("b", True), ("c", False)):
    call = types.ToolCall("find", {"must": city})
    documents = [_STRINGS]
    judge = acebench_checker.is_normal_right
    assert judge([call], gold, documents) is is_right
    assert not judge([call, call], gold, documents)
    assert not judge([], gold, documents)
    assert not judge([call._replace(name="seek")], gold, documents)
    # A document that is not in the list, or whose form is another.
    assert not judge([call], gold, [])
    assert not judge([call], gold, [{"name": "find", "arguments": {}}])


def test_repeated_calls_in_any_order():
  gold = {"find": {"must": "a"}, "find_1": {"must": "b"}}
  assert [c.name for c in acebench_checker.gold_calls(gold)] == ["find", "find"]
  a, b = (types.ToolCall("find", {"must": one}) for one in "ab")
  for calls, is_right in (([a, b], True), ([b, a], True), ([a, a], False)):
    judged = acebench_checker.is_normal_right(calls, gold, [_STRINGS])
    assert judged is is_right
  # Upstream's matching is not one to one.
  both = types.ToolCall("find", {"must": "a and b"})
  other = types.ToolCall("find", {"must": "c"})
  assert acebench_checker.is_normal_right([both, other], gold, [_STRINGS])


def test_a_call_without_arguments_needs_an_empty_schema():
  call = types.ToolCall("find", {})
  judge = acebench_checker.is_normal_right
  assert judge([call], {"find": {}}, [{"name": "find", "parameters": {}}])
  # Upstream's oddity: a schema that says "no properties" is not empty.
  assert not judge([call], {"find": {}}, [_document()])


@pytest.mark.parametrize(
  ("category", "gold", "text", "is_right"),
  [
    (
      "special_incomplete",
      {"Api": ["k1", "k2"]},
      '["Missing necessary parameters (k1, k2) for the api (Api)"]',
      True,
    ),
    (
      "special_incomplete",
      {"Api": ["k1", "k2"]},
      '["Missing necessary parameters (k1) for the api (Api)"]',
      False,
    ),
    (
      "special_incomplete",
      {"Api": ["k1"]},
      "Missing necessary parameters k1",
      False,
    ),
    ("special_incomplete", {"Api": ["k1"]}, "Please give k1 of Api", False),
    (
      "special_error_param",
      {"id": ["12x"]},
      "There is incorrect value (12x) for the parameters (other)",
      True,
    ),
    ("special_error_param", {"id": ["12x"]}, "There is incorrect value", False),
    ("special_error_param", {"id": ["12x"]}, "12x is wrong", False),
    ("special_irrelevant", "-", "due to the limitations of the function", True),
    ("special_irrelevant", "-", "I cannot do this", False),
  ],
)
def test_special_sentences(category, gold, text, is_right):
  judged = acebench_checker.is_special_right(text, gold, category)
  assert judged is is_right
