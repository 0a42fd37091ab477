"""Search for questions: a query to titles and snippets.

From a query to the pages that a search gives, and from pages to the lines that
a model is shown. Four sources: a web service with Serper's interface, a file
of recorded searches (with or without a live one behind it), a local corpus
ranked by BM25, and none at all. A search that fails says so in its record and
never raises, since the query is model text. Knows neither questions nor
benchmarks.
"""

import collections
import hashlib
import json
import math
import os
import pathlib
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from toolrl_jax.evaluation import web_service

# Serper's address; any service with the same interface takes its place.
SERPER_URL = "https://google.serper.dev/search"
# Pages asked of a web service, as ToolRL's Bamboogle does.
_NUM_REQUESTED = 15
_SNIPPET_CHARS = 400
_WORD = re.compile(r"\w+")


class Page(NamedTuple):
  """One search hit.

  Attributes:
    title: Title of the page.
    snippet: The part of its text that fits the query.
  """

  title: str
  snippet: str


class Found(NamedTuple):
  """What a search gave.

  Attributes:
    pages: Hits, best first; an answer box is the first of them.
    error: Why the search failed, one line; empty when it did not.
  """

  pages: tuple[Page, ...] = ()
  error: str = ""


@runtime_checkable
class Search(Protocol):
  """A source of pages.

  Attributes:
    name: What it is, for records.
    is_live: Whether it asks the web as it is now.
  """

  name: str
  is_live: bool

  def search(self, query: str, num_pages: int) -> Found:
    """Returns at most `num_pages` pages; never raises for a query.

    Several threads may search at once.
    """
    ...

  def provenance(self) -> Mapping[str, str]:
    """Returns what its hits depend on."""
    ...


def lines(found: Found) -> str:
  """Writes hits as the lines that a model is shown.

  Args:
    found: Hits of one search.

  Returns:
    Two lines a hit, "i. title" and "- Snippet: text", or one line that says
    that there are none. The reason of a failure is not for the model.
  """
  if found.error:
    return "The search failed."
  if not found.pages:
    return "No results."
  return "\n".join(
    f"{number}. {_one_line(page.title)}\n- Snippet: {_one_line(page.snippet)}"
    for number, page in enumerate(found.pages, start=1)
  )


# ----- the web -----


class Serper:
  """A web search with Serper's interface.

  Attributes:
    name: "serper".
    is_live: True.
  """

  name = "serper"
  is_live = True

  def __init__(
    self,
    key_variable: str,
    *,
    url: str = SERPER_URL,
    timeout_secs: float = 30.0,
  ):
    """Takes the key; nothing is sent.

    Args:
      key_variable: Name of the environment variable that holds the key.
      url: Address of the service.
      timeout_secs: Longest wait for one search.

    Raises:
      ValueError: There is no key, or the address is no web address.
    """
    self._service = web_service.Service(url, timeout_secs=timeout_secs)
    self._key, self._host = web_service.key_from(key_variable), url

  def search(self, query: str, num_pages: int) -> Found:
    """Asks the service; a failure of any kind is in the record."""
    document = {"q": query, "num": max(num_pages, _NUM_REQUESTED)}
    try:
      reply = self._service.post(document, {"X-API-KEY": self._key})
    except (OSError, ValueError) as error:
      return Found(error=web_service.excuse(error))
    if not isinstance(reply, dict):
      return Found(error="the reply is no JSON object")
    return Found(tuple(_serper_pages(reply)[:num_pages]))

  def provenance(self) -> Mapping[str, str]:
    """Returns the address; the web behind it has no version."""
    return {"search": self.name, "search_url": self._host}


def _serper_pages(reply: Mapping[str, Any]) -> list[Page]:
  """Takes the answer box, then the organic hits, of a reply."""
  box, organic = reply.get("answerBox"), reply.get("organic")
  entries = [entry for entry in (box,) if isinstance(entry, dict)]
  if isinstance(organic, list):
    entries += [entry for entry in organic if isinstance(entry, dict)]
  pages = []
  for entry in entries:
    snippet = entry.get("answer") or entry.get("snippet") or ""
    pages.append(Page(str(entry.get("title") or ""), str(snippet)))
  return pages


# ----- recorded searches -----


class Recorded:
  """Searches from a file of records, and a live one where that has none.

  One JSON object a line: `query`, `num_pages`, `pages` as [title, snippet].

  Attributes:
    name: "recorded", with the name of the live search where there is one.
    is_live: Whether there is one behind it that asks the web.
  """

  def __init__(self, path: str, *, live: Search | None = None):
    """Reads the file.

    Args:
      path: File of records. With `live` it may be missing and grows.
      live: Asked for what the file lacks; None never leaves the file.

    Raises:
      ValueError: The file is missing without `live`, or has a broken line.
    """
    self._file, self._live = pathlib.Path(path), live
    self._lock = threading.Lock()
    self.name = f"recorded+{live.name}" if live else "recorded"
    self.is_live = live is not None and live.is_live
    self._pages: dict[tuple[str, int], tuple[Page, ...]] = {}
    try:
      content = self._file.read_bytes()
    except FileNotFoundError as error:
      if live is None:
        raise ValueError(
          f"a replay needs the file of recorded searches, {path!r} is missing;"
          " record one with a live search first."
        ) from error
      content = b""
    # A recording that was killed may have left half a line; it is made anew.
    whole = content[: content.rfind(b"\n") + 1]
    if live is not None and len(whole) < len(content):
      os.truncate(self._file, len(whole))
      content = whole
    for number, line in enumerate(content.split(b"\n"), start=1):
      if line.strip():
        self._read(number, line)
    self._sha256 = hashlib.sha256(content).hexdigest()

  def _read(self, number: int, line: bytes) -> None:
    try:
      row = json.loads(line)
      pages = tuple(Page(str(title), str(text)) for title, text in row["pages"])
      self._pages[str(row["query"]), int(row["num_pages"])] = pages
    except (KeyError, TypeError, ValueError, RecursionError) as error:
      raise ValueError(
        f"line {number} of {str(self._file)!r} must be a recorded search, got"
        f" {line[:40]!r}; remove the line."
      ) from error

  def search(self, query: str, num_pages: int) -> Found:
    """Replays a search, or makes and records it.

    A failed search is not recorded, so that a later run tries it again.
    """
    key = (query, num_pages)
    if key not in self._pages:
      if self._live is None:
        return Found(error="this search is not among the recorded ones")
      found = self._live.search(query, num_pages)
      if found.error:
        return found
      self._record(key, found.pages)
    return Found(self._pages[key])

  def _record(self, key: tuple[str, int], pages: tuple[Page, ...]) -> None:
    """Adds a line, unless another thread just did."""
    with self._lock:
      if key in self._pages:
        return
      self._pages[key] = pages
      row = {"query": key[0], "num_pages": key[1], "pages": pages}
      with self._file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")

  def provenance(self) -> Mapping[str, str]:
    """Returns the hash of the records, or what they are made from."""
    if self._live:
      # The file grows with every search, also after a stop.
      return {**self._live.provenance(), "search": self.name}
    return {"search": self.name, "search_records": self._sha256}


# ----- a local corpus -----


class Bm25:
  """Search over a local corpus, ranked by BM25.

      score(q, d) = Σ_t idf(t) · f(t,d) (k1 + 1) / (f(t,d) + k1 (1 - b + b |d|/avg))
      idf(t) = ln(1 + (N - n(t) + 1/2) / (n(t) + 1/2))

  See "The Probabilistic Relevance Framework: BM25 and Beyond" (Robertson and
  Zaragoza, 2009), with Lucene's idf, which is never negative.

  Attributes:
    name: "bm25".
    is_live: False.
  """

  name = "bm25"
  is_live = False

  def __init__(self, path: str, *, k1: float = 1.5, b: float = 0.75):
    """Reads and indexes a corpus.

    Args:
      path: JSONL of objects with `title` and `text`, or any other text file,
        in which paragraphs are pages and their first line the title.
      k1: Saturation of the term frequency, at least 0.
      b: Weight of the length, in [0, 1].

    Raises:
      ValueError: The file is missing, empty or has a broken line.
    """
    self._pages, self._sha256 = _corpus(pathlib.Path(path))
    self._k1, self._b = k1, b
    counts = [collections.Counter(_words(" ".join(p))) for p in self._pages]
    self._lengths = [sum(count.values()) for count in counts]
    self._mean_length = sum(self._lengths) / len(counts)
    self._postings: dict[str, list[tuple[int, int]]] = {}
    for index, count in enumerate(counts):
      for word, frequency in count.items():
        self._postings.setdefault(word, []).append((index, frequency))

  def scores(self, query: str) -> dict[int, float]:
    """Returns the BM25 score of each page that has a word of the query.

    Args:
      query: Any text; a word that occurs twice counts twice.

    Returns:
      Number of the page in the corpus to its score, above 0.
    """
    total: dict[int, float] = {}
    for word, times in collections.Counter(_words(query)).items():
      postings = self._postings.get(word, [])
      df = len(postings)
      idf = math.log(1 + (len(self._pages) - df + 0.5) / (df + 0.5))
      for index, tf in postings:
        length = self._lengths[index] / self._mean_length
        norm = tf + self._k1 * (1 - self._b + self._b * length)
        gain = times * idf * tf * (self._k1 + 1) / norm
        total[index] = total.get(index, 0.0) + gain
    return total

  def search(self, query: str, num_pages: int) -> Found:
    """Returns the pages with the highest scores; ties in corpus order."""
    scores = self.scores(query)
    best = sorted(scores, key=lambda index: (-scores[index], index))
    return Found(
      tuple(
        Page(page.title, page.snippet[:_SNIPPET_CHARS])
        for page in (self._pages[index] for index in best[:num_pages])
      )
    )

  def provenance(self) -> Mapping[str, str]:
    """Returns the hash of the corpus and the two parameters."""
    parameters = f"k1={self._k1} b={self._b}"
    return {
      "search": f"{self.name} {parameters}",
      "search_corpus": self._sha256,
    }


def _corpus(file: pathlib.Path) -> tuple[list[Page], str]:
  """Reads pages and the hash of their file."""
  try:
    content = file.read_bytes()
    text = content.decode("utf-8-sig")
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(
      f"a corpus must be a UTF-8 text file, {str(file)!r} cannot be read as"
      " one; give a JSONL or text file."
    ) from error
  if file.suffix == ".jsonl":
    pages = [
      _jsonl_page(file, number, line)
      for number, line in enumerate(text.split("\n"), start=1)
      if line.strip()
    ]
  else:
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text)]
    parts = [part.partition("\n") for part in paragraphs if part]
    pages = [Page(title, body or title) for title, _, body in parts]
  if not any(_words(" ".join(page)) for page in pages):
    raise ValueError(
      f"a corpus must have at least one page with a word, {str(file)!r} has"
      " none; give another file."
    )
  return pages, hashlib.sha256(content).hexdigest()


def _jsonl_page(file: pathlib.Path, number: int, line: str) -> Page:
  try:
    row = json.loads(line)
    return Page(str(row.get("title") or ""), str(row["text"]))
  except (KeyError, AttributeError, ValueError, RecursionError) as error:
    raise ValueError(
      f"line {number} of {file.name} must be an object with title and text,"
      f" got {line[:40]!r}; repair the corpus."
    ) from error


def _words(text: str) -> Sequence[str]:
  return _WORD.findall(text.lower())


def _one_line(text: str) -> str:
  return " ".join(text.split())
