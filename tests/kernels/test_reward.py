"""Tests of toolrl_jax/kernels/reward.py and reward_schedule.py.

The kernel is checked against plain Python forms of both published rewards,
written here from their formulas and sharing no code with it.
"""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.kernels import reward, reward_schedule
from toolrl_jax.parsing import encode

GRANULARITIES = ["fine", "refined", "intermediate", "coarse"]


# ----- the two rewards in plain Python -----


def _points(gold, call, granularity):
  """What a pair of calls of one name earns in the paper's form."""
  if granularity == "intermediate":
    return float(gold.arguments == call.arguments)
  both = gold.arguments.keys() & call.arguments.keys()
  either = gold.arguments.keys() | call.arguments.keys()
  values = sum(gold.arguments[key] == call.arguments[key] for key in both)
  if granularity == "refined":
    return (both == either) + values
  return (len(both) / len(either) if either else 1.0) + values


def _is_permutation(golds, calls):
  return len(golds) == len(calls) and any(
    list(golds) == list(order) for order in itertools.permutations(calls)
  )


def _paper_correctness(golds, calls, granularity):
  if granularity == "coarse":
    return 3.0 if _is_permutation(golds, calls) else -3.0
  gold_names = {call.name for call in golds}
  names = {call.name for call in calls}
  overlap = len(gold_names & names) / len(gold_names | names)
  if granularity == "refined":
    overlap = float(gold_names == names)
  # Blank partners let any gold call stay alone.
  partners = [*calls, *[None] * len(golds)]
  best = max(
    sum(
      _points(gold, call, granularity)
      for gold, call in zip(golds, chosen, strict=True)
      if call is not None and call.name == gold.name
    )
    for chosen in itertools.permutations(partners, len(golds))
  )
  most = 1 + len(golds)
  if granularity != "intermediate":
    most += sum(len(call.arguments) for call in golds)
  return 6 * (overlap + best) / most - 3


def _multiset_overlap(left, right):
  if not left and not right:
    return 1.0
  both = sum(min(left.count(x), right.count(x)) for x in set(left))
  return both / (len(left) + len(right) - both)


def _authors_correctness(golds, calls, granularity):
  golds, calls = list(golds), list(calls)
  if golds == calls:
    return 3.0
  if granularity == "coarse":
    return -3.0
  is_refined = granularity == "refined"
  compare = (
    (lambda left, right: float(left == right))
    if is_refined
    else _multiset_overlap
  )
  score = compare([g.name for g in golds], [c.name for c in calls])
  most, used = 1.0, set()
  for gold in golds:
    is_whole = granularity == "intermediate"
    most += 1 if is_whole else 1 + len(gold.arguments)
    best, best_index = 0.0, None
    for i, call in enumerate(calls):
      if i in used or call.name != gold.name:
        continue
      if is_whole:
        points = float(gold == call)
      else:
        points = compare(list(gold.arguments), list(call.arguments)) + sum(
          key in call.arguments and call.arguments[key] == value
          for key, value in gold.arguments.items()
        )
      if points > best + 1e-9:
        best, best_index = points, i
    if best_index is not None:
      used.add(best_index)
      score += best
  return 6 * score / most - 3


# ----- random toys through the kernel -----


def _toy_calls(rng, *, least, most, num_names):
  calls = []
  for _ in range(rng.integers(least, most + 1)):
    keys = rng.permutation(["p", "q", "r"])[: rng.integers(0, 4)]
    arguments = {str(key): int(rng.integers(0, 2)) for key in keys}
    calls.append(types.ToolCall("abcde"[rng.integers(num_names)], arguments))
  return tuple(calls)


def _toys(seed, num_toys, num_names=2):
  rng = np.random.default_rng(seed)
  toys = []
  for i in range(num_toys):
    golds = _toy_calls(rng, least=1, most=3, num_names=num_names)
    if i % 3:
      calls = _toy_calls(rng, least=0, most=4, num_names=num_names + 1)
    else:  # near misses: the gold in another order, some keys in another order
      calls = [
        types.ToolCall(call.name, dict(reversed(call.arguments.items())))
        if rng.random() < 0.3
        else call
        for call in golds
      ]
      calls = tuple(calls[j] for j in rng.permutation(len(calls)))
    toys.append((golds, calls))
  return toys


def _parsed(calls):
  return types.ParsedCompletion(
    status=types.ParseStatus.OK,
    calls=calls,
    call_shapes=(types.CallShape.PLAIN,) * len(calls),
    response=None,
    num_think_words=0,
    has_think=True,
    formats_one=frozenset(),
    formats_one_or_two=frozenset(),
  )


def _encode(toys):
  return encode.pad_groups(
    [
      encode.encode_group(
        types.Gold(golds), [_parsed(calls)], equality="python"
      )
      for golds, calls in toys
    ]
  )


def _flags(num_rows):
  return types.CompletionFlags(
    is_format_right=np.ones(num_rows, bool),
    is_readable=np.ones(num_rows, bool),
    has_call=np.ones(num_rows, bool),
    has_think=np.ones(num_rows, bool),
    num_think_words=np.zeros(num_rows, np.int32),
  )


OPTIONS = {
  "scale": "fixed",
  "length": "none",
  "schedule": "paper",
  "schedule_steps": 105,
  "no_call": "zero",
}


@functools.partial(jax.jit, static_argnames=("granularity", "matching"))
def _score(golds, calls, flags, *, granularity="fine", matching="optimal"):
  def score(gold, call, flag):
    return reward.toolrl_reward(
      gold,
      call,
      flag,
      jnp.int32(0),
      granularity=granularity,
      matching=matching,
      **OPTIONS,
    )

  return jax.vmap(score)(golds, calls, flags)


@pytest.fixture(scope="module")
def toys():
  return _toys(0, 1500)


@pytest.fixture(scope="module")
def encoded(toys):
  return _encode(toys)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_toolrl_reward_optimal_equals_the_paper(toys, encoded, granularity):
  parts = _score(*encoded, _flags(len(toys)), granularity=granularity)
  wanted = [_paper_correctness(*toy, granularity) for toy in toys]
  np.testing.assert_allclose(parts.correctness, wanted, atol=2e-6)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_toolrl_reward_greedy_equals_the_authors(toys, encoded, granularity):
  parts = _score(
    *encoded, _flags(len(toys)), granularity=granularity, matching="greedy"
  )
  wanted = [_authors_correctness(*toy, granularity) for toy in toys]
  np.testing.assert_allclose(parts.correctness, wanted, atol=2e-6)


def test_toolrl_reward_success_is_an_exact_match(toys, encoded):
  wanted = [_is_permutation(*toy) for toy in toys]
  assert 50 < sum(wanted) < 1000
  for granularity in GRANULARITIES:
    parts = _score(*encoded, _flags(len(toys)), granularity=granularity)
    np.testing.assert_array_equal(parts.success, wanted)
  wrong = _flags(len(toys))._replace(is_format_right=np.zeros(len(toys), bool))
  assert not _score(*encoded, wrong).success.any()


def test_toolrl_reward_forms_differ_only_on_repeated_names():
  toys = _toys(3, 1500, num_names=4)
  golds, calls = _encode(toys)
  optimal = _score(golds, calls, _flags(1500)).correctness
  greedy = _score(golds, calls, _flags(1500), matching="greedy").correctness
  is_distinct = np.array(
    [
      all(len(side) == len({call.name for call in side}) for side in toy)
      for toy in toys
    ]
  )
  assert is_distinct.sum() > 300
  np.testing.assert_allclose(
    optimal[is_distinct], greedy[is_distinct], atol=2e-6
  )
  assert (np.abs(optimal - greedy) > 0.1).any()


@pytest.mark.parametrize("matching", ["optimal", "greedy"])
def test_toolrl_reward_does_not_see_padding(matching):
  toys = _toys(5, 64)
  golds, calls = _encode(toys)

  def widen(encoded, num_slots):
    pad = lambda x, value, axes: np.pad(
      x, [(0, 0), (0, 4), (0, num_slots)][: axes + 1], constant_values=value
    )
    return encoded._replace(
      name_ids=pad(encoded.name_ids, -1, 1),
      value_ids=pad(encoded.value_ids, -1, 2),
      num_arguments=pad(encoded.num_arguments, 0, 1),
      key_order_ids=pad(encoded.key_order_ids, -2, 1),
      is_plain=pad(encoded.is_plain, False, 1),
    )

  plain = _score(golds, calls, _flags(64), matching=matching)
  wide = _score(widen(golds, 4), widen(calls, 4), _flags(64), matching=matching)
  mixed = _score(golds, widen(calls, 0), _flags(64), matching=matching)
  for other in (wide, mixed):
    np.testing.assert_allclose(plain.total, other.total, atol=1e-6)
    np.testing.assert_array_equal(plain.success, other.success)


def test_toolrl_reward_optimal_does_not_see_order():
  toys = _toys(7, 64)
  turned = [(golds[::-1], calls[::-1]) for golds, calls in toys]
  for granularity in ("fine", "coarse"):
    one = _score(*_encode(toys), _flags(64), granularity=granularity)
    two = _score(*_encode(turned), _flags(64), granularity=granularity)
    np.testing.assert_allclose(one.total, two.total, atol=1e-6)


def test_toolrl_reward_matches_exactly_with_many_calls():
  # Eight gold calls of one name, distinct values: only the right assignment
  # of the reversed calls is perfect.
  golds = tuple(types.ToolCall("a", {"p": i, "q": i}) for i in range(8))
  near = tuple(
    types.ToolCall("a", {"p": i, "q": (i + 1) % 8}) for i in range(8)
  )
  toys = [(golds, golds[::-1]), (golds, near), (golds, near + golds)]
  parts = _score(*_encode(toys), _flags(3))
  # Near: each pair earns 1 + 1 of 3, so (1 + 8 * 2) / 25.
  wanted = [3, 6 * 17 / 25 - 3, 3]
  np.testing.assert_allclose(parts.correctness, wanted, atol=1e-6)
  assert parts.success.tolist() == [True, False, False]


def test_toolrl_reward_traces_once_a_shape():
  chex.clear_trace_counter()

  @jax.jit
  @chex.assert_max_traces(n=1)
  def score(golds, calls, flags, step):
    one = functools.partial(
      reward.toolrl_reward, granularity="fine", matching="optimal", **OPTIONS
    )
    return jax.vmap(one, in_axes=(0, 0, 0, None))(golds, calls, flags, step)

  for step in range(3):
    golds, calls = _encode(_toys(step, 16))
    assert score(golds, calls, _flags(16), np.int32(step)).total.shape == (16,)


def test_scales_at_hand_values():
  scale_at = functools.partial(
    reward_schedule.scales_at, scale="dynamic", schedule_steps=100
  )
  paper = scale_at(jnp.int32(25), schedule="paper")
  np.testing.assert_allclose(paper, [-1.75, 1.75, -2.25, 2.25])
  authors = scale_at(jnp.int32(75), schedule="authors")
  np.testing.assert_allclose(authors, [-1.0, 1.5, -2.5, 2.5])


def test_length_reward_hand_values():
  length = functools.partial(
    reward_schedule.length_reward, schedule="paper", schedule_steps=100
  )
  words = jnp.int32(384)
  assert length(words, jnp.int32(50), length="none") == 0.0
  assert length(words, jnp.int32(50), length="fixed") == 0.75
  assert length(words, jnp.int32(50), length="dynamic") == 0.5  # 384 / 768
