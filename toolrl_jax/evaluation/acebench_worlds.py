"""The world an ACEBench agent acts in: its apps, their tools, their state.

From tool calls to observations and, at the end, to the states that are scored.
A call reaches a tool only by a name that its app lists and by keyword
arguments that the tool declares; nothing is evaluated. Every conversation has
a world of its own.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.evaluation import (
  acebench_calls,
  acebench_phone,
  acebench_travel,
)

# What tools raise for arguments of the wrong form.
_ARGUMENT_ERRORS = (
  ArithmeticError,
  AttributeError,
  KeyError,
  RecursionError,
  TypeError,
  ValueError,
)


class World:
  """The apps of one task."""

  def __init__(self, apps: Mapping[str, Any]):
    self._apps = apps
    self._tools = {
      name: getattr(app, name) for app in apps.values() for name in app.TOOLS
    }

  def execute(self, call: types.ToolCall) -> Any:
    """Runs one call; never raises, whatever the call.

    Args:
      call: Any call.

    Returns:
      The tool's observation, or a sentence on why there is none.
    """
    tool = self._tools.get(call.name)
    if tool is None:
      return f"Error during execution: there is no tool {call.name!r}."
    try:
      bound = inspect.signature(tool).bind(**call.arguments)
    except TypeError as error:
      return f"Error during execution: {call.name}: {error}."
    try:
      return acebench_calls.as_json(tool(*bound.args, **bound.kwargs))
    except _ARGUMENT_ERRORS as error:
      kind = type(error).__name__
      return f"Error during execution: {call.name} cannot take this ({kind})."

  def states(self) -> list[dict[str, Any]]:
    """Returns what is scored, as read back from JSON.

    So the numbers of messages and reminders are text, as in the gold.

    Returns:
      One {class: {attribute: value}} for each class of the task.
    """
    return [
      {name: acebench_calls.as_json(app.state())}
      for name, app in self._apps.items()
    ]


def build(
  involved_classes: Sequence[str],
  initial_config: Mapping[str, Any],
  memory: acebench_phone.Memory,
) -> World:
  """Builds the world of a task.

  Args:
    involved_classes: Names of ACEBench's classes.
    initial_config: Class to initial values; only BaseApi has any.
    memory: What the phone holds.

  Returns:
    A fresh world.

  Raises:
    ValueError: A class is unknown.
  """
  switches = initial_config.get("BaseApi", {})
  device = acebench_phone.Device(
    wifi=switches.get("wifi", False), logged_in=switches.get("logged_in", True)
  )
  makers = {
    "BaseApi": lambda: device,
    "MessageApi": lambda: acebench_phone.Messages(device, memory),
    "ReminderApi": lambda: acebench_phone.Reminders(device, memory),
    "FoodPlatform": lambda: acebench_phone.FoodPlatform(device),
    "Travel": acebench_travel.Travel,
  }
  for name in involved_classes:
    if name not in makers:
      raise ValueError(
        f"involved_classes must be among {sorted(makers)}, got {name!r}; use "
        "the data of ACEBench's first release."
      )
  return World({name: makers[name]() for name in involved_classes})


def read_memory(golds: Sequence[Any]) -> acebench_phone.Memory:
  """Reads what the phone holds before a task out of gold end states.

  The six messages and three reminders are in no file of their own. But a
  message that a task adds bears no time, and a reminder that a task adds bears
  its key as its id; the others were there before.

  Args:
    golds: Gold end states of the agent tasks: lists of {class: attributes}.

  Returns:
    The phone's first content.

  Raises:
    ValueError: The golds do not show six messages and three reminders.
  """
  messages: dict[int, Any] = {}
  reminders: dict[int, Any] = {}
  for state in (one for gold in golds for one in gold):
    for attributes in state.values():
      for key, message in attributes.get("inbox", {}).items():
        if "time" in message:
          messages[int(key)] = message
      for key, reminder in attributes.get("reminder_list", {}).items():
        if reminder["reminder_id"] != int(key):
          reminders[int(key)] = reminder
  if sorted(messages) != [1, 2, 3, 4, 5, 6] or sorted(reminders) != [1, 2, 3]:
    raise ValueError(
      "the agent golds must show messages 1 to 6 and reminders 1 to 3, got "
      f"{sorted(messages)} and {sorted(reminders)}; use ACEBench's English "
      "data unchanged."
    )
  return acebench_phone.Memory(
    messages=dict(sorted(messages.items())),
    reminders=dict(sorted(reminders.items())),
  )
