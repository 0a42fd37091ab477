"""Samples of a run to what a reader compares: marked parts and their scores.

From the texts of samples.jsonl to segments (thought, tool call, answer, other)
and to the points that names, parameters and values earned. It writes no HTML.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from toolrl_jax.parsing import encode, tool_calls
from toolrl_jax.reporting import call_points, runs

SegmentKind = Literal["thought", "call", "answer", "other"]

_KINDS: Mapping[str, SegmentKind] = {
  "think": "thought",
  "tool_call": "call",
  "response": "answer",
}
_TAG = re.compile("<(/?)(think|tool_call|response)>")


class Segment(NamedTuple):
  """A piece of a completion.

  Attributes:
    kind: "thought", "call", "answer", or "other" for all else.
    text: The piece with its tags.
  """

  kind: SegmentKind
  text: str


class Scored(NamedTuple):
  """A sample with its parts.

  Attributes:
    sample: The sample as the run wrote it.
    segments: The completion in pieces; joined they are the completion.
    points: What its calls have in common with the gold calls, None where the
      gold has no call.
  """

  sample: runs.Sample
  segments: tuple[Segment, ...]
  points: call_points.CallPoints | None


def table(run: runs.Run, *, count: int = 24) -> list[Scored]:
  """Returns samples spread over the whole run, with their parts.

  Args:
    run: The run.
    count: Most samples returned, at least 1; those of the last step are among
      them, and from 2 on those of the first.

  Returns:
    Samples by rising step.
  """
  return [score(run, sample) for sample in spread(run.samples, count=count)]


def score(run: runs.Run, sample: runs.Sample) -> Scored:
  """Takes one sample apart, under the options of its run.

  Args:
    run: Its run, for the layout of completions and the rule of equality.
    sample: The sample.

  Returns:
    The sample with its parts.
  """
  style = _choice(run, "prompt.completion", get_args(tool_calls.Style))
  points = call_points.compare(
    sample.completion,
    sample.gold,
    style=style,
    matching=_choice(run, "reward.matching", ("optimal", "greedy")),
    equality=_choice(run, "reward.equality", get_args(encode.Equality)),
  )
  return Scored(sample, split(sample.completion, style=style), points)


def _choice(run: runs.Run, name: str, allowed: Sequence[str]):
  """Returns a field of the configuration, the first choice where it is bad."""
  value = run.setting(name)
  return value if value in allowed else allowed[0]


def spread(samples: Sequence[runs.Sample], *, count: int) -> list[runs.Sample]:
  """Picks samples at even distances over the steps, whole steps first.

  Args:
    samples: Samples by rising step.
    count: Most samples picked, at least 1.

  Returns:
    Some of them, in their order.

  Raises:
    ValueError: If `count` is below 1.
  """
  if count < 1:
    raise ValueError(f"count must be at least 1, got {count}; leave it out.")
  if len(samples) <= count:
    return list(samples)
  by_step: dict[int, list[runs.Sample]] = {}
  for sample in samples:
    by_step.setdefault(sample.step, []).append(sample)
  steps = list(by_step)
  a_step = max(len(samples) // len(steps), 1)
  num_steps = min(max(count // a_step, min(count, 2)), len(steps))
  # The last step is always one of them.
  places = [
    (len(steps) - 1) * (i + 1) // num_steps
    if num_steps == 1
    else (len(steps) - 1) * i // (num_steps - 1)
    for i in range(num_steps)
  ]
  a_step = max(count // num_steps, 1)
  return [one for place in places for one in by_step[steps[place]][:a_step]]


def split(
  completion: str, *, style: tool_calls.Style = "toolrl"
) -> tuple[Segment, ...]:
  """Splits a completion at its tags, whatever the text; in linear time.

  Args:
    completion: Any text.
    style: Its layout. In "native" and "n1" the text outside of thought and
      calls is the answer.

  Returns:
    Pieces that joined are the completion. A tag without its partner is
    "other".
  """
  tags = list(_TAG.finditer(completion))
  # For each tag the nearest closing tag of its name behind it.
  closing: list[re.Match | None] = [None] * len(tags)
  nearest: dict[str, re.Match] = {}
  for i in range(len(tags) - 1, -1, -1):
    closing[i] = nearest.get(tags[i][2])
    if tags[i][1]:
      nearest[tags[i][2]] = tags[i]
  segments: list[Segment] = []
  # A thought that never ends leaves no answer.
  is_open = completion.lstrip().startswith("<think>") and "think" not in nearest
  outside: SegmentKind = "other" if style == "toolrl" or is_open else "answer"
  position = 0
  for tag, end in zip(tags, closing):
    if tag.start() < position or tag[1] or end is None:
      continue
    if style != "toolrl" and tag[2] == "response":
      continue
    _add(segments, outside, completion[position : tag.start()])
    _add(segments, _KINDS[tag[2]], completion[tag.start() : end.end()])
    position = end.end()
  _add(segments, outside, completion[position:])
  return tuple(segments)


def _add(segments: list[Segment], kind: SegmentKind, text: str) -> None:
  """Appends a piece; white space between parts is no part of its own."""
  if text:
    segments.append(Segment(kind if text.strip() else "other", text))
