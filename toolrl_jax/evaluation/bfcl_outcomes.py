"""Outcomes of BFCL conversations: how they are written, and read again.

From answers to the records that an outcome keeps, and from outcomes, which
may come from a file that anybody wrote, to calls. Form of an outcome:

    {"turns": [[step, ...], ...], "stopped": "", "secs": 1.5}
    step = {"calls": [{"name": ..., "arguments": {...}}], "text": ...,
            "is_try": ..., "is_cut": ..., "num_prompt_tokens": ...,
            "num_tokens": ..., "num_unknown_tools": ..., "secs": ...}

Single-turn items have one turn of one step. `stopped` says what ended a
conversation early: "steps", or a reason of `bfcl_process`. This module does
not know what is right.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.evaluation import benchmark, bfcl_scores, conversation

Turns = list[list[list[dict[str, Any]]]]


def read_calls(answer: conversation.Answer) -> tuple[types.ToolCall, ...]:
  """Returns the calls that an answer makes.

  Args:
    answer: What the model said.

  Returns:
    Its calls; none where one of them lacks its object of arguments, which the
    package cannot decode either.
  """
  is_read = answer.parsed.status == types.ParseStatus.OK
  return answer.parsed.calls if is_read else ()


def step_record(
  answer: conversation.Answer,
  tools: Sequence[Mapping[str, Any]],
  *,
  secs: float = 0.0,
) -> dict[str, Any]:
  """Returns what an outcome keeps of one answer.

  Args:
    answer: What the model said.
    tools: Documents that it saw.
    secs: Wall-clock that the answer took, waiting included.

  Returns:
    A JSON object; see the module.
  """
  known = {tool["name"] for tool in tools}
  calls = read_calls(answer)
  return {
    "calls": [
      {"name": call.name, "arguments": dict(call.arguments)} for call in calls
    ],
    "text": answer.spoken,
    "is_try": answer.parsed.has_call,
    "is_cut": answer.is_cut,
    "num_prompt_tokens": answer.num_prompt_tokens,
    "num_tokens": answer.num_tokens,
    "num_unknown_tools": sum(call.name not in known for call in calls),
    "secs": secs,
  }


def turns_of(outcome: Any) -> Turns | None:
  """Reads the calls of an outcome.

  Args:
    outcome: An outcome, or whatever stands in its place.

  Returns:
    The calls of each step of each turn; None when it is no outcome.
  """
  if not isinstance(outcome, Mapping):
    return None
  turns = outcome.get("turns")
  if not isinstance(turns, list | tuple) or not turns:
    return None
  read: Turns = []
  for turn in turns:
    if not isinstance(turn, list | tuple) or not turn:
      return None
    steps = [_calls_of(step) for step in turn]
    if None in steps:
      return None
    read.append([calls for calls in steps if calls is not None])
  return read


def _calls_of(step: Any) -> list[dict[str, Any]] | None:
  calls = step.get("calls") if isinstance(step, Mapping) else None
  if not isinstance(calls, list | tuple):
    return None
  for call in calls:
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
      return None
    if not isinstance(call.get("arguments"), Mapping):
      return None
  return [
    {"name": call["name"], "arguments": dict(call["arguments"])}
    for call in calls
  ]


def abstention(
  items: Sequence[benchmark.Item],
  outcomes: Mapping[str, Any],
  verdicts: Mapping[str, float],
) -> dict[str, float]:
  """Measures silence where a call would be wrong: the package does not.

  Args:
    items: All items.
    outcomes: Outcomes by item id.
    verdicts: Scores by item id.

  Returns:
    Fractions in [0, 1] for the categories that have such turns or items:
    `<category>/abstention`, of turns with empty gold, those without calls (a
    turn that was not reached has failed); `<category>/enforced`, of items,
    those that are right and call in none of these turns; and
    `<category>/no_try`, of irrelevance items, those without even an
    unreadable call.
  """
  silent: dict[str, list[bool]] = {}
  enforced: dict[str, list[bool]] = {}
  no_try: dict[str, list[bool]] = {}
  for item in items:
    outcome = outcomes.get(item.id)
    if item.category in bfcl_scores.IRRELEVANCE:
      no_try.setdefault(item.category, []).append(_is_without_try(outcome))
    if item.category not in bfcl_scores.MULTI_TURN:
      continue
    turns = turns_of(outcome) or []
    quiet = [
      turn < len(turns) and not any(turns[turn])
      for turn, calls in enumerate(item.row["gold"])
      if not calls
    ]
    silent.setdefault(item.category, []).extend(quiet)
    is_right = verdicts.get(item.id, 0.0) == 1.0
    enforced.setdefault(item.category, []).append(is_right and all(quiet))
  named = (("abstention", silent), ("enforced", enforced), ("no_try", no_try))
  return {
    f"{category}/{metric}": sum(flags) / len(flags)
    for metric, by_category in named
    for category, flags in by_category.items()
    # Without a turn to be silent in, "enforced" says nothing new.
    if flags and (metric != "enforced" or silent[category])
  }


def _is_without_try(outcome: Any) -> bool:
  turns = turns_of(outcome)
  if turns is None or any(calls for turn in turns for calls in turn):
    return False
  return not any(step.get("is_try") for step in outcome["turns"][0])
