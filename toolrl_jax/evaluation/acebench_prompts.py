"""What ACEBench's items are asked with.

From an item of the data to the messages that open its conversation. The words
are ours; what they have to say is upstream's (`prompt_en.py`, `multi_step/` and
`multi_turn/APIModel_agent.py`): the form of the answer, the exact sentences
that the scorer of the special items looks for, the time, the profile, and the
rules of the two agent worlds. It knows neither the gold nor any template.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax.evaluation import acebench_checker, user_simulator

_FORM = """\
Write tool calls as a bracketed list and nothing else: \
[ApiName(key1='value1', key2='value2', ...)], with the name of the API, the \
names of its parameters and their values filled in. Several calls stand in \
one list, separated by commas: [ApiName(key1='value1'), OtherApi(key2=2)]. \
A call without parameters is [ApiName()]."""

_VALUES = """\
A parameter that is not marked as required is optional: give it when {source} \
mentions it, leave it out otherwise. Where no format is prescribed for a \
value, take it over word by word from {source}. Invent neither parameters nor \
values."""

_TURN = """\
You are the assistant in the conversation below. Read it together with the \
APIs and write the API calls that the assistant makes next."""

_ROLES = """\
In the conversation, "user" is the user, "system" is you, the assistant, and \
"tool" gives what calls return."""

_SPECIAL = f"""\
First decide whether the request can be carried out.
- When it is clear and the APIs can serve it, make every call that serves it.
- When it cannot be carried out as it stands, make no call. Write instead \
exactly one of these lists, looking at the cases in this order:
  1. The user gives a value whose type or form breaks the API's rules: \
["{acebench_checker.INCORRECT} (value) for the parameters (key) in the \
conversation history."], with the wrong value and its parameter filled in.
  2. The user leaves out what the API requires: \
["{acebench_checker.MISSING} (key1, key2, ...) for the api (ApiName)"], with \
the names of all missing parameters and of the API filled in.
  3. No API can serve the request: \
["Due to {acebench_checker.LIMITS}, I cannot solve this problem."]"""

_STEPS = f"""\
You solve the user's task by calling APIs, step by step. After each step you \
are told what the calls returned; decide on the next step from that. Make one \
call at a time unless several are needed together. The user cannot be asked \
anything: use what is known. When the task is done, write \
"{user_simulator.FINISHED}"."""

_DIALOGUE = f"""\
You help the user by calling APIs. When everything a call needs is known, make \
the call. When something is missing, ask the user for it; never answer in the \
user's place. A message either calls APIs or talks to the user, not both. Call \
one API at a time; several calls of the same API may go together. When the \
task is done, write "{user_simulator.FINISHED}".

Add no knowledge, advice or procedure of your own, and refuse what these rules \
do not allow."""

_PHONE = """\
It is June 11, 2024, 16:00 (Beijing time). You run the assistant of a \
simulated phone: text messages, reminders and food delivery. A name that the \
user mentions is a full name. If a call fails or something is unclear, you may \
ask the user.
- Sending a message needs its sender and its receiver. When the memory is \
full, say so and ask which message is to be deleted.
- Reading messages needs the device to be logged in with login_device() and \
both persons. Afterwards ask whether the content is to become a reminder and \
whether to reply; if it is about food, ask whether to order it.
- A reminder needs a content and a title; its time is the current time unless \
another is given. To remind of a message, read the message first.
- After showing a reminder by its title, ask whether its tasks are to be done.
- Ordering food needs the platform's account and password and a login with \
login_food_platform(). Ask for merchant, products and quantities that are not \
given. Order from different merchants one by one. If the balance does not \
suffice, say so and ask whether to change the order.
Tell the user what was done, and do not repeat a call that worked."""

_TRAVEL = """\
It is July 15, 2024, 08:00 (Beijing time). You are the agent of an airline: \
you book, change and cancel reservations. Before anything is booked, changed or \
upgraded, list the details and wait for an explicit yes; do not ask twice for \
the same thing. Hand over to a human only what you cannot do.
- Booking: first the user id and the password, then origin and destination. \
Search for flights before booking. A return trip is two bookings. Without a \
direct flight, ask for a city to change in, look for connections there, and \
book both flights in one list. Ask how to pay: cash or bank.
- Bags: free are 1 in economy and 2 in business class for regular members, 2 \
and 3 for silver, 3 and 3 for gold members; each further bag costs 50 yuan.
- Changing: first the user id and the password; the user id shows the \
reservations. A new flight keeps origin and destination; prices of flights \
that stay are not updated, and nothing checks these rules but you. A new cabin \
costs the difference and holds for the whole reservation. Bags can be added, \
not taken away. If the flight changes, ask how to pay or be paid back.
- Cancelling: user id, reservation and reason (plans changed, cancelled by the \
airline, other). It is free within 24 hours of booking or if the airline \
cancelled; otherwise economy class pays 20 % in the last 24 hours, business \
class never. Only a whole trip of which nothing was flown can be cancelled.
- Compensation, only when the user complains and asks for it, for silver and \
gold members or business class: 200 yuan a passenger when a flight was \
cancelled, 100 yuan when it was late and the reservation is changed or \
cancelled."""

_NUDGE = """\
That was no API call. Ask nothing; solve the task from what is known, with \
calls of the form [ApiName(key='value')]."""


def question(row: Mapping[str, Any], category: str) -> list[dict[str, str]]:
  """Returns the messages of an item that takes one answer.

  Args:
    row: The item; its `question` is a transcript already.
    category: Its category, not an agent one.

  Returns:
    A system and a user message.
  """
  is_preference = category == "normal_preference"
  source = "the user or the profile" if is_preference else "the user"
  parts = [_TURN]
  parts += [_SPECIAL] if category.startswith("special") else []
  parts += [_FORM, _VALUES.format(source=source), row.get("time", "")]
  if is_preference:
    parts.append(f"Profile of the user:\n{row.get('profile', '')}")
  parts += [_ROLES, _apis(row["function"])]
  return [
    {"role": "system", "content": _join(parts)},
    {"role": "user", "content": f"Conversation so far:\n{row['question']}"},
  ]


def agent_system(row: Mapping[str, Any], category: str) -> dict[str, str]:
  """Returns the system message of an agent item.

  Args:
    row: The item.
    category: `agent_multi_step` or `agent_multi_turn`.

  Returns:
    A system message.
  """
  if category == "agent_multi_step":
    rules = [_STEPS]
  else:
    is_travel = "Travel" in row["involved_classes"]
    rules = [_DIALOGUE, _TRAVEL if is_travel else _PHONE]
  values = _VALUES.format(source="the user")
  content = _join([*rules, _FORM, values, _apis(row["function"])])
  return {"role": "system", "content": content}


def nudge() -> dict[str, str]:
  """Returns what a multi-step agent is told that did not make a call."""
  return {"role": "user", "content": _NUDGE}


def digest() -> str:
  """Returns the SHA-256 of all texts of this module, as hexadecimal digits."""
  texts = (_FORM, _VALUES, _TURN, _ROLES, _SPECIAL)
  agent_texts = (_STEPS, _DIALOGUE, _PHONE, _TRAVEL, _NUDGE)
  return hashlib.sha256("\0".join(texts + agent_texts).encode()).hexdigest()


def _apis(documents: Sequence[Mapping[str, Any]]) -> str:
  """Writes the tool documents, one a line, as they are in the data."""
  lines = [json.dumps(one, ensure_ascii=False) for one in documents]
  return "\n".join(["APIs:", *lines])


def _join(parts: Sequence[str]) -> str:
  return "\n\n".join(part for part in parts if part)
