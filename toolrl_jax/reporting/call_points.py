"""What a completion's calls have in common with the gold calls, in points.

    R_match = r_name + sum over matched calls of (r_param + r_value)
    S_max   = 1 + gold calls + gold arguments

The "fine" form of ToolRL (arXiv:2504.13958, section 3.2) taken apart for a
reader, from two texts of one layout. The reward itself is the kernel's; a test
holds this to it. It knows neither runs nor pages.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import optimize

from toolrl_jax import types
from toolrl_jax.parsing import encode, tool_calls

# Pairs of calls that are compared, one by one in Python.
_MOST_PAIRS = 20_000


class CallPoints(NamedTuple):
  """Points of one completion's calls; all 0 where they cannot be read.

  Attributes:
    status: What became of the calls in the text, as "OK" or "BAD_JSON".
    names: Overlap of the tool names, in [0, 1].
    parameters: Overlap of the parameter names, summed over matched calls.
    max_parameters: Its largest value: the gold calls.
    values: Equal argument values, summed over matched calls.
    max_values: Its largest value: the gold arguments.
  """

  status: str
  names: float
  parameters: float
  max_parameters: int
  values: int
  max_values: int

  @property
  def fraction(self) -> float:
    """R_match / S_max, in [0, 1]."""
    most = 1 + self.max_parameters + self.max_values
    return (self.names + self.parameters + self.values) / most


class _Call(NamedTuple):
  """A call with its arguments as keys that are equal iff the values are."""

  name: str
  keys: Mapping[str, Hashable]
  is_whole: bool


def compare(
  completion: str,
  gold: str,
  *,
  style: tool_calls.Style = "toolrl",
  matching: Literal["optimal", "greedy"] = "optimal",
  equality: encode.Equality = "python",
) -> CallPoints | None:
  """Compares the calls of a completion with those of its gold.

  Args:
    completion: Any text.
    gold: Gold text in the same layout, as samples.jsonl has it.
    style: Layout of both.
    matching: How calls are matched and names counted, see
      toolrl_jax.kernels.reward.
    equality: When two values count as equal.

  Returns:
    The points; None where the gold holds no call, or where completion and gold
    hold too many for a page to lay side by side.
  """
  wanted = _calls(tool_calls.parse_completion(gold, style=style), equality)
  if not wanted:
    return None
  parsed = tool_calls.parse_completion(completion, style=style)
  if len(parsed.calls) * len(wanted) > _MOST_PAIRS:
    return None
  made = _calls(parsed, equality)
  sizes = len(wanted), sum(len(call.keys) for call in wanted)
  if _is_failed(parsed.status, made, wanted, matching):
    return CallPoints(parsed.status.name, 0.0, 0.0, sizes[0], 0, sizes[1])
  pairs = _matched(made, wanted, matching)
  return CallPoints(
    parsed.status.name,
    _name_overlap(made, wanted, matching),
    sum(_key_overlap(made[j], wanted[i]) for i, j in pairs),
    sizes[0],
    sum(_num_equal(made[j], wanted[i]) for i, j in pairs),
    sizes[1],
  )


def _calls(
  parsed: types.ParsedCompletion, equality: encode.Equality
) -> list[_Call]:
  return [
    _Call(
      call.name,
      {
        key: encode.equality_key(value, equality=equality)
        for key, value in call.arguments.items()
      },
      shape != types.CallShape.NO_ARGUMENTS,
    )
    for call, shape in zip(parsed.calls, parsed.call_shapes)
  ]


def _is_failed(
  status: types.ParseStatus,
  made: Sequence[_Call],
  wanted: Sequence[_Call],
  matching: str,
) -> bool:
  """Whether the completion earns no point whatever its other calls say."""
  if status == types.ParseStatus.NO_ARGUMENTS and matching == "greedy":
    # The authors' code fails only where it looks for the arguments.
    names = {call.name for call in wanted}
    return any(call.name in names and not call.is_whole for call in made)
  return status != types.ParseStatus.OK


def _key_overlap(made: _Call, wanted: _Call) -> float:
  either = len(made.keys.keys() | wanted.keys.keys())
  both = len(made.keys.keys() & wanted.keys.keys())
  return both / either if either else 1.0


def _num_equal(made: _Call, wanted: _Call) -> int:
  return sum(
    key in made.keys and made.keys[key] == value
    for key, value in wanted.keys.items()
  )


def _name_overlap(
  made: Sequence[_Call], wanted: Sequence[_Call], matching: str
) -> float:
  """Shared over all names: as sets, or as multisets ("greedy")."""
  names = Counter(call.name for call in made)
  gold_names = Counter(call.name for call in wanted)
  if matching == "optimal":
    names, gold_names = Counter(set(names)), Counter(set(gold_names))
  return (names & gold_names).total() / (names | gold_names).total()


def _matched(
  made: Sequence[_Call], wanted: Sequence[_Call], matching: str
) -> list[tuple[int, int]]:
  """Returns pairs of gold call and call that share a name."""
  points = np.array(
    [
      [
        _key_overlap(call, gold) + _num_equal(call, gold)
        if call.name == gold.name
        else 0.0
        for call in made
      ]
      for gold in wanted
    ]
  ).reshape(len(wanted), len(made))
  if matching == "optimal":
    rows, columns = optimize.linear_sum_assignment(-points)
  else:
    rows, columns = _greedy(points)
  return [
    (int(i), int(j))
    for i, j in zip(rows, columns)
    if made[j].name == wanted[i].name
  ]


def _greedy(points: np.ndarray) -> tuple[list[int], list[int]]:
  """Lets each gold call in order take the best unused call, if any fits."""
  rows, columns, free = [], [], points.copy()
  for i in range(points.shape[0]):
    if free.shape[1] and free[i].max() > 0:
      rows.append(i)
      columns.append(int(free[i].argmax()))
      free[:, columns[-1]] = 0.0
  return rows, columns
