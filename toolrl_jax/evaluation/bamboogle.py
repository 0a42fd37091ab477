"""Bamboogle: two-step questions, answered with a search tool.

From the file of 125 questions to conversations of a few rounds, and from
their outcomes to the share of right answers. The rules follow ToolRL's
evaluation (github.com/qiancheng0/ToolRL, benchmarks/Bamboogle, commit
8cee13e), written anew: one tool, at most four rounds, only the first call of a
round is made, five hits are shown, calls that cannot be read cost a round and
the same prompt comes again, and in the last round no call is possible.

Departures:

1. Calls are read by our own parser; upstream reads them as Python literals,
   where true, false and null fail.
2. The wording of the request and of the last round is ours.
3. Without a judge, matches of normalised text stand in for one.
4. An item is answered once; upstream runs the failed items again.

Unless the search asks the web as it is now, the benchmark and its metrics are
called bamboogle_offline: they cannot be compared with published numbers.

See "Measuring and Narrowing the Compositionality Gap" (arXiv:2210.03350).
"""

import functools
import hashlib
import json
import pathlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.evaluation import (
  answer_match,
  benchmark,
  conversation,
)
from toolrl_jax.evaluation import search as search_lib

NUM_ROUNDS = 4
NUM_PAGES = 5
_MAX_QUERY_CHARS = 1000

# The file of ToolRL commit 8cee13e.
_SHA256 = "82d2ff3996093300bf207c01f0a91a6fe7bd3608287ae623650788b712777f0c"
_TOOL_NAME = "Search"
_TOOL = {
  "name": _TOOL_NAME,
  "description": "Searches the web and returns the titles and snippets of the"
  " best pages.",
  "parameters": {
    "type": "object",
    "properties": {
      "query": {"type": "string", "description": "What to search for."}
    },
    "required": ["query"],
  },
}
_REQUEST = (
  "{question}\nGive the final answer in as few words as possible, without a"
  " sentence around it."
)
_LAST_ROUND = "No further search is possible. Give the final answer now."


class Bamboogle:
  """The questions of Bamboogle over one source of pages.

  Attributes:
    name: "bamboogle" with a live search, else "bamboogle_offline".
    headline: The judged accuracy where there is a judge, else exact match.
  """

  def __init__(
    self,
    path: str,
    *,
    search: search_lib.Search | None,
    judge: answer_match.Judge | None = None,
    max_items: int = 0,
  ):
    """Reads the questions.

    Args:
      path: The JSON file, or its folder.
      search: Where pages come from; None is closed book, without a tool.
      judge: Asked whether an answer is right; None asks nobody.
      max_items: Takes the first questions; 0 takes all.

    Raises:
      ValueError: The file is missing or not in the form of Bamboogle.
    """
    self._search, self._judge = search, judge
    is_live = search is not None and search.is_live
    self.name = "bamboogle" if is_live else "bamboogle_offline"
    metric = "judged" if judge else "exact_match"
    self.headline = f"{self.name}/{metric}"
    self._items, self._sha256 = _read(pathlib.Path(path), self.name)
    self._items = self._items[: max_items or None]

  def items(self) -> Sequence[benchmark.Item]:
    """Returns the questions in the order of the file."""
    return self._items

  def converse(self, item: benchmark.Item) -> conversation.Conversation:
    """Lets the model search and answer.

    The outcome holds the answer, the queries made, the failed searches, the
    rounds used, and the judge's verdict where one was asked.
    """
    question = str(item.row["question"])
    outcome: dict[str, Any] = {"queries": [], "num_failed": 0}
    request = _REQUEST.format(question=question)
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": request}]
    tools = (_TOOL,) if self._search else ()
    turn, num_rounds = 0, NUM_ROUNDS if self._search else 1
    for round_ in range(num_rounds):
      is_last = round_ == num_rounds - 1
      if is_last and self._search:
        messages.append({"role": "user", "content": _LAST_ROUND})
        turn = 1
      answer = yield conversation.Ask(
        tuple(messages), tools, turn=turn, step=0 if turn else round_
      )
      outcome["num_rounds"] = round_ + 1
      if is_last or not answer.parsed.has_call:
        break
      if answer.parsed.calls:
        messages.append(conversation.assistant_turn(answer))
        content = yield from self._call(answer.parsed.calls[0], outcome)
        messages.append(conversation.tool_turn(content, _TOOL_NAME))
    outcome["answer"] = _final(answer)
    outcome["is_cut"] = answer.is_cut
    if self._judge:
      gold = str(item.row["gold"])
      outcome["judged"] = yield conversation.Wait(
        functools.partial(self._judge.judge, question, gold, outcome["answer"])
      )
    return outcome

  def _call(
    self, call: types.ToolCall, outcome: dict[str, Any]
  ) -> Generator[conversation.Wait, search_lib.Found, str]:
    """Makes one call and notes it; returns what the model is shown."""
    query = call.arguments.get("query")
    if call.name != _TOOL_NAME:
      return f"Error: there is no tool of that name; use {_TOOL['name']}."
    if not isinstance(query, str) or not query.strip():
      return "Error: query must be a text that is not empty."
    if len(query) > _MAX_QUERY_CHARS:
      return f"Error: query must have at most {_MAX_QUERY_CHARS} characters."
    assert self._search is not None  # without it the tool is not offered
    found = yield conversation.Wait(
      functools.partial(self._search.search, query, NUM_PAGES)
    )
    outcome["queries"].append(query)
    outcome["num_failed"] += bool(found.error)
    return search_lib.lines(found)

  def score(
    self, outcomes: Mapping[str, Mapping[str, Any]]
  ) -> benchmark.Scores:
    """Scores the answers.

    All metrics are fractions but `mean_calls`, the mean number of searches
    that were made for a question, in [0, 3].
    """
    by_item = {item.id: outcomes.get(item.id, {}) for item in self._items}
    rows = {
      item.id: _metrics(by_item[item.id], str(item.row["gold"]))
      for item in self._items
    }
    if not self._judge:
      for row in rows.values():
        del row["judged"]
    names = next(iter(rows.values()), {})
    table = {
      f"{self.name}/{name}": sum(row[name] for row in rows.values()) / len(rows)
      for name in names
    }
    headline = self.headline.rpartition("/")[2]
    return benchmark.Scores(
      verdicts={key: row[headline] for key, row in rows.items()},
      table=table,
      counts={self.name: len(rows)},
      notes=self._notes(list(by_item.values())),
    )

  def _notes(self, outcomes: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    notes = []
    if self.name != "bamboogle":
      source = self._search.name if self._search else "none, closed book"
      notes.append(
        f"The search was offline ({source}): not comparable with published"
        " numbers."
      )
    if not self._judge:
      notes.append(
        "No judge was asked: exact match, F1 and contains of normalised text"
        " stand in for the judged accuracy that others report."
      )
    num_failed = sum(_count(outcome, "num_failed") for outcome in outcomes)
    if num_failed:
      notes.append(f"{num_failed} searches failed; the model was told so.")
    num_unjudged = sum(
      "judged" in outcome and outcome["judged"] is None for outcome in outcomes
    )
    if num_unjudged:
      notes.append(f"The judge gave no verdict on {num_unjudged} answers.")
    if self._sha256 != _SHA256:
      notes.append("The questions are not the file of ToolRL commit 8cee13e.")
    return tuple(notes)

  def provenance(self) -> Mapping[str, str]:
    """Returns the hashes of questions and wording, search and judge."""
    wording = json.dumps([_TOOL, _REQUEST, _LAST_ROUND])
    return {
      "questions": self._sha256,
      "wording": hashlib.sha256(wording.encode()).hexdigest()[:16],
      "rule": f"{NUM_ROUNDS} rounds, {NUM_PAGES} pages, {self.headline}",
      **(self._search.provenance() if self._search else {"search": "none"}),
      **(self._judge.provenance() if self._judge else {"judge": "none"}),
    }


def _read(
  path: pathlib.Path, category: str
) -> tuple[tuple[benchmark.Item, ...], str]:
  file = path / "data.json" if path.is_dir() else path
  try:
    content = file.read_bytes()
  except OSError as error:
    raise ValueError(
      f"Bamboogle needs its JSON file, {str(file)!r} is not readable; give the"
      " file or its folder."
    ) from error
  try:
    rows = [
      {"question": str(row["Question"]), "gold": str(row["Answer"])}
      for row in json.loads(content)
    ]
  except (KeyError, TypeError, ValueError, RecursionError) as error:
    raise ValueError(
      f"{file.name} must be a JSON list of Question and Answer, got"
      f" {' '.join(str(error).split())!r}; fetch the file again."
    ) from error
  items = tuple(
    benchmark.Item(f"bamboogle_{number}", category, row)
    for number, row in enumerate(rows)
  )
  return items, hashlib.sha256(content).hexdigest()


def _final(answer: conversation.Answer) -> str:
  """Takes the final answer; the text of a call is none."""
  response = answer.parsed.response
  if response is not None or answer.parsed.has_call:
    return response or ""
  return answer.spoken


def _metrics(outcome: Mapping[str, Any], gold: str) -> dict[str, float]:
  answer, queries = outcome.get("answer"), outcome.get("queries")
  answer = answer if isinstance(answer, str) else ""
  num_calls = len(queries) if isinstance(queries, list | tuple) else 0
  return {
    "exact_match": answer_match.exact(answer, gold),
    "f1": answer_match.f1(answer, gold),
    "contains": answer_match.contains(answer, gold),
    "judged": float(outcome.get("judged") is True),
    "mean_calls": float(num_calls),
  }


def _count(outcome: Mapping[str, Any], key: str) -> int:
  value = outcome.get(key)
  return value if isinstance(value, int) else 0
