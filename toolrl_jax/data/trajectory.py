"""Cuts a recorded trajectory into one training prompt for each step.

From a whole dialogue to `types.Example` records: the prompt of a step is every
turn before it, its gold is what the recorded assistant turn did. Observations
and earlier assistant turns come from the recording, never from the policy, as
in ToolRL (arXiv:2504.13958) and arXiv:2606.00135. This module knows neither
files nor templates.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from toolrl_jax import types

Steps = Literal["marked", "all", "calls"]


class Trajectory(NamedTuple):
  """One recorded dialogue.

  Attributes:
    id: Stable name; the ids of its steps start with it.
    messages: All turns in order, in the form of `types.Example.messages`;
      assistant turns may carry `step`, true where they are to be learned.
    tools: Tool documents, as in `types.Example.tools`.
  """

  id: str
  messages: tuple[Mapping[str, Any], ...]
  tools: tuple[Mapping[str, Any], ...]


def cut(
  trajectory: Trajectory, *, steps: Steps = "marked", max_user_turns: int = 0
) -> list[types.Example]:
  """Gives one example for each step of a trajectory.

      s_k = (system, turns before assistant turn k),  gold_k = turn k

  The id is `<trajectory>/<k>` with k the number of the assistant turn, from 1,
  counted over all assistant turns: it does not move when other turns are
  marked, and steps of one trajectory share everything before the last slash.

  Args:
    trajectory: The recording; it is not changed.
    steps: Assistant turns that become examples: "marked" (those with `step`
      true), "all", or "calls" (those that call a tool).
    max_user_turns: Most user turns of the history; older turns go whole, the
      system message stays. 0 is no limit.

  Returns:
    Examples in the order of the steps.

  Raises:
    ValueError: A chosen turn has neither call nor text, or nothing before it
      asks for it.
  """
  examples, num_assistant = [], 0
  for position, message in enumerate(trajectory.messages):
    if message["role"] != "assistant":
      continue
    num_assistant += 1
    if not _is_step(message, steps):
      continue
    history = tuple(
      _without_mark(turn) for turn in trajectory.messages[:position]
    )
    history = _newest_turns(history, max_user_turns)
    example_id = f"{trajectory.id}/{num_assistant}"
    _check_history(example_id, history)
    gold = step_gold(message)
    if gold.kind == "none":
      raise ValueError(
        f"step {example_id} must call a tool or say something, but is empty;"
        " remove its mark."
      )
    examples.append(
      types.Example(
        id=example_id, messages=history, tools=trajectory.tools, gold=gold
      )
    )
  return examples


def step_gold(message: Mapping[str, Any]) -> types.Gold:
  """Turns a recorded assistant turn into the gold of its step.

  Args:
    message: Assistant turn with `content` and optionally `calls`.

  Returns:
    Its calls, and its text as response where there is any.
  """
  response = message["content"] if message["content"].strip() else None
  return types.Gold(calls=tuple(message.get("calls", ())), response=response)


def _is_step(message: Mapping[str, Any], steps: Steps) -> bool:
  if steps == "marked":
    return bool(message.get("step", False))
  return steps == "all" or bool(message.get("calls"))


def _without_mark(message: Mapping[str, Any]) -> dict[str, Any]:
  return {key: value for key, value in message.items() if key != "step"}


def _newest_turns(
  history: tuple[dict[str, Any], ...], max_user_turns: int
) -> tuple[dict[str, Any], ...]:
  starts = [i for i, turn in enumerate(history) if turn["role"] == "user"]
  if not max_user_turns or len(starts) <= max_user_turns:
    return history
  system = history[:1] if history[0]["role"] == "system" else ()
  return system + history[starts[-max_user_turns] :]


def _check_history(
  example_id: str, history: Sequence[Mapping[str, Any]]
) -> None:
  if not any(turn["role"] == "user" for turn in history):
    raise ValueError(f"step {example_id} has no user turn before it.")
  if history[-1]["role"] not in ("user", "tool"):
    raise ValueError(
      f"step {example_id} must follow a user or tool turn, but follows"
      f" {history[-1]['role']!r}."
    )
