"""Searches: a real local web service, recorded files and BM25 by hand."""

import http.server
import json
import math
import threading

import pytest

from toolrl_jax.evaluation import search, web_service

_REPLY = {
  "answerBox": {"title": "Uranus", "answer": "1986"},
  "organic": [
    {"title": f"page {n}", "snippet": f"text\n{n}", "link": "x"}
    for n in range(15)
  ],
}
_KEY = "TEST_SEARCH_KEY"


class _Handler(http.server.BaseHTTPRequestHandler):
  """Gives the server's `reply` and keeps what it was sent."""

  def do_POST(self):
    length = int(self.headers["Content-Length"])
    body = json.loads(self.rfile.read(length))
    self.server.seen.append((self.path, self.headers["X-API-KEY"], body))
    status, headers, content = self.server.reply
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(content)

  do_GET = do_POST

  def log_message(self, *_):
    pass


@pytest.fixture
def server(monkeypatch):
  monkeypatch.setenv(_KEY, "secret")
  monkeypatch.setenv("no_proxy", "127.0.0.1")
  with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as running:
    running.seen, running.reply = [], (200, {}, json.dumps(_REPLY).encode())
    running.url = f"http://127.0.0.1:{running.server_port}/search"
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield running
    running.shutdown()
    thread.join()


def _serper(server, **options):
  return search.Serper(_KEY, url=server.url, **options)


def test_lines_numbers_titles_and_keeps_each_on_a_line():
  found = search.Found((search.Page("a", "x\ny"), search.Page("b\n", "z")))
  assert search.lines(found) == "1. a\n- Snippet: x y\n2. b\n- Snippet: z"
  assert search.lines(search.Found()) == "No results."
  assert search.lines(search.Found(error="e")) == "The search failed."


def test_serper_asks_for_15_and_shows_the_answer_box_first(server):
  found = _serper(server).search("when", 5)
  assert server.seen == [("/search", "secret", {"q": "when", "num": 15})]
  assert found.error == ""
  assert [page.title for page in found.pages] == (
    ["Uranus", "page 0", "page 1", "page 2", "page 3"]
  )
  assert search.lines(found).startswith(
    "1. Uranus\n- Snippet: 1986\n2. page 0\n- Snippet: text 0\n"
  )


@pytest.mark.parametrize(
  ("status", "content", "error"),
  [
    (500, b"{}", "status 500"),
    (200, b"no json", "Expecting value"),
    (200, b"\xff", "utf-8"),
    (200, b"[" * 100_000, "nests too deep"),
    (200, b"[]", "no JSON object"),
    (200, b" " * 4_000_001, "longer than"),
  ],
)
def test_serper_reports_a_bad_reply(server, status, content, error):
  server.reply = (status, {}, content)
  found = _serper(server).search("q", 5)
  assert found.pages == ()
  assert error in found.error
  assert "secret" not in found.error


def test_serper_takes_odd_entries_of_a_reply(server):
  reply = {"answerBox": [1], "organic": [None, {"title": 3}, {"snippet": "s"}]}
  server.reply = (200, {}, json.dumps(reply).encode())
  pages = _serper(server).search("q", 5).pages
  assert pages == (search.Page("3", ""), search.Page("", "s"))


def test_serper_carries_its_key_to_no_other_address(server):
  server.reply = (302, {"Location": server.url + "/other"}, b"")
  found = _serper(server).search("q", 5)
  assert "status 302" in found.error
  assert [path for path, _, _ in server.seen] == ["/search"]


def test_serper_reports_a_service_that_is_not_there(monkeypatch):
  monkeypatch.setenv(_KEY, "secret")
  found = search.Serper(_KEY, url="http://127.0.0.1:1/").search("q", 5)
  assert "refused" in found.error


@pytest.mark.parametrize(("key", "word"), [("", "none"), ("a\nb", "nothing")])
def test_serper_needs_a_key(monkeypatch, key, word):
  monkeypatch.setenv(_KEY, key)
  with pytest.raises(ValueError, match=f"variable {_KEY}, found {word}"):
    search.Serper(_KEY)


def test_service_refuses_other_addresses():
  for url in ("file:///etc/passwd", "ftp://host/", "host", "http://"):
    with pytest.raises(ValueError, match="begin with http"):
      web_service.Service(url)


def test_recorded_makes_each_search_once_and_replays_it(server, tmp_path):
  path = str(tmp_path / "searches.jsonl")
  live = search.Recorded(path, live=_serper(server))
  assert (live.name, live.is_live) == ("recorded+serper", True)
  first = live.search("when é\n", 5)
  assert live.search("when é\n", 5) == first
  assert len(server.seen) == 1
  replay = search.Recorded(path)
  assert (replay.name, replay.is_live) == ("recorded", False)
  assert replay.search("when é\n", 5) == first


def test_recorded_says_that_a_search_is_missing(server, tmp_path):
  path = str(tmp_path / "searches.jsonl")
  search.Recorded(path, live=_serper(server)).search("a", 5)
  replay = search.Recorded(path)
  for query, num_pages in (("b", 5), ("a", 4)):
    found = replay.search(query, num_pages)
    assert found == search.Found(
      error="this search is not among the recorded ones"
    )
  assert len(server.seen) == 1


def test_recorded_keeps_no_failed_search(server, tmp_path):
  path = tmp_path / "searches.jsonl"
  server.reply = (503, {}, b"")
  live = search.Recorded(str(path), live=_serper(server))
  assert live.search("a", 5).error
  assert not path.exists()
  server.reply = (200, {}, json.dumps(_REPLY).encode())
  assert len(live.search("a", 5).pages) == 5


def test_recorded_goes_on_after_half_a_line(server, tmp_path):
  path = tmp_path / "searches.jsonl"
  search.Recorded(str(path), live=_serper(server)).search("a", 5)
  whole = path.read_bytes()
  path.write_bytes(whole + b'{"query": "b", "num')
  live = search.Recorded(str(path), live=_serper(server))
  assert live.search("a", 5).pages and len(server.seen) == 1
  live.search("b", 5)
  assert path.read_bytes().startswith(whole)
  assert search.Recorded(str(path)).search("b", 5).pages


def test_recorded_names_a_missing_file_and_a_broken_line(tmp_path):
  path = tmp_path / "searches.jsonl"
  with pytest.raises(ValueError, match="is missing"):
    search.Recorded(str(path))
  good = '{"query": "a", "num_pages": 5, "pages": [["t", "s"]]}\n'
  for line in ("{}", "[", "1", '{"query": 1, "num_pages": 5, "pages": [1]}'):
    path.write_text(good + "\n" + line + "\n")
    with pytest.raises(ValueError, match="line 3 of"):
      search.Recorded(str(path))


def test_recorded_provenance_is_the_hash_of_the_records(tmp_path):
  path = tmp_path / "searches.jsonl"
  path.write_text('{"query": "a", "num_pages": 5, "pages": []}')
  record = search.Recorded(str(path)).provenance()
  path.write_text('{"query": "a", "num_pages": 5, "pages": []}\n')
  other = search.Recorded(str(path)).provenance()
  assert record["search"] == other["search"] == "recorded"
  assert record["search_records"] != other["search_records"]


@pytest.fixture
def corpus(tmp_path):
  path = tmp_path / "corpus.jsonl"
  rows = [("cat", "the cat sat"), ("dog", "a dog"), ("", "cats and dogs")]
  path.write_text(
    "\n".join(json.dumps({"title": t, "text": x}) for t, x in rows) + "\n"
  )
  return str(path)


def test_bm25_scores_are_those_of_the_formula(corpus):
  index = search.Bm25(corpus, k1=1.2, b=0.5)
  # Three pages of 4, 3 and 3 words, mean 10 / 3. "cat" is in one page, twice:
  # idf = ln(1 + 2.5 / 1.5), tf part = 2 * 2.2 / (2 + 1.2 * (0.5 + 0.5 * 1.2)).
  cat = math.log(1 + 2.5 / 1.5) * 4.4 / (2 + 1.2 * 1.1)
  assert index.scores("Cat!") == pytest.approx({0: cat})
  assert cat == pytest.approx(1.2999, abs=1e-4)
  # "a" is in page 1 alone, once; length part 0.5 + 0.5 * 0.9.
  a = math.log(1 + 2.5 / 1.5) * 2.2 / (1 + 1.2 * 0.95)
  assert index.scores("a") == pytest.approx({1: a})
  assert index.scores("cat cat a") == pytest.approx({0: 2 * cat, 1: a})
  assert index.scores("bird \ud800") == {}


def test_bm25_search_ranks_and_limits(corpus):
  index = search.Bm25(corpus)
  found = index.search("the dog and the cat", 2)
  assert [page.title for page in found.pages] == ["cat", "dog"]
  assert index.search("zebra", 5) == search.Found()
  assert index.is_live is False


def test_bm25_reads_paragraphs_and_cuts_long_snippets(tmp_path):
  path = tmp_path / "notes.txt"
  path.write_text("Rome\nThe capital.\nOld.\n\n \nOslo\n\nLong\n" + "x " * 900)
  index = search.Bm25(str(path))
  assert index.search("capital", 5).pages == (
    search.Page("Rome", "The capital.\nOld."),
  )
  assert index.search("oslo", 5).pages == (search.Page("Oslo", "Oslo"),)
  assert len(index.search("x", 5).pages[0].snippet) == 400


def test_bm25_names_a_bad_corpus(tmp_path):
  with pytest.raises(ValueError, match="cannot be read"):
    search.Bm25(str(tmp_path / "none.txt"))
  path = tmp_path / "bad.jsonl"
  for text, match in (
    ("", "at least one page"),
    ('{"text": "!"}', "at least one page"),
    ('{"text": "a"}\n[1]', "line 2 of bad.jsonl"),
    ('{"title": "a"}', "line 1 of bad.jsonl"),
  ):
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
      search.Bm25(str(path))
