"""Reward: encoded calls of one completion to its reward and parts.

From the EncodedCalls of one gold and one completion, and a few flags, to
RewardParts. The caller vmaps over completions. It sees no text: what counts as
equal was decided when the calls were encoded.

`matching` picks between the two published forms as a whole:

1. "optimal", the paper of ToolRL (arXiv:2504.13958, section 3): calls are
   matched to gold calls by the assignment with the largest sum; names count as
   sets; no part depends on the order of calls or keys. A name that is called
   too often therefore costs nothing; only `success` sees it.
2. "greedy", the authors' code: gold calls in order take the best unused call;
   names count as multisets; "refined" and "coarse" also ask for the order.

In both, empty keys against empty keys are a full match, and a call without an
object of arguments fails the completion ("greedy": where it is looked at).
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from toolrl_jax import types
from toolrl_jax.kernels import reward_schedule

Name = Literal["toolrl", "n1", "looptool"]
Matching = Literal["optimal", "greedy"]
Granularity = Literal["fine", "refined", "intermediate", "coarse"]
NoCall = Literal["zero", "match"]


class _Pairs(NamedTuple):
  """What each gold call [C] has in common with each predicted call [P]."""

  has_same_name: Bool[Array, "C P"]
  key_overlap: Float[Array, "C P"]
  has_same_keys: Bool[Array, "C P"]
  has_same_key_order: Bool[Array, "C P"]
  num_equal_values: Int[Array, "C P"]
  is_equal: Bool[Array, "C P"]


def toolrl_reward(
  gold: types.EncodedCalls,
  calls: types.EncodedCalls,
  flags: types.CompletionFlags,
  step: Int[Array, ""],
  *,
  matching: Matching,
  scale: reward_schedule.Scale,
  granularity: Granularity,
  length: reward_schedule.Length,
  schedule: reward_schedule.Schedule,
  schedule_steps: int,
  no_call: NoCall,
) -> types.RewardParts:
  """Scores one completion with the reward of ToolRL.

      R = R_format + R_correct + R_length
      R_correct = min + (max - min) * R_match / S_max

  See "ToolRL" (arXiv:2504.13958, section 3; variants in section 5).

  Args:
    gold: Gold calls of the prompt.
    calls: Calls of the completion.
    flags: Format and thinking of the completion.
    step: Training step, from 0; only the scheduled variants look at it.
    matching: Form of the reward, see the module.
    scale: Range of the terms.
    granularity: How far a call is taken apart.
    length: Term for long thinking.
    schedule: Constants of the scheduled variants; also rounds the length
      term to two digits ("authors").
    schedule_steps: Steps of the run, at least 1, for the paper's schedules.
    no_call: Correctness of a gold without calls: "zero", or "match": the
      largest when no call is made, the least when one is.

  Returns:
    The reward and its parts. `success` is a right format with exactly the gold
    calls, each as often as in the gold, and a correctness that cannot grow;
    for a gold without calls, a right format and no call.
  """
  scales = reward_schedule.scales_at(
    step, scale=scale, schedule=schedule, schedule_steps=schedule_steps
  )
  pairs = _compare(gold, calls)
  fraction = _match_fraction(pairs, gold, calls, granularity, matching)
  is_failed = ~flags.is_readable
  if matching == "greedy" and granularity in ("fine", "refined"):
    # The authors' code looks into the arguments of every name that matches.
    is_failed |= jnp.any((calls.num_arguments < 0) & (calls.name_ids >= 0))
  fraction = jnp.where(is_failed, 0.0, fraction)
  is_gold_call = gold.num_calls > 0
  is_abstaining = ~is_gold_call & ~flags.has_call

  span = scales.correctness_max - scales.correctness_min
  correctness = scales.correctness_min + span * fraction
  if no_call == "match":
    without_call = jnp.where(
      is_abstaining, scales.correctness_max, scales.correctness_min
    )
  else:
    without_call = jnp.zeros((), jnp.float32)
  correctness = jnp.where(is_gold_call, correctness, without_call)
  format_term = jnp.where(
    flags.is_format_right, scales.format_max, scales.format_min
  )
  length_term = reward_schedule.length_reward(
    jnp.asarray(flags.num_think_words),
    step,
    length=length,
    schedule=schedule,
    schedule_steps=schedule_steps,
  )
  is_exact = _has_same_calls(pairs, gold, calls) & (fraction >= 1.0)
  is_right = jnp.where(is_gold_call, is_exact & ~is_failed, is_abstaining)
  return types.RewardParts(
    total=format_term + correctness + length_term,
    format=format_term,
    correctness=correctness,
    length=length_term,
    success=is_right & flags.is_format_right,
  )


def n1_reward(
  gold: types.EncodedCalls,
  calls: types.EncodedCalls,
  flags: types.CompletionFlags,
  *,
  no_call: NoCall,
) -> types.RewardParts:
  """Scores one completion 1 or 0 as Tool-N1 does.

  1 iff both think tags are there and the calls equal the gold calls, each as
  often, in any order; the calls should be encoded with "strict" equality. See
  "Tool-N1" (arXiv:2505.00024) and arXiv:2606.00135.

  Args:
    gold: Gold calls of the prompt.
    calls: Calls of the completion.
    flags: Format and thinking of the completion.
    no_call: For a gold without calls: "zero" asks for an empty list of calls,
      "match" also takes a completion without a call.

  Returns:
    The reward, all of it as correctness; `success` is a reward of 1.
  """
  is_right = flags.is_readable & _has_same_calls(
    _compare(gold, calls), gold, calls
  )
  if no_call == "match":
    is_right |= (gold.num_calls == 0) & ~flags.has_call
  return _binary(jnp.asarray(is_right & flags.has_think))


def looptool_reward(
  gold: types.EncodedCalls,
  calls: types.EncodedCalls,
  flags: types.CompletionFlags,
) -> types.RewardParts:
  """Scores one completion 1 or 0 as LoopTool's code does.

  1 iff there are as many calls as gold calls and, repeats aside, the same
  ones; a call must have no further keys. Gold without a call: 1 iff no call is
  made. The calls should be encoded with "sets" equality. See "LoopTool"
  (arXiv:2511.09148).

  Args:
    gold: Gold calls of the prompt.
    calls: Calls of the completion.
    flags: Format and thinking of the completion.

  Returns:
    The reward, all of it as correctness; `success` is a reward of 1.
  """
  is_equal = _compare(gold, calls).is_equal & calls.is_plain
  is_gold, is_call = gold.name_ids >= 0, calls.name_ids >= 0
  is_same = (
    flags.is_readable
    & (calls.num_calls == gold.num_calls)
    & (jnp.sum(is_call) == calls.num_calls)
    & jnp.all(jnp.any(is_equal, axis=1) | ~is_gold)
    & jnp.all(jnp.any(is_equal, axis=0) | ~is_call)
  )
  return _binary(jnp.where(gold.num_calls > 0, is_same, ~flags.has_call))


def _binary(is_right: Bool[Array, ""]) -> types.RewardParts:
  """A reward of 1 or 0, booked as correctness."""
  reward, zero = is_right.astype(jnp.float32), jnp.zeros((), jnp.float32)
  return types.RewardParts(
    total=reward,
    format=zero,
    correctness=reward,
    length=zero,
    success=is_right,
  )


def _compare(gold: types.EncodedCalls, calls: types.EncodedCalls) -> _Pairs:
  """Compares every gold call with every predicted call."""
  same_name = (gold.name_ids[:, None] == calls.name_ids[None, :]) & (
    gold.name_ids[:, None] >= 0
  )
  gold_values = gold.value_ids[:, None, :]
  call_values = calls.value_ids[None, :, :]
  num_shared = jnp.sum((gold_values != -1) & (call_values != -1), axis=-1)
  num_equal = jnp.sum(
    (gold_values >= 0) & (gold_values == call_values), axis=-1
  )
  num_gold = gold.num_arguments[:, None]
  num_call = calls.num_arguments[None, :]
  num_either = num_gold + num_call - num_shared
  same_keys = (num_shared == num_gold) & (num_shared == num_call)
  overlap = num_shared / jnp.maximum(num_either, 1)
  return _Pairs(
    has_same_name=same_name,
    key_overlap=jnp.where(same_keys, 1.0, overlap).astype(jnp.float32),
    has_same_keys=same_keys,
    has_same_key_order=(
      gold.key_order_ids[:, None] == calls.key_order_ids[None, :]
    )
    & same_keys,
    num_equal_values=num_equal,
    is_equal=same_name & same_keys & (num_equal == num_gold),
  )


def _match_fraction(
  pairs: _Pairs,
  gold: types.EncodedCalls,
  calls: types.EncodedCalls,
  granularity: Granularity,
  matching: Matching,
) -> Float[Array, ""]:
  """R_match / S_max: what share of the gold the calls have, in [0, 1]."""
  is_greedy = matching == "greedy"
  if granularity == "coarse":
    is_same = (
      _is_same_list(pairs, gold, calls)
      if is_greedy
      else _has_same_calls(pairs, gold, calls)
    )
    return is_same.astype(jnp.float32)
  num_points = gold.num_calls
  if granularity == "intermediate":
    # The authors' code compares whole objects, further keys included.
    points = pairs.is_equal & (calls.is_plain | (not is_greedy))
  elif granularity == "refined":
    keys = pairs.has_same_key_order if is_greedy else pairs.has_same_keys
    points = keys + pairs.num_equal_values
    num_points += jnp.sum(gold.num_arguments)
  else:
    points = pairs.key_overlap + pairs.num_equal_values
    num_points += jnp.sum(gold.num_arguments)
  points = jnp.where(pairs.has_same_name, points.astype(jnp.float32), 0.0)
  matched = _greedy_sum(points) if is_greedy else _optimal_sum(points)
  names = _name_score(pairs, gold, calls, granularity, is_greedy)
  fraction = (names + matched) / (1.0 + num_points)
  if is_greedy:
    # The authors' code first compares the lists, blind to the order of keys.
    fraction = jnp.where(_is_same_list(pairs, gold, calls), 1.0, fraction)
  return fraction


def _greedy_sum(points: Float[Array, "C P"]) -> Float[Array, ""]:
  """Lets each gold call in order take the best unused call, if any fits."""

  def take_best(is_used, row):
    free = jnp.where(is_used, 0.0, row)
    best = jnp.argmax(free)
    return is_used.at[best].set(is_used[best] | (free[best] > 0)), free[best]

  unused = jnp.zeros(points.shape[1], bool)
  _, taken = jax.lax.scan(take_best, unused, points)
  return jnp.sum(taken)


def _optimal_sum(points: Float[Array, "C P"]) -> Float[Array, ""]:
  """Largest sum over all one-to-one matchings of calls to gold calls."""
  rows, columns = optax.assignment.hungarian_algorithm(-points)
  return jnp.sum(points[rows, columns])


def _name_score(
  pairs: _Pairs,
  gold: types.EncodedCalls,
  calls: types.EncodedCalls,
  granularity: Granularity,
  is_greedy: bool,
) -> Float[Array, ""]:
  """r_name: overlap of the tool names, or their equality if "refined"."""
  if is_greedy and granularity == "refined":
    return _has_same_names_in_order(gold, calls).astype(jnp.float32)
  is_gold = gold.name_ids >= 0
  is_twin = (gold.name_ids[:, None] == gold.name_ids[None, :]) & is_gold
  is_first = is_gold & (jnp.argmax(is_twin, axis=1) == jnp.arange(is_gold.size))
  num_in_calls = jnp.sum(pairs.has_same_name, axis=1)
  if is_greedy:
    both = jnp.minimum(jnp.sum(is_twin, axis=1), num_in_calls)
    num_both = jnp.sum(jnp.where(is_first, both, 0))
    num_either = gold.num_calls + calls.num_calls - num_both
  else:
    num_both = jnp.sum(is_first & (num_in_calls > 0))
    num_either = gold.num_names + calls.num_names - num_both
  if granularity == "refined":
    return (num_both == num_either).astype(jnp.float32)
  return (num_both / jnp.maximum(num_either, 1)).astype(jnp.float32)


def _has_same_calls(
  pairs: _Pairs, gold: types.EncodedCalls, calls: types.EncodedCalls
) -> Bool[Array, ""]:
  """Whether the calls are the gold calls, each as often, in any order."""
  is_twin = _compare(gold, gold).is_equal
  is_as_often = jnp.sum(pairs.is_equal, axis=1) == jnp.sum(is_twin, axis=1)
  is_gold = gold.name_ids >= 0
  return (calls.num_calls == gold.num_calls) & jnp.all(is_as_often | ~is_gold)


def _has_same_names_in_order(
  gold: types.EncodedCalls, calls: types.EncodedCalls
) -> Bool[Array, ""]:
  """Whether the lists of names are equal, order and repeats included."""
  num_slots = min(gold.name_ids.shape[0], calls.name_ids.shape[0])
  # Calls left out of the rows have names that no gold call has.
  has_all = jnp.sum(calls.name_ids >= 0) == calls.num_calls
  is_same = jnp.all(gold.name_ids[:num_slots] == calls.name_ids[:num_slots])
  return has_all & (calls.num_calls == gold.num_calls) & is_same


def _is_same_list(
  pairs: _Pairs, gold: types.EncodedCalls, calls: types.EncodedCalls
) -> Bool[Array, ""]:
  """Whether the lists of call objects are equal, order included."""
  num_slots = min(gold.name_ids.shape[0], calls.name_ids.shape[0])
  same_place = jnp.diagonal(pairs.is_equal & calls.is_plain)[:num_slots]
  is_gold = gold.name_ids[:num_slots] >= 0
  return _has_same_names_in_order(gold, calls) & jnp.all(same_place | ~is_gold)
