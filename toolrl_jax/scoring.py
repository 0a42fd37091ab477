"""Scoring: completion text to the parts of its reward. The one way in.

Training, evaluation and users all score through `score_completions`, through
`parse_and_score` where the parsed records are wanted as well, or through its
two halves, `read_group` on the host and `score_groups`: text is parsed,
encoded and scored by one jitted kernel. It does not know prompts,
tokens or policies.
"""

import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from toolrl_jax import types
from toolrl_jax.kernels import reward as reward_kernel
from toolrl_jax.kernels import reward_schedule
from toolrl_jax.parsing import encode, tool_calls

# Smallest padded number of completions; see encode.bucket.
_MIN_COMPLETIONS = 8

_NEWLINES = ("one", "one_or_two")
_CHOICES: dict[str, tuple[str, ...]] = {
  "name": get_args(reward_kernel.Name),
  "matching": get_args(reward_kernel.Matching),
  "scale": get_args(reward_schedule.Scale),
  "granularity": get_args(reward_kernel.Granularity),
  "length": get_args(reward_schedule.Length),
  "schedule": get_args(reward_schedule.Schedule),
  "equality": get_args(encode.Equality),
  "no_call": get_args(reward_kernel.NoCall),
  "newlines": _NEWLINES,
}


class RewardOptions(NamedTuple):
  """The `reward` section of the configuration, checked.

  Fields and defaults are those of configs/common.py.

  Attributes:
    name: "toolrl", "n1" or "looptool"; the last two look at nothing below but
      `no_call` ("n1" only).
    matching: "optimal" (the paper's form) or "greedy" (the authors' code).
    scale: "fixed", "equal_max", "two_stage" or "dynamic".
    granularity: "fine", "refined", "intermediate" or "coarse".
    length: "none", "fixed" or "dynamic".
    schedule: "paper" or "authors".
    schedule_steps: Steps of the whole run, at least 1.
    equality: "python", "strict" or "sets"; "n1" is always strict and
      "looptool" always compares sets.
    no_call: "zero" or "match".
    newlines: "one" or "one_or_two" after the closing think tag.
  """

  name: reward_kernel.Name = "toolrl"
  matching: reward_kernel.Matching = "optimal"
  scale: reward_schedule.Scale = "fixed"
  granularity: reward_kernel.Granularity = "fine"
  length: reward_schedule.Length = "none"
  schedule: reward_schedule.Schedule = "paper"
  schedule_steps: int = 105
  equality: encode.Equality = "python"
  no_call: reward_kernel.NoCall = "zero"
  newlines: str = "one"

  @classmethod
  def from_mapping(cls, reward: Mapping[str, Any]) -> "RewardOptions":
    """Checks a mapping and fills in the defaults.

    Args:
      reward: Some or all of the fields.

    Returns:
      The options.

    Raises:
      ValueError: A key or a value is unknown.
    """
    for key, value in reward.items():
      if key not in cls._fields:
        raise ValueError(
          f"reward has no key {key!r}; {_nearest(str(key), cls._fields)}"
        )
      if key == "schedule_steps":
        is_count = isinstance(value, int) and not isinstance(value, bool)
        if not is_count or value < 1:
          raise ValueError(
            f"reward.schedule_steps must be a whole number of at least 1, got "
            f"{value!r}; set it to the steps of the run."
          )
      elif value not in _CHOICES[key]:
        raise ValueError(
          f"reward.{key} has no value {value!r}; "
          f"{_nearest(str(value), _CHOICES[key])}"
        )
    return cls(**reward)


class ScoredCompletions(NamedTuple):
  """Rewards with the records they were computed from.

  Attributes:
    parts: Reward of each completion and its parts, arrays of the shape of the
      completions.
    is_parsed: Whether each could be read, bool of that shape.
    has_call: Whether each calls a tool.
    parsed: Parsed completions, flat, row by row; of those that this process
      read.
  """

  parts: types.RewardParts
  is_parsed: np.ndarray
  has_call: np.ndarray
  parsed: tuple[types.ParsedCompletion, ...]


def score_completions(
  completions: Sequence[str] | Sequence[Sequence[str]],
  golds: Sequence[str | types.Gold],
  *,
  reward: Mapping[str, Any] | RewardOptions,
  step: int = 0,
  style: str = "toolrl",
) -> types.RewardParts:
  """Scores completions against what is right.

  Args:
    completions: Texts, or groups of texts of one size. Any text is scored, bad
      text low; special tokens of the model should be gone.
    golds: Gold of each completion, or of each group: texts in the ToolRL
      layout or records.
    reward: The `reward` section of the configuration, or a part of it.
    step: Training step, from 0, for the scheduled rewards.
    style: Layout of the completions: "toolrl", "native" or "n1" (see
      toolrl_jax.parsing.tool_calls).

  Returns:
    Numpy arrays total, format, correctness, length (float32) and success
    (bool) of the shape of `completions`: [N], or [B, G] for groups.

  Raises:
    ValueError: An option is unknown, the shapes do not fit, or a gold text
      cannot be read.
  """
  return parse_and_score(
    completions, golds, reward=reward, step=step, style=style
  ).parts


def parse_and_score(
  completions: Sequence[str] | Sequence[Sequence[str]],
  golds: Sequence[str | types.Gold],
  *,
  reward: Mapping[str, Any] | RewardOptions,
  step: int = 0,
  style: str = "toolrl",
) -> ScoredCompletions:
  """Scores completions and also returns what was read in them.

  Args:
    completions: As in `score_completions`.
    golds: As in `score_completions`.
    reward: As in `score_completions`.
    step: As in `score_completions`.
    style: As in `score_completions`.

  Returns:
    Rewards and parsed records.

  Raises:
    ValueError: As in `score_completions`.
  """
  texts, shape = _flatten(completions)
  if len(golds) != shape[0]:
    raise ValueError(
      f"golds must have one entry a completion, or one a group, got "
      f"{len(golds)} for {shape[0]}; pass completions and golds of one length."
    )
  options = _check_options(reward)
  group_size = shape[1] if len(shape) == 2 else 1
  groups = [
    read_group(
      texts[i * group_size : (i + 1) * group_size],
      gold,
      reward=options,
      style=style,
    )
    for i, gold in enumerate(golds)
  ]
  scored = score_groups(groups, reward=options, step=step)
  parts = types.RewardParts(*(part.reshape(shape) for part in scored.parts))
  return scored._replace(parts=parts)


class ReadGroup(NamedTuple):
  """The completions of one gold, read and encoded but not scored.

  Attributes:
    gold: What is right.
    parsed: Parsed completions.
    encoded: Their calls as integers.
  """

  gold: types.Gold
  parsed: tuple[types.ParsedCompletion, ...]
  encoded: encode.EncodedGroup


def read_group(
  texts: Sequence[str],
  gold: str | types.Gold,
  *,
  reward: Mapping[str, Any] | RewardOptions,
  style: str = "toolrl",
) -> ReadGroup:
  """Does the host's part of scoring one group; on any thread.

  Args:
    texts: Completions.
    gold: Their gold.
    reward: As in `score_completions`.
    style: As in `score_completions`.

  Returns:
    What `score_groups` takes.

  Raises:
    ValueError: As in `score_completions`.
  """
  options, layout = _check_options(reward), _check_style(style)
  record = _gold_record(gold)
  parsed = tuple(
    tool_calls.parse_completion(text, style=layout) for text in texts
  )
  equality = _EQUALITY.get(options.name, options.equality)
  encoded = encode.encode_group(record, parsed, equality=equality)
  return ReadGroup(record, parsed, encoded)


def score_groups(
  groups: Sequence[ReadGroup],
  *,
  reward: Mapping[str, Any] | RewardOptions,
  step: int = 0,
) -> ScoredCompletions:
  """Scores groups that were read, in one call of the kernel.

  Args:
    groups: Groups of one size, from `read_group` with the same `reward`.
    reward: As in `score_completions`.
    step: As in `score_completions`.

  Returns:
    Rewards [B, G] and parsed records.

  Raises:
    ValueError: As in `score_completions`.
  """
  options = _check_options(reward)
  parsed = tuple(one for group in groups for one in group.parsed)
  num_rows = encode.bucket(len(parsed), least=_MIN_COMPLETIONS)
  gold_calls, calls = encode.pad_groups(
    [group.encoded for group in groups], num_rows=num_rows
  )
  kinds = [group.gold.kind for group in groups for _ in group.parsed]
  flags = _flags(parsed, kinds, options, num_rows)
  # What is settled by now must not cost another compilation.
  kernel_options = options._replace(equality="python", newlines="one")
  padded = _score_rows(
    gold_calls,
    calls,
    flags,
    jnp.asarray(_check_step(step), jnp.int32),
    kernel_options,
  )
  shape = (len(groups), len(parsed) // max(len(groups), 1))
  parts = (
    np.asarray(part)[: len(parsed)].reshape(shape)
    for part in jax.device_get(padded)
  )
  return ScoredCompletions(
    types.RewardParts(*parts),
    np.array([one.is_parsed for one in parsed], bool).reshape(shape),
    np.array([one.has_call for one in parsed], bool).reshape(shape),
    parsed,
  )


# The binary rewards are defined with their own equality.
_EQUALITY: dict[str, encode.Equality] = {"n1": "strict", "looptool": "sets"}


@functools.partial(jax.jit, static_argnames="options")
def _score_rows(
  gold_calls: types.EncodedCalls,
  calls: types.EncodedCalls,
  flags: types.CompletionFlags,
  step: Int[Array, ""],
  options: RewardOptions,
) -> types.RewardParts:
  """Scores N encoded completions; compiled once for each shape and options."""
  if options.name == "n1":
    score = functools.partial(reward_kernel.n1_reward, no_call=options.no_call)
    return jax.vmap(score)(gold_calls, calls, flags)
  if options.name == "looptool":
    return jax.vmap(reward_kernel.looptool_reward)(gold_calls, calls, flags)
  score = functools.partial(
    reward_kernel.toolrl_reward,
    matching=options.matching,
    scale=options.scale,
    granularity=options.granularity,
    length=options.length,
    schedule=options.schedule,
    schedule_steps=options.schedule_steps,
    no_call=options.no_call,
  )
  return jax.vmap(score, in_axes=(0, 0, 0, None))(
    gold_calls, calls, flags, step
  )


def _flags(
  parsed: Sequence[types.ParsedCompletion],
  kinds: Sequence[types.GoldKind],
  options: RewardOptions,
  num_rows: int,
) -> types.CompletionFlags:
  """Lays the flags of the completions out as arrays [num_rows]."""
  readable = {types.ParseStatus.OK}
  if options.name == "toolrl" and options.matching == "greedy":
    # The authors' code fails only where it needs the missing arguments.
    readable.add(types.ParseStatus.NO_ARGUMENTS)
  is_one = options.newlines == "one"
  flags = types.CompletionFlags(
    is_format_right=np.zeros(num_rows, bool),
    is_readable=np.zeros(num_rows, bool),
    has_call=np.zeros(num_rows, bool),
    has_think=np.zeros(num_rows, bool),
    num_think_words=np.zeros(num_rows, np.int32),
  )
  for i, (one, kind) in enumerate(zip(parsed, kinds, strict=True)):
    formats = one.formats_one if is_one else one.formats_one_or_two
    flags.is_format_right[i] = kind in formats
    flags.is_readable[i] = one.status in readable
    flags.has_call[i] = one.has_call
    flags.has_think[i] = one.has_think
    flags.num_think_words[i] = one.num_think_words
  return flags


def _gold_record(gold: str | types.Gold) -> types.Gold:
  """Reads a gold text; a record stays as it is."""
  if isinstance(gold, str):
    return tool_calls.parse_gold(gold)
  if not isinstance(gold, types.Gold) or not isinstance(gold.calls, tuple):
    raise ValueError(
      "a gold must be a text or a types.Gold with a tuple of calls, got "
      f"{type(gold).__name__}; wrap it."
    )
  return gold


def _check_step(step: int) -> int:
  """Refuses steps that no schedule can read."""
  is_whole = isinstance(step, int | np.integer) and not isinstance(step, bool)
  if not is_whole or abs(int(step)) >= 2**31:
    raise ValueError(f"step must be a whole number below 2**31, got {step!r}.")
  return int(step)


def _check_options(reward: Mapping[str, Any] | RewardOptions) -> RewardOptions:
  """Checks the reward section."""
  if isinstance(reward, RewardOptions):
    reward = reward._asdict()
  if not isinstance(reward, Mapping):
    raise ValueError(
      f"reward must be a mapping, got {type(reward).__name__}; pass "
      "config.reward.to_dict() or {}."
    )
  return RewardOptions.from_mapping(reward)


def _check_style(style: str) -> tool_calls.Style:
  """Checks the style."""
  for known in get_args(tool_calls.Style):
    if style == known:
      return known
  raise ValueError(
    f"style has no value {style!r}; {_nearest(str(style), get_args(tool_calls.Style))}"
  )


def _flatten(
  completions: Sequence[str] | Sequence[Sequence[str]],
) -> tuple[list[str], tuple[int, ...]]:
  """Lists all texts, row by row, with the shape they came in."""
  for group in completions:
    for text in group if isinstance(group, list | tuple) else (group,):
      if not isinstance(text, str):
        raise ValueError(
          "completions must be texts or lists of texts, got "
          f"{type(text).__name__}; decode tokens first."
        )
  texts = [one for one in completions if isinstance(one, str)]
  if len(texts) == len(completions):
    return texts, (len(completions),)
  sizes = {
    -1 if isinstance(group, str) else len(group) for group in completions
  }
  if len(sizes) != 1:
    raise ValueError(
      "completions must be texts or groups of texts of one size, got sizes "
      f"{sorted(sizes)} (-1 is a text); score unequal groups one by one."
    )
  texts = [text for group in completions for text in group]
  return texts, (len(completions), sizes.pop())


def _nearest(wrong: str, allowed: Sequence[str]) -> str:
  """Names what is allowed, and what may have been meant."""
  listed = ", ".join(allowed)
  close = difflib.get_close_matches(wrong, allowed, n=1)
  meant = f"did you mean {close[0]!r}? " if close else ""
  return f"{meant}allowed: {listed}."
