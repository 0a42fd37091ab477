"""Matches of short answers by hand, and a judge behind a real web service."""

import http.server
import json
import threading

import pytest

from toolrl_jax.evaluation import answer_match

_KEY = "TEST_JUDGE_KEY"


@pytest.mark.parametrize(
  ("text", "normal"),
  [
    ("The  Titan-IIIE!", "titaniiie"),
    ("An apple, a day\n", "apple day"),
    ("theatre and Ana", "theatre and ana"),
    ("the", ""),
    ("Łódź “x”", "łódź “x”"),
  ],
)
def test_normalise_is_that_of_squad(text, normal):
  assert answer_match.normalise(text) == normal


def test_exact_needs_equal_normal_forms():
  assert answer_match.exact("The James Madison.", "james madison") == 1.0
  assert answer_match.exact("President James Madison", "james madison") == 0.0


def test_f1_by_hand():
  # 2 shared words of 3 and 2: 2 * 2 / 5.
  assert answer_match.f1("president james madison", "James Madison") == 0.8
  # Words count as often as they occur: one "x" is shared, 2 * 1 / 4.
  assert answer_match.f1("x x x", "x") == 0.5
  assert answer_match.f1("y", "x") == answer_match.f1("", "x") == 0.0
  assert answer_match.f1("the", "a") == 1.0


def test_contains_looks_for_whole_words():
  assert answer_match.contains("It was in 1999, I think.", "1999") == 1.0
  assert answer_match.contains("It was in 19990.", "1999") == 0.0
  assert answer_match.contains("Madison James", "James Madison") == 0.0
  assert answer_match.contains("anything", "the") == 0.0


class _Handler(http.server.BaseHTTPRequestHandler):
  """Says the server's `words`, in the form of a chat service."""

  def do_POST(self):
    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    sent = (self.path, self.headers["Authorization"], body)
    self.server.seen.append(sent)
    reply = {"choices": [{"message": {"content": self.server.words}}]}
    self.send_response(self.server.status)
    self.end_headers()
    self.wfile.write(json.dumps(reply).encode())

  def log_message(self, *_):
    pass


@pytest.fixture
def server(monkeypatch):
  monkeypatch.setenv(_KEY, "secret")
  monkeypatch.setenv("no_proxy", "127.0.0.1")
  with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as running:
    running.seen, running.words, running.status = [], "Yes", 200
    running.url = f"http://127.0.0.1:{running.server_port}/v1/"
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield running
    running.shutdown()
    thread.join()


@pytest.mark.parametrize(
  ("words", "verdict"),
  [
    ("Yes", True),
    ("no.", False),
    ("**Yes**, it is", True),
    ("Maybe", None),
    ("", None),
    (None, None),
    (["Yes"], None),
  ],
)
def test_judge_reads_the_first_word(server, words, verdict):
  server.words = words
  judge = answer_match.ModelJudge(server.url, "m", _KEY)
  assert judge.judge("q", "gold", "answer") is verdict


def test_judge_sends_question_reference_and_cut_answer(server):
  judge = answer_match.ModelJudge(server.url, "m", _KEY)
  judge.judge("Who?", "Ann", "Bea" * 5000)
  ((path, key, body),) = server.seen
  assert (path, key) == ("/v1/chat/completions", "Bearer secret")
  assert (body["model"], body["temperature"]) == ("m", 0)
  text = body["messages"][1]["content"]
  assert text.startswith("Question: Who?\nReference: Ann\nAnswer: BeaBea")
  assert len(text) < 2100


def test_judge_marks_an_empty_answer_without_asking(server):
  judge = answer_match.ModelJudge(server.url, "m", _KEY)
  assert judge.judge("q", "gold", " \n") is False
  assert server.seen == []


def test_judge_without_verdict_when_the_service_fails(server):
  server.status = 500
  judge = answer_match.ModelJudge(server.url, "m", _KEY)
  assert judge.judge("q", "gold", "answer") is None
  away = answer_match.ModelJudge("http://127.0.0.1:1", "m")
  assert away.judge("q", "gold", "answer") is None


def test_judge_needs_the_key_it_is_told_of(monkeypatch):
  monkeypatch.delenv(_KEY, raising=False)
  with pytest.raises(ValueError, match=f"environment variable {_KEY}"):
    answer_match.ModelJudge("http://127.0.0.1/v1", "m", _KEY)
