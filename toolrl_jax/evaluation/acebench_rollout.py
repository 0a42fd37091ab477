"""Conversations of ACEBench's agent tasks.

From an item, its world and perhaps a user to what the scorer needs: what the
model sent to be executed, and the states it left behind. The loops are
ACEBench's (`apimodel_inference.py`, commit 8f0ecee: 40 messages of model, user
and execution together), with these departures:

1. The history is kept role by role. Upstream writes it into one user message,
   and in multi-step tasks leaves the model's own messages out.
2. A message that cannot be read or holds no call is never executed: in
   multi-step tasks the model is told so, in multi-turn tasks the user gets it.
   Upstream executes bracketed single words as an empty list, and sends calls
   with a line break between the brackets to the user.
3. `<tool_call>` blocks are executed too.
4. A tool that no document names cannot be called.
5. White space around a message does not make it unreadable.

It knows neither gold nor scores.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.evaluation import (
  acebench_calls,
  acebench_prompts,
  acebench_worlds,
  conversation,
  user_simulator,
)

MAX_MESSAGES = 40
# As upstream, the first two messages do not end a conversation.
_FIRST_LAST_MESSAGE = 2


def multi_step(
  row: Mapping[str, Any], world: acebench_worlds.World
) -> conversation.Conversation:
  """Lets the model solve a task alone, step by step.

  Args:
    row: The item.
    world: Its world.

  Returns:
    The conversation; its outcome has `form`, `process`, `states`, `ending`,
    `stopped`.
  """
  log = _Log(world)
  messages = [
    acebench_prompts.agent_system(row, "agent_multi_step"),
    {"role": "user", "content": row["question"]},
  ]
  # One answer and one execution make two messages.
  for step in range(MAX_MESSAGES // 2):
    answer = yield conversation.Ask(messages=tuple(messages), step=step)
    messages.append(conversation.assistant_turn(answer))
    if answer.is_over_long:
      return log.outcome("prompt too long")
    is_late = 2 * step >= _FIRST_LAST_MESSAGE
    if is_late and user_simulator.FINISHED in answer.spoken:
      return log.outcome("finished")
    form, calls = read(answer)
    log.add(form, answer, calls)
    messages += log.execute(calls) if calls else [acebench_prompts.nudge()]
  return log.outcome("limit")


def multi_turn(
  row: Mapping[str, Any],
  world: acebench_worlds.World,
  user: user_simulator.UserSimulator,
) -> conversation.Conversation:
  """Lets the model serve a simulated user.

  Args:
    row: The item; its question is what the user wants.
    world: Its world.
    user: Plays the user.

  Returns:
    The conversation; its outcome has `form`, `process`, `states`, `ending`,
    `stopped`.

  Raises:
    SimulatorError: From the conversation, when the user falls silent.
  """
  log = _Log(world)
  is_travel = "Travel" in row["involved_classes"]
  rules = user_simulator.rules(row["question"], is_travel=is_travel)
  dialogue: list[user_simulator.Line] = []
  messages = [acebench_prompts.agent_system(row, "agent_multi_turn")]
  messages.append((yield from _say(user, rules, dialogue)))
  turn, step, number = 0, 0, 0
  while number < MAX_MESSAGES:
    answer = yield conversation.Ask(
      messages=tuple(messages), turn=turn, step=step
    )
    messages.append(conversation.assistant_turn(answer))
    if answer.is_over_long:
      return log.outcome("prompt too long")
    if _is_last(number, answer.spoken):
      return log.outcome("finished")
    number += 1
    if number == MAX_MESSAGES:
      break
    form, calls = read(answer)
    # The executor takes calls without brackets, but a user gets them.
    if calls and (form == "tool_call" or "[" in answer.spoken):
      log.add(form, answer, calls)
      messages += log.execute(calls)
      step += 1
    else:
      dialogue.append(user_simulator.Line("agent", answer.spoken))
      messages.append((yield from _say(user, rules, dialogue)))
      turn, step = turn + 1, 0
      if _is_last(number, dialogue[-1].text):
        return log.outcome("finished")
    number += 1
  return log.outcome("limit")


def read(
  answer: conversation.Answer,
) -> tuple[str, tuple[types.ToolCall, ...]]:
  """Reads the calls that an agent wants executed.

  Args:
    answer: What the model said.

  Returns:
    The form they had ("brackets", "tool_call", "text" for none), and the
    calls.
  """
  calls = acebench_calls.read_message(answer.spoken)
  if calls:
    return "brackets", calls
  if answer.parsed.calls:
    return "tool_call", answer.parsed.calls
  return "text", ()


class _Log:
  """What a conversation leaves behind."""

  def __init__(self, world: acebench_worlds.World):
    self._world = world
    self._forms: list[str] = []
    self._process: list[str] = []
    self._is_used = False

  def add(
    self,
    form: str,
    answer: conversation.Answer,
    calls: Sequence[types.ToolCall],
  ) -> None:
    """Records a message to be executed, in the form of the milestones."""
    self._forms.append(form)
    is_block = form == "tool_call"
    text = acebench_calls.render(calls) if is_block else answer.spoken
    self._process.append(text)

  def execute(self, calls: Sequence[types.ToolCall]) -> list[dict[str, Any]]:
    """Runs calls and returns the history entries of what came back."""
    self._is_used = True
    observations = [self._world.execute(call) for call in calls]
    turns = [
      conversation.tool_turn(json.dumps(one, ensure_ascii=False), call.name)
      for call, one in zip(calls, observations)
    ]
    return acebench_calls.as_json(turns)

  def outcome(self, ending: str) -> dict[str, Any]:
    """Returns the conversation's outcome."""
    forms = sorted(set(self._forms) - {"text"})
    # As upstream, no state is scored of a task in which nothing was executed:
    # the typing error in agent_multi_turn_7's gold would let it pass.
    outcome = {
      "form": "+".join(forms) or "text",
      "process": self._process,
      "states": self._world.states() if self._is_used else [],
      "ending": ending,
      "stopped": "steps" if ending == "limit" else "",
    }
    return acebench_calls.as_json(outcome)


def _say(
  user: user_simulator.UserSimulator,
  rules: str,
  dialogue: list[user_simulator.Line],
) -> Generator[Any, Any, dict[str, str]]:
  """Has the user speak; returns the history entry."""
  line = yield from user.speak(rules, tuple(dialogue))
  dialogue.append(user_simulator.Line("user", line))
  return {"role": "user", "content": line}


def _is_last(number: int, text: str) -> bool:
  return number >= _FIRST_LAST_MESSAGE and user_simulator.FINISHED in text
