"""Right or wrong of ACEBench's agent tasks: end states and milestones.

From the states and messages of a finished conversation to verdicts. The rules
are ACEBench's (`eval_main.py`, commit 8118378) and, for milestones, those of
evalscope 1.14.1 after its pull request 1544; where the gold itself is at fault
there is a second reading beside the upstream one. Nothing here runs a task.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax.evaluation import acebench_calls


def is_end_state(states: Sequence[Mapping[str, Any]], gold: Any) -> bool:
  """Compares end states as upstream does.

  Classes are paired by name, and a gold class whose name no class of the task
  has ("ReminderAPI", "Reminderpi", "BaseAPI" in the data) is not compared at
  all. Of a dictionary only the gold's keys are compared.

  Args:
    states: {class: {attribute: value}} for each class.
    gold: The same; a single one need not be in a list.

  Returns:
    Whether there are as many classes and the paired ones agree.
  """
  golds = gold if isinstance(gold, list) else [gold]
  by_name = {name: one for state in states for name, one in state.items()}
  return len(states) == len(golds) and all(
    _agrees(by_name[name], attributes)
    for one in golds
    for name, attributes in one.items()
    if name in by_name
  )


def is_exact_end_state(states: Sequence[Mapping[str, Any]], gold: Any) -> bool:
  """Compares end states whole: nothing missing, nothing added.

  Classes are paired by their attributes, so a misspelt name hides nothing.

  Args:
    states: {class: {attribute: value}} for each class.
    gold: The same; a single one need not be in a list.

  Returns:
    Whether every class has an equal in the gold.
  """
  golds = gold if isinstance(gold, list) else [gold]
  left, right = (
    {tuple(sorted(one)): one for state in side for one in state.values()}
    for side in (states, golds)
  )
  return left == right


def process_accuracy(messages: Sequence[str], milestones: Any) -> float:
  """Tells how many milestones occur among the messages, in order.

  Upstream's rule: texts are compared as they are, and after a milestone that
  is not found none is looked for, since the search has come to its end.

  Args:
    messages: What the model sent to be executed.
    milestones: Texts, or a list of alternative lists.

  Returns:
    The best alternative's fraction, rounded to 3 digits; 1 where there is
    nothing to reach.
  """
  texts = [message.strip() for message in messages]
  return max(_fraction(texts, one) for one in _alternatives(milestones))


def parsed_process_accuracy(messages: Sequence[str], milestones: Any) -> float:
  """Tells the same of what the texts mean, whatever their spacing or quotes.

  A milestone that cannot be read is never reached, and a missed one does not
  hide those after it.

  Args:
    messages: What the model sent to be executed.
    milestones: Texts, or a list of alternative lists.

  Returns:
    The best alternative's fraction, rounded to 3 digits.
  """
  calls = [acebench_calls.read_message(message) for message in messages]
  best = 0.0
  for stones in _alternatives(milestones):
    position, num_reached = 0, 0
    for stone in map(acebench_calls.read_message, stones):
      if stone is not None and stone in calls[position:]:
        position = calls.index(stone, position) + 1
        num_reached += 1
    best = max(best, round(num_reached / len(stones), 3) if stones else 1.0)
  return best


def unreadable_milestones(milestones: Any) -> tuple[str, ...]:
  """Lists the milestones that are no call list.

  Args:
    milestones: Texts, or a list of alternative lists.

  Returns:
    Their texts, each once.
  """
  return tuple(
    dict.fromkeys(
      stone
      for stones in _alternatives(milestones)
      for stone in stones
      if acebench_calls.read_message(stone) is None
    )
  )


def _agrees(state: Mapping[str, Any], gold: Mapping[str, Any]) -> bool:
  """Compares the attributes of one class."""
  for attribute, value in state.items():
    if attribute not in gold:
      return False
    wanted = gold[attribute]
    if not isinstance(wanted, dict):
      if value != wanted:
        return False
    elif not isinstance(value, dict) or any(
      key not in value or value[key] != one for key, one in wanted.items()
    ):
      return False
  return True


def _alternatives(milestones: Any) -> list[list[str]]:
  """Returns lists of texts, whichever form the data have."""
  if not isinstance(milestones, list):
    return [[str(milestones)]]
  if milestones and isinstance(milestones[0], list):
    return [[str(stone) for stone in one] for one in milestones]
  return [[str(stone) for stone in milestones]]


def _fraction(texts: Sequence[str], stones: Sequence[str]) -> float:
  """Finds the stones one after the other, each behind the last."""
  if not stones:
    return 1.0
  rest = iter(texts)
  num_reached = sum(stone.strip() in rest for stone in stones)
  return round(num_reached / len(stones), 3)
