"""Who plays the user in a conversation that needs one.

From what the user wants and what was said to the user's next line. Four
players: a script, the model that is scored, and two HTTP services, the
OpenAI-compatible and the Anthropic-compatible one. The rules are those of
ACEBench's simulator in our own words, with two corrections: the simulator is
told to answer as the user, and its own lines come back to it as its own
(upstream sends them as system messages), since both make it drift into the
agent's part (arXiv:2606.00135). It does not know tools or scores.
"""

import functools
import hashlib
import os
import time
import urllib.error
import urllib.parse
from collections.abc import Generator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from toolrl_jax.evaluation import conversation, web_service

FINISHED = "finish conversation"

_OPENING = "What can I help you with today?"
_RULES = """\
You play a user who talks to an agent. This is what you want and know:

{instruction}

Rules:
- Answer as the user, always. You are not the agent: never call an API, never \
offer help, never report that something was done.
- Write one line, what the user says next.
- Do not tell everything at once; give what the current step needs, and give \
that completely.
- Make nothing up. What is not written above you do not know or remember; say \
so when asked.
"""
_PHONE_RULES = f"""\
- For a reminder, give its title, content and time when they are needed.
- Names above are full names. When asked which message to delete, choose as \
written above.
- When asked whether there is more to do, check that everything above is done, \
and ask for the next thing if not.
- When everything is done, write only: {FINISHED}"""
_TRAVEL_RULES = f"""\
- When asked to confirm, decide by what is written above.
- Use your own words, keep to the character described, and talk naturally.
- When a return trip is wanted, say at once that you want to book a round-trip \
flight.
- When your goal is reached, write only: {FINISHED}"""

_RETRIED_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504, 529})


class SimulatorError(Exception):
  """A user simulator gave no line; the message says why, in one line."""


class Line(NamedTuple):
  """One line of a dialogue.

  Attributes:
    speaker: Who said it.
    text: What was said.
  """

  speaker: Literal["user", "agent"]
  text: str


Speech = Generator[conversation.Ask | conversation.Wait, Any, str]


@runtime_checkable
class UserSimulator(Protocol):
  """Plays the user; holds no dialogue, so one serves many at once.

  Attributes:
    name: Name in records; it holds no secret.
  """

  name: str

  def speak(self, rules: str, dialogue: Sequence[Line]) -> Speech:
    """Finds the user's next line, as a part of the conversation.

    Args:
      rules: What `rules` returned.
      dialogue: What was said so far; empty when the user is to begin.

    Returns:
      A generator for `yield from`; it returns the line, or `FINISHED`.

    Raises:
      SimulatorError: There is none.
    """
    ...


def rules(instruction: str, *, is_travel: bool) -> str:
  """Returns what a simulator is told to be.

  Args:
    instruction: What the user wants and knows.
    is_travel: The agent is an airline's, not a phone's.

  Returns:
    A system text.
  """
  kind = _TRAVEL_RULES if is_travel else _PHONE_RULES
  return _RULES.format(instruction=instruction) + kind


def digest() -> str:
  """Returns the SHA-256 of the rules' texts, as hexadecimal digits."""
  texts = (_RULES, _PHONE_RULES, _TRAVEL_RULES, _OPENING)
  return hashlib.sha256("\0".join(texts).encode()).hexdigest()


class ScriptedUser:
  """Says given lines in order, then `FINISHED`.

  Args:
    lines: What is said.
  """

  def __init__(self, lines: Sequence[str]):
    self.name = f"scripted ({len(lines)} lines)"
    self._lines = tuple(lines)

  def speak(self, rules: str, dialogue: Sequence[Line]) -> Speech:
    """Says the line that stands next."""
    del rules
    yield from ()
    num_said = _num_said(dialogue)
    return self._lines[num_said] if num_said < len(self._lines) else FINISHED


class LocalUser:
  """Lets the model that is scored play the user too.

  It is sampled under the same temperature, top-p and top-k.
  """

  name = "local"

  def speak(self, rules: str, dialogue: Sequence[Line]) -> Speech:
    """Asks the model; what it thinks is not said."""
    system = {"role": "system", "content": rules}
    answer = yield conversation.Ask(
      messages=(system, *_messages(dialogue)),
      turn=_num_said(dialogue),
      speaker="user",
    )
    if answer.is_over_long:
      raise SimulatorError(
        "the user's part of the dialogue must fit the longest prompt, got a "
        "longer one; raise config.data.max_prompt_tokens."
      )
    return answer.spoken


class HttpUser:
  """Asks an HTTP service.

  Args:
    style: "openai" posts to `<base_url>/chat/completions`, "anthropic" to
      `<base_url>/messages`; both base URLs end in `/v1` as a rule.
    base_url: An http or https address.
    model: The service's name of the model.
    key_name: Name of the environment variable with the key; "" sends none.
    temperature: Sampling temperature; None leaves it to the service.
    max_tokens: Longest line, in tokens.
    timeout_secs: How long one try may take.
    num_tries: Tries before giving up, at least 1.
    wait_secs: Pause before the second try; it doubles each time.

  Raises:
    ValueError: The address, the key's variable or a number is not usable.
  """

  def __init__(
    self,
    style: Literal["openai", "anthropic"],
    *,
    base_url: str,
    model: str,
    key_name: str,
    temperature: float | None = 0.001,
    max_tokens: int = 1000,
    timeout_secs: float = 60.0,
    num_tries: int = 4,
    wait_secs: float = 1.0,
  ):
    if urllib.parse.urlsplit(base_url).scheme not in ("http", "https"):
      raise ValueError(
        f"base_url must begin with http:// or https://, got {base_url!r}; give "
        "the address of the user simulator's service."
      )
    if num_tries < 1:
      raise ValueError(
        f"num_tries must be at least 1, got {num_tries}; set it to 1 or more."
      )
    self.name = f"{style}:{model} at {base_url}"
    self._style, self._model = style, model
    path = "chat/completions" if style == "openai" else "messages"
    self._url = f"{base_url.rstrip('/')}/{path}"
    self._headers = _headers(style, _key(key_name))
    self._options: dict[str, Any] = {"max_tokens": max_tokens}
    if temperature is not None:
      self._options["temperature"] = temperature
    self._num_tries, self._wait_secs = num_tries, wait_secs
    self._service = web_service.Service(self._url, timeout_secs=timeout_secs)

  def speak(self, rules: str, dialogue: Sequence[Line]) -> Speech:
    """Waits for what the service says."""
    call = functools.partial(self._reply, rules, tuple(dialogue))
    return (yield conversation.Wait(call))

  def _reply(self, rules: str, dialogue: Sequence[Line]) -> str:
    """Returns what the service says, trying again where that may help."""
    body: dict[str, Any] = {"model": self._model, **self._options}
    messages = _messages(dialogue)
    if self._style == "openai":
      messages = [{"role": "system", "content": rules}, *messages]
    else:
      body["system"] = rules
    body["messages"] = messages
    reason = ""
    for number in range(self._num_tries):
      if number:
        time.sleep(self._wait_secs * 2 ** (number - 1))
      try:
        return _text(self._style, self._service.post(body, self._headers))
      except urllib.error.HTTPError as error:
        reason = f"status {error.code}"
        error.close()
        if error.code not in _RETRIED_STATUS:
          break
      except OSError as error:
        reason = type(error).__name__
      except ValueError as error:
        raise _not_of(self._style, str(error)) from error
    raise SimulatorError(
      f"the user simulator {self.name} must answer at {self._url}, got "
      f"{reason}; check address, model and key, and run the items again."
    )


def _key(name: str) -> str:
  """Reads a key; it is never shown or recorded."""
  key = os.environ.get(name, "") if name else ""
  if name and not key:
    raise ValueError(
      f"the environment variable {name} must hold the user simulator's key, "
      "got none; set it, or leave the name empty for a service without keys."
    )
  return key


def _headers(style: str, key: str) -> dict[str, str]:
  headers = {"Content-Type": "application/json"}
  if style == "anthropic":
    headers["anthropic-version"] = "2023-06-01"
  if key:
    is_openai = style == "openai"
    name = "Authorization" if is_openai else "x-api-key"
    headers[name] = f"Bearer {key}" if is_openai else key
  return headers


def _num_said(dialogue: Sequence[Line]) -> int:
  return sum(line.speaker == "user" for line in dialogue)


def _messages(dialogue: Sequence[Line]) -> list[dict[str, str]]:
  """Writes a dialogue as the simulator sees it: it is the assistant."""
  roles = {"user": "assistant", "agent": "user"}
  # Services refuse an empty message.
  lines = [
    {"role": roles[one.speaker], "content": one.text or "..."}
    for one in dialogue
  ]
  return [{"role": "user", "content": _OPENING}, *lines]


def _not_of(style: str, got: str) -> SimulatorError:
  return SimulatorError(
    f"the user simulator must answer as the {style} interface has it, got "
    f"{got[:80]!r}; check that the address is of that interface."
  )


def _text(style: str, answer: Any) -> str:
  """Takes the text out of a service's answer."""
  try:
    if style == "openai":
      text = answer["choices"][0]["message"]["content"]
    else:
      blocks = [one for one in answer["content"] if one["type"] == "text"]
      text = "".join(one["text"] for one in blocks)
  except (KeyError, IndexError, TypeError):
    text = None
  if not isinstance(text, str):
    raise _not_of(style, repr(answer))
  return text.strip()
