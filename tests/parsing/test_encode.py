"""Tests of toolrl_jax/parsing/encode.py."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.parsing import encode, tool_calls

_values = st.recursive(
  st.none()
  | st.booleans()
  | st.integers(-2, 2)
  | st.sampled_from([0.0, -0.0, 1.0, 2.0**53, 2**53, 2**53 + 1, "1", "", "a"]),
  lambda inner: (
    st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
  ),
  max_leaves=4,
)


def _is_strictly_equal(left, right):
  """The rule "strict", written out by type."""
  if type(left) is not type(right):
    return False
  if isinstance(left, dict):
    return left.keys() == right.keys() and all(
      _is_strictly_equal(value, right[key]) for key, value in left.items()
    )
  if isinstance(left, list):
    return len(left) == len(right) and all(
      _is_strictly_equal(*pair) for pair in zip(left, right, strict=True)
    )
  return left == right and str(left) == str(right)


def _loop_sets(value):
  """LoopTool's normal form: everything becomes frozen sets."""
  if isinstance(value, dict):
    return frozenset((key, _loop_sets(item)) for key, item in value.items())
  if isinstance(value, list):
    return frozenset(_loop_sets(item) for item in value)
  return value


@hypothesis.given(_values, _values)
@hypothesis.settings(max_examples=500, deadline=None)
def test_equality_key_agrees_with_each_rule(left, right):
  keys = {
    rule: [encode.equality_key(v, equality=rule) for v in (left, right)]
    for rule in ("python", "strict", "sets")
  }
  assert (keys["python"][0] == keys["python"][1]) == (left == right)
  strict = _is_strictly_equal(left, right)
  assert (keys["strict"][0] == keys["strict"][1]) == strict
  sets = _loop_sets(left) == _loop_sets(right)
  assert (keys["sets"][0] == keys["sets"][1]) == sets
  for pair in keys.values():
    assert (len(set(pair)) == 1) == (pair[0] == pair[1])


@pytest.mark.parametrize(
  ("left", "right", "python", "strict", "sets"),
  [
    (1, 1.0, True, False, True),
    (1, True, True, False, True),
    (1, "1", False, False, False),
    (0.0, -0.0, True, False, True),
    (2**53 + 1, float(2**53), False, False, False),
    (2**53, float(2**53), True, False, True),
    (float("nan"), float("nan"), False, True, False),
    (float("inf"), float("inf"), True, True, True),
    ([1, 2], [2, 1], False, False, True),
    ([1, 1], [1], False, False, True),
    ([1, [2.0]], [1.0, [2]], True, False, True),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, True, True),
    ({"a": [1]}, {"a": [True]}, True, False, True),
    ([], {}, False, False, True),
    ([["a", 1]], {"a": 1}, False, False, False),
    ("\ud800", "\ud800", True, True, True),
    (None, False, False, False, False),
    (10**400, 10**400, True, True, True),
    ((1, 2), [1, 2], True, True, True),
  ],
)
def test_equality_key_literal_cases(left, right, python, strict, sets):
  wanted = {"python": python, "strict": strict, "sets": sets}
  for rule, is_equal in wanted.items():
    key_left = encode.equality_key(left, equality=rule)
    key_right = encode.equality_key(right, equality=rule)
    assert (key_left == key_right) is is_equal, rule


@pytest.mark.parametrize("equality", ["python", "strict", "sets"])
def test_equality_key_refuses_what_is_no_json(equality):
  with pytest.raises(ValueError, match="JSON value, got bytes"):
    encode.equality_key(b"x", equality=equality)


@pytest.mark.parametrize(
  ("size", "least", "padded"),
  [(0, 4, 4), (1, 1, 1), (4, 4, 4), (5, 4, 8), (8, 4, 8), (129, 8, 256)],
)
def test_bucket_rounds_up_to_powers_of_two(size, least, padded):
  assert encode.bucket(size, least=least) == padded


def _parse(*calls):
  gold = types.Gold(tuple(types.ToolCall(n, a) for n, a in calls))
  return tool_calls.parse_completion(tool_calls.render_gold(gold))


def _gold(*calls):
  return types.Gold(tuple(types.ToolCall(n, a) for n, a in calls))


def _encode(gold, completions, num_rows=None):
  group = encode.encode_group(gold, completions, equality="python")
  return encode.pad_groups([group], num_rows=num_rows)


def test_encode_literal_arrays():
  gold = _gold(("a", {"p": 1, "q": "x"}), ("b", {}), ("a", {"q": "y"}))
  completion = _parse(
    ("z", {"p": 1}),  # no gold call has this name: counted only
    ("a", {"q": "y", "p": 9, "r": 0}),  # 9 is unknown, r has no slot
    ("b", {}),
  )
  golds, calls = _encode(gold, [completion], num_rows=2)
  # Slots are p, q; names a = 0, b = 1; values of q: "x" = 0, "y" = 1.
  assert golds.name_ids[0].tolist() == [0, 1, 0, -1]
  assert golds.value_ids[0, :, :2].tolist() == [
    [0, 0],
    [-1, -1],
    [-1, 1],
    [-1, -1],
  ]
  assert golds.num_arguments[0].tolist() == [2, 0, 1, 0]
  assert golds.key_order_ids[0, :3].tolist() == [0, 1, 2]
  assert (golds.num_calls[0], golds.num_names[0]) == (3, 2)
  assert calls.name_ids[0].tolist() == [0, 1, -1, -1]
  assert calls.value_ids[0, :2, :2].tolist() == [[-2, 1], [-1, -1]]
  assert calls.num_arguments[0].tolist() == [3, 0, 0, 0]
  assert calls.key_order_ids[0, :2].tolist() == [-2, 1]
  assert (calls.num_calls[0], calls.num_names[0]) == (3, 3)
  # The second row is padding.
  assert calls.num_calls[1] == 0 and (calls.name_ids[1] == -1).all()


def test_encode_keeps_order_of_keys_apart():
  gold = _gold(("a", {"p": 1, "q": 2}))
  swapped = _parse(("a", {"q": 2, "p": 1}))
  golds, calls = _encode(gold, [swapped])
  assert (golds.value_ids[0, 0] == calls.value_ids[0, 0]).all()
  assert golds.key_order_ids[0, 0] == 0 and calls.key_order_ids[0, 0] == -2


def test_encode_marks_calls_without_arguments():
  text = '<tool_call>\n{"name":"a"}\n{"name":"a","parameters":{},"x":1}\n'
  completion = tool_calls.parse_completion(text + "</tool_call>")
  _, calls = _encode(_gold(("a", {})), [completion])
  assert calls.num_arguments[0, 0] == -1
  assert not calls.is_plain[0, 0]


def test_encode_bounds_rows_by_copies_a_matching_can_use():
  gold = _gold(("a", {"p": 1}), ("a", {"p": 2}))
  repeated = _parse(*[("a", {"p": 1})] * 500, ("a", {"p": 2}))
  _, calls = _encode(gold, [repeated])
  assert calls.name_ids.shape == (1, 4)
  assert (calls.name_ids[0] >= 0).sum() == 3
  assert calls.num_calls[0] == 501
  # Values that no gold call holds are one and the same.
  varied = _parse(*[("a", {"p": n}) for n in range(10, 300)])
  _, calls = _encode(gold, [varied])
  assert (calls.name_ids[0] >= 0).sum() == 2


def test_encode_pads_to_few_shapes():
  shapes = set()
  for num_calls in range(5):
    for num_keys in range(5):
      call = ("a", {str(k): k for k in range(num_keys)})
      completion = _parse(*[call] * num_calls)
      golds, calls = _encode(_gold(*[call] * num_calls), [completion])
      shapes.add((golds.value_ids.shape, calls.value_ids.shape))
  assert shapes == {((1, 4, 4), (1, 4, 4))}


def test_encode_refuses_gold_that_holds_itself():
  items = []
  items.append(items)
  gold = types.Gold((types.ToolCall("a", {"p": items}),), None)
  with pytest.raises(ValueError, match="nested too deeply or holds itself"):
    _encode(gold, [])


def test_encode_of_nothing_is_empty():
  golds, calls = encode.pad_groups([], num_rows=8)
  assert golds.value_ids.shape == calls.value_ids.shape == (8, 4, 4)
  assert calls.name_ids.dtype == np.int32
