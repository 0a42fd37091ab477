"""Calls to integers: names, keys and values interned by an equality rule.

From gold records and parsed completions to two EncodedCalls, row i of each for
completion i: a group at a time, then all of them padded. Every integer is relative to the gold of its completion (see
EncodedCalls), so nothing grows with the run and the rows stay short however
long a completion is. It does not score.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from toolrl_jax import types

Equality = Literal["python", "strict", "sets"]

_ABSENT = -1
_UNMATCHED = -2
# Smallest padded numbers of calls and of arguments: most rows fit, so that a
# run compiles the reward kernel for one or two shapes only.
_MIN_CALLS = 4
_MIN_ARGUMENTS = 4


class _Row(NamedTuple):
  """One call as integers; equal rows are interchangeable in any matching."""

  name_id: int
  value_ids: tuple[int, ...]
  num_arguments: int
  key_order_id: int
  is_plain: bool


class _Rows(NamedTuple):
  """The calls of one completion or gold as integers."""

  rows: list[_Row]
  num_calls: int
  num_names: int


class _GoldTables(NamedTuple):
  """Ids that the gold calls of one prompt give out."""

  names: dict[str, int]
  slots: dict[str, int]
  values: list[dict[Hashable, int]]
  key_orders: dict[tuple[str, ...], int]


def bucket(size: int, *, least: int) -> int:
  """Rounds a size up to a power of two, so that few shapes are compiled.

  Args:
    size: What has to fit, at least 0.
    least: Smallest size given, a power of two.

  Returns:
    The smallest power of two that is at least `size` and `least`.
  """
  return max(least, 1 << max(size - 1, 0).bit_length())


def equality_key(value: Any, *, equality: Equality) -> Hashable:
  """Maps a JSON value to a key; keys are equal iff the values are.

  * "python": Python's `==`, nested too: 1 == 1.0 == True, 0.0 == -0.0,
    2**53 + 1 != 2.0**53, lists in order, NaN equals nothing.
  * "strict": equal canonical JSON: 1, 1.0, True and "1" all differ, and so do
    0.0 and -0.0; NaN equals NaN. As in Tool-N1.
  * "sets": as "python", but a list counts as the set of its items and an
    object as the set of its pairs, so [] equals {}. As in LoopTool
    (arXiv:2511.09148).

  Args:
    value: A JSON value; tuples count as lists.
    equality: The rule.

  Returns:
    A hashable key.

  Raises:
    ValueError: The value is not JSON.
  """
  if equality == "strict":
    try:
      return json.dumps(value, sort_keys=True)
    except TypeError:
      raise ValueError(_not_json(value)) from None
  if isinstance(value, float) and value != value:
    return object()
  if value is None or isinstance(value, str | int | float):
    return value
  if isinstance(value, Mapping):
    pairs = [
      (name, equality_key(item, equality=equality))
      for name, item in value.items()
    ]
    items = frozenset(pairs)
    return items if equality == "sets" else ("object", items)
  if not isinstance(value, list | tuple):
    raise ValueError(_not_json(value))
  keys = [equality_key(item, equality=equality) for item in value]
  return frozenset(keys) if equality == "sets" else ("list", tuple(keys))


class EncodedGroup(NamedTuple):
  """The completions of one gold as integers, before they are padded.

  Attributes:
    gold: Calls of the gold.
    rows: Calls of each completion.
    num_slots: Argument keys of the gold.
  """

  gold: _Rows
  rows: list[_Rows]
  num_slots: int


def encode_group(
  gold: types.Gold,
  completions: Sequence[types.ParsedCompletion],
  *,
  equality: Equality,
) -> EncodedGroup:
  """Encodes the completions that one gold belongs to.

  Args:
    gold: What is right.
    completions: Parsed completions.
    equality: When two argument values count as equal.

  Returns:
    Their calls, unpadded.

  Raises:
    ValueError: A gold argument is not JSON, or is nested too deeply.
  """
  try:
    tables = _gold_tables(gold, equality)
  except RecursionError:
    raise ValueError(
      "a gold argument is nested too deeply or holds itself; flatten it."
    ) from None
  encoded = (
    _encode_calls(one.calls, one.call_shapes, tables, equality)
    for one in completions
  )
  return EncodedGroup(
    _encode_calls(gold.calls, None, tables, equality),
    [_drop_spare_copies(one, len(gold.calls)) for one in encoded],
    len(tables.slots),
  )


def pad_groups(
  groups: Sequence[EncodedGroup], *, num_rows: int | None = None
) -> tuple[types.EncodedCalls, types.EncodedCalls]:
  """Lays completions out as arrays and, beside each, its gold.

  Args:
    groups: Encoded groups; their completions are rows one after another.
    num_rows: Leading size of the arrays; rows beyond the completions are
      empty. None: no such rows.

  Returns:
    Gold calls and predicted calls, both with the leading dimension
    `num_rows`; C and K are padded to powers of two, C of each on its own.
  """
  rows = [row for group in groups for row in group.rows]
  golds = [group.gold for group in groups for _ in group.rows]
  num_slots = bucket(
    max((group.num_slots for group in groups), default=0),
    least=_MIN_ARGUMENTS,
  )
  num_rows = len(rows) if num_rows is None else num_rows
  return _pad(golds, num_rows, num_slots), _pad(rows, num_rows, num_slots)


def _not_json(value: Any) -> str:
  """Says that a gold argument is no JSON value."""
  return (
    f"an argument must be a JSON value, got {type(value).__name__}; convert "
    "the gold record."
  )


def _gold_tables(gold: types.Gold, equality: Equality) -> _GoldTables:
  """Gives ids to all that occurs in the gold calls of one prompt."""
  tables = _GoldTables({}, {}, [], {})
  for call in gold.calls:
    tables.names.setdefault(call.name, len(tables.names))
    tables.key_orders.setdefault(tuple(call.arguments), len(tables.key_orders))
    for key, value in call.arguments.items():
      slot = tables.slots.setdefault(key, len(tables.slots))
      if slot == len(tables.values):
        tables.values.append({})
      ids = tables.values[slot]
      ids.setdefault(equality_key(value, equality=equality), len(ids))
  return tables


def _encode_calls(
  calls: Sequence[types.ToolCall],
  shapes: Sequence[types.CallShape] | None,
  tables: _GoldTables,
  equality: Equality,
) -> _Rows:
  """Looks up the calls whose name the gold has, and counts them all."""
  rows = []
  for i, call in enumerate(calls):
    name_id = tables.names.get(call.name)
    if name_id is None:
      continue
    shape = types.CallShape.PLAIN if shapes is None else shapes[i]
    value_ids = [_ABSENT] * len(tables.slots)
    for key, value in call.arguments.items():
      slot = tables.slots.get(key)
      if slot is not None:
        value_ids[slot] = tables.values[slot].get(
          equality_key(value, equality=equality), _UNMATCHED
        )
    is_whole = shape != types.CallShape.NO_ARGUMENTS
    rows.append(
      _Row(
        name_id,
        tuple(value_ids),
        len(call.arguments) if is_whole else -1,
        tables.key_orders.get(tuple(call.arguments), _UNMATCHED),
        shape == types.CallShape.PLAIN,
      )
    )
  return _Rows(rows, len(calls), len({call.name for call in calls}))


def _drop_spare_copies(encoded: _Rows, num_gold_calls: int) -> _Rows:
  """Drops the copies of a row that no gold call is left for.

  A model that repeats one call a thousand times would blow up the padding;
  any matching uses at most one copy for each gold call.
  """
  if len(encoded.rows) <= num_gold_calls:
    return encoded
  copies: dict[_Row, int] = {}
  kept = []
  for row in encoded.rows:
    copies[row] = copies.get(row, 0) + 1
    if copies[row] <= num_gold_calls:
      kept.append(row)
  return encoded._replace(rows=kept)


def _pad(
  encoded: Sequence[_Rows], num_rows: int, num_slots: int
) -> types.EncodedCalls:
  """Lays the rows out as arrays [num_rows, C] and [num_rows, C, K]."""
  num_calls = bucket(
    max((len(one.rows) for one in encoded), default=0), least=_MIN_CALLS
  )
  shape = (num_rows, num_calls)
  arrays = types.EncodedCalls(
    name_ids=np.full(shape, -1, np.int32),
    value_ids=np.full((*shape, num_slots), _ABSENT, np.int32),
    num_arguments=np.zeros(shape, np.int32),
    key_order_ids=np.full(shape, _UNMATCHED, np.int32),
    is_plain=np.zeros(shape, bool),
    num_calls=np.zeros(num_rows, np.int32),
    num_names=np.zeros(num_rows, np.int32),
  )
  for i, one in enumerate(encoded):
    arrays.num_calls[i], arrays.num_names[i] = one.num_calls, one.num_names
    for j, row in enumerate(one.rows):
      arrays.name_ids[i, j] = row.name_id
      arrays.value_ids[i, j, : len(row.value_ids)] = row.value_ids
      arrays.num_arguments[i, j] = row.num_arguments
      arrays.key_order_ids[i, j] = row.key_order_id
      arrays.is_plain[i, j] = row.is_plain
  return arrays
