"""User simulators: scripts, the model, and two services over real HTTP."""

import contextlib
import http.server
import json
import threading

import pytest

from toolrl_jax.evaluation import conversation, user_simulator
from toolrl_jax.parsing import tool_calls

pytestmark = pytest.mark.quick

_KEY = "sk-very-secret"
_DIALOGUE = (
  user_simulator.Line("user", "Hello"),
  user_simulator.Line("agent", ""),
)


def _openai(text):
  return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def _anthropic(*texts):
  blocks = [{"type": "text", "text": text} for text in texts]
  return {"content": [{"type": "thinking", "thinking": "hm"}, *blocks]}


class _Service(http.server.ThreadingHTTPServer):
  """Gives prepared answers in turn and keeps what it was asked."""

  def __init__(self, answers):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.answers, self.asked = list(answers), []

  @property
  def url(self):
    return f"http://127.0.0.1:{self.server_port}/v1/"


class _Handler(http.server.BaseHTTPRequestHandler):
  def do_POST(self):
    body = self.rfile.read(int(self.headers["Content-Length"]))
    headers = {key.lower(): one for key, one in self.headers.items()}
    self.server.asked.append((self.path, headers, json.loads(body)))
    status, answer = self.server.answers.pop(0)
    if status is None:
      self.connection.close()
      return
    self.send_response(status)
    if status in (302, 307):
      self.send_header("Location", "http://127.0.0.1:1/elsewhere")
    self.end_headers()
    is_bytes = isinstance(answer, bytes)
    self.wfile.write(answer if is_bytes else json.dumps(answer).encode())

  def log_message(self, *arguments):
    pass


@contextlib.contextmanager
def _serving(*answers):
  with _Service(answers) as service:
    thread = threading.Thread(target=service.serve_forever, args=(0.01,))
    thread.start()
    try:
      yield service
    finally:
      service.shutdown()
      thread.join()


@pytest.fixture(autouse=True)
def _no_proxy_but_a_key(monkeypatch):
  monkeypatch.setenv("no_proxy", "*")
  monkeypatch.setenv("TEST_SIMULATOR_KEY", _KEY)


def _user(style, service, **options):
  options = {"key_name": "TEST_SIMULATOR_KEY", "wait_secs": 0.01} | options
  return user_simulator.HttpUser(
    style, base_url=service.url, model="m-1", **options
  )


def _answer(text):
  parsed = tool_calls.parse_completion(text, style="native")
  return conversation.Answer(text, parsed)


def _line(user, rules="r", dialogue=(), answers=()):
  """Hears the user's next line; a model that is asked says the answers."""
  speech, answers = user.speak(rules, dialogue), list(answers)
  try:
    wanted = next(speech)
    while True:
      if isinstance(wanted, conversation.Wait):
        wanted = speech.send(wanted.call())
      else:
        answer = answers.pop(0)
        wanted = speech.send(answer(wanted) if callable(answer) else answer)
  except StopIteration as stop:
    return stop.value


def test_openai_service():
  with _serving((200, _openai(" To Frank \n"))) as service:
    user = _user("openai", service)
    assert _line(user, "the rules", _DIALOGUE) == "To Frank"
    ((path, headers, body),) = service.asked
  assert path == "/v1/chat/completions"
  assert headers["authorization"] == f"Bearer {_KEY}"
  assert body["model"] == "m-1" and body["max_tokens"] == 1000
  assert body["temperature"] == 0.001
  roles = [message["role"] for message in body["messages"]]
  # Its own lines come back as its own; the agent's, as what it is told.
  assert roles == ["system", "user", "assistant", "user"]
  assert body["messages"][0]["content"] == "the rules"
  assert body["messages"][2]["content"] == "Hello"
  assert user.name == f"openai:m-1 at {service.url}"


def test_anthropic_service():
  with _serving((200, _anthropic("To ", "Frank"))) as service:
    user = _user("anthropic", service, temperature=None)
    assert _line(user, "the rules", _DIALOGUE) == "To Frank"
    ((path, headers, body),) = service.asked
  assert path == "/v1/messages"
  assert headers["x-api-key"] == _KEY
  assert headers["anthropic-version"] == "2023-06-01"
  assert "authorization" not in headers
  assert body["system"] == "the rules" and "temperature" not in body
  roles = [message["role"] for message in body["messages"]]
  assert roles == ["user", "assistant", "user"]
  assert all(message["content"] for message in body["messages"])


def test_a_service_without_a_key_gets_none():
  with _serving((200, _openai("Yes"))) as service:
    assert _line(_user("openai", service, key_name="")) == "Yes"
    assert "authorization" not in service.asked[0][1]


def test_what_may_pass_is_tried_again():
  answers = [(429, {}), (None, None), (503, {}), (200, _openai("Now"))]
  with _serving(*answers) as service:
    assert _line(_user("openai", service)) == "Now"
    assert len(service.asked) == 4


@pytest.mark.parametrize(
  ("answers", "num_tries", "reason"),
  [
    ([(401, {"error": _KEY})], 1, "status 401"),
    ([(500, {})] * 4, 4, "status 500"),
    ([(302, {})], 1, "status 302"),
    ([(307, {})], 1, "status 307"),
    ([(200, b"not JSON")], 1, "interface"),
    ([(200, {"choices": []})], 1, "interface"),
    ([(200, _openai(None))], 1, "interface"),
    ([(200, [])], 1, "interface"),
  ],
)
def test_a_service_that_fails_is_an_error_in_one_line(
  answers, num_tries, reason
):
  with _serving(*answers) as service:
    user = _user("openai", service)
    with pytest.raises(user_simulator.SimulatorError, match=reason) as error:
      _line(user, "r", ())
    assert len(service.asked) == num_tries
  assert "\n" not in str(error.value) and _KEY not in str(error.value)


def test_a_service_that_is_away_is_an_error():
  with _serving() as service:
    user = _user("openai", service, num_tries=2)
  with pytest.raises(user_simulator.SimulatorError, match="URLError"):
    _line(user, "r", ())


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"key_name": "TEST_NO_SUCH_KEY"}, "TEST_NO_SUCH_KEY"),
    ({"base_url": "file:///etc"}, "http"),
    ({"num_tries": 0}, "at least 1"),
  ],
)
def test_what_cannot_work_is_refused_at_once(options, message):
  given = {"base_url": "http://127.0.0.1:1", "model": "m", "key_name": ""}
  with pytest.raises(ValueError, match=message) as error:
    user_simulator.HttpUser("openai", **given | options)
  assert "\n" not in str(error.value)


def test_a_script_is_said_in_order():
  user = user_simulator.ScriptedUser(["one", "two"])
  assert isinstance(user, user_simulator.UserSimulator)
  dialogue = []
  for line in ("one", "two", user_simulator.FINISHED, user_simulator.FINISHED):
    assert _line(user, "r", dialogue) == line
    dialogue += [
      user_simulator.Line("user", line),
      user_simulator.Line("agent", "and?"),
    ]


def test_the_scored_model_sees_the_rules_and_its_own_lines():
  asked = []

  def answer(ask):
    asked.append(ask)
    return _answer("<think> hm </think> Fine")

  user = user_simulator.LocalUser()
  assert isinstance(user, user_simulator.UserSimulator)
  assert _line(user, "the rules", _DIALOGUE[:1], [answer]) == "Fine"
  (ask,) = asked
  assert ask.messages[0] == {"role": "system", "content": "the rules"}
  assert ask.messages[-1] == {"role": "assistant", "content": "Hello"}
  assert (ask.speaker, ask.turn, ask.step) == ("user", 1, 0)


def test_a_dialogue_too_long_for_the_scored_model_is_an_error():
  answer = _answer("")._replace(is_cut=True)
  with pytest.raises(user_simulator.SimulatorError, match="max_prompt_tokens"):
    _line(user_simulator.LocalUser(), "r", (), [answer])


def test_the_rules_keep_the_player_a_user():
  instruction = "You are {Eve}. Order pizza."
  phone, travel = (
    user_simulator.rules(instruction, is_travel=one) for one in (False, True)
  )
  for text in (phone, travel):
    assert instruction in text
    assert "Answer as the user" in text
    assert user_simulator.FINISHED in text
  assert "delete" in phone and "round-trip" in travel
  assert len(user_simulator.digest()) == 64
