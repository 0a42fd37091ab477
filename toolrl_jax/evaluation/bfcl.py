"""BFCL v4: its single-turn and multi-turn categories as a benchmark.

From entries of bfcl-eval 2026.3.23 to conversations, and from their outcomes
to the package's own verdicts. Calls are those that the run's layout reads from
the text; what becomes of them is decided in another process (`bfcl_process`).
Rules, with the package's Qwen handler as the model (`QwenFCHandler`):

1. A turn ends with the first answer without calls. After more than 20 steps
   with calls, so after the 21st, the turn and the conversation end.
2. A call without an object of arguments makes its answer one without calls.
3. Documents held back in `multi_turn_miss_func` come as a user message; the
   other choice, "tools", adds them to the tools and sends the short message,
   as the package does for vendors' interfaces.

Not in the package: abstention in turns whose gold is empty. It executes them
but never checks them, so a model that always calls loses nothing there.
"""

import itertools
import pathlib
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Literal

from toolrl_jax.evaluation import (
  benchmark,
  bfcl_documents,
  bfcl_environment,
  bfcl_oracle,
  bfcl_outcomes,
  bfcl_process,
  bfcl_scores,
  conversation,
)

MissedDocuments = Literal["message", "tools"]

# The package tests `count > 20` after the step.
STEP_LIMIT = 20
_LOAD_SECS = 120.0


class Bfcl:
  """The benchmark; see `benchmark.Benchmark`.

  Attributes:
    name: "bfcl".
    headline: "paper/avg" where all its categories are run, else "items", the
      mean over all items.
  """

  name = "bfcl"

  def __init__(
    self,
    *,
    environment_folder: pathlib.Path | None = None,
    categories: Sequence[str] = bfcl_scores.CATEGORIES,
    max_items: int = 0,
    tool_docs: bfcl_documents.Form = "raw",
    tool_names: bfcl_documents.Names = "dotted",
    missed_documents: MissedDocuments = "message",
    limits: bfcl_process.Limits = bfcl_process.Limits(),  # noqa: B008
  ):
    """Chooses what to run; nothing is made or started yet.

    Args:
      environment_folder: Where the scorer's environment is or shall be; None
        takes the user's cache.
      categories: Some of `bfcl_scores.CATEGORIES`, in the order to run.
      max_items: The first so many items of each category; 0 takes all.
      tool_docs: Form of the documents that the model sees.
      tool_names: Whether it sees and calls names with dots, or with `_`.
      missed_documents: See the module.
      limits: What one conversation may use.

    Raises:
      ValueError: A category is unknown or named twice.
    """
    unknown = [
      name for name in categories if name not in bfcl_scores.CATEGORIES
    ]
    if unknown or not categories or len(set(categories)) < len(categories):
      raise ValueError(
        f"categories must be different ones of {bfcl_scores.CATEGORIES}, got"
        f" {tuple(categories)}; correct them."
      )
    if max_items < 0:
      raise ValueError(
        f"max_items must be at least 0, got {max_items}; 0 takes all."
      )
    self._folder = environment_folder
    self._categories = tuple(categories)
    self._max_items = max_items
    self._form: bfcl_documents.Form = tool_docs
    self._names: bfcl_documents.Names = tool_names
    self._missed_documents = missed_documents
    self._limits = limits
    self._scorer: bfcl_process.Scorer | None = None
    self._items: tuple[benchmark.Item, ...] | None = None
    # Category to the process that is ready to score it.
    self._prepared: dict[str, int] = {}
    self._episode_numbers = itertools.count()
    is_paper = set(bfcl_scores.PAPER) <= set(categories)
    self.headline = "paper/avg" if is_paper else "items"

  def items(self) -> Sequence[benchmark.Item]:
    """Returns all items that will be run, category by category."""
    if self._items is None:
      self._items = tuple(
        item for name in self._categories for item in self._load(name)
      )
    return self._items

  def converse(self, item: benchmark.Item) -> conversation.Conversation:
    """Starts the conversation of an item; its outcome is a JSON object."""
    if item.category in bfcl_scores.MULTI_TURN:
      return self._converse_turns(item)
    return self._converse_once(item)

  def score(
    self, outcomes: Mapping[str, Mapping[str, Any]]
  ) -> benchmark.Scores:
    """Scores outcomes by item id; an item without one counts as failed."""
    stopped: list[str] = []
    verdicts = {
      item.id: float(self._is_right(item, outcomes.get(item.id), stopped))
      for item in self.items()
    }
    by_category: dict[str, list[float]] = {
      name: [] for name in self._categories
    }
    for item in self.items():
      by_category[item.category].append(verdicts[item.id])
    table, notes = bfcl_scores.table(by_category)
    table["items"] = sum(verdicts.values()) / max(len(verdicts), 1)
    table |= bfcl_outcomes.abstention(self.items(), outcomes, verdicts)
    return benchmark.Scores(
      verdicts=verdicts,
      table=table,
      counts={name: len(scores) for name, scores in by_category.items()},
      notes=(*notes, *self._notes(outcomes, stopped)),
    )

  def provenance(self) -> Mapping[str, str]:
    """Returns what a score depends on beside the model."""
    environment = self._started().environment
    return {
      "bfcl_eval": environment.version,
      "bfcl_data_sha256": environment.data_sha256,
      "bfcl_python": environment.python_version,
      "bfcl_categories": " ".join(self._categories),
      "bfcl_max_items": str(self._max_items),
      "bfcl_tool_docs": self._form,
      "bfcl_tool_names": self._names,
      "bfcl_missed_documents": self._missed_documents,
      "bfcl_step_limit": f"count > {STEP_LIMIT}",
      "bfcl_limits": " ".join(
        f"{name}={value}" for name, value in self._limits._asdict().items()
      ),
      "bfcl_executor": "getattr on parsed calls",
    }

  def close(self) -> None:
    """Ends the worker; it starts again when needed."""
    if self._scorer is not None:
      self._scorer.close()

  def _started(self) -> bfcl_process.Scorer:
    if self._scorer is None:
      environment = bfcl_environment.ensure(self._folder)
      self._scorer = bfcl_process.Scorer(environment, limits=self._limits)
    return self._scorer

  def _load(self, category: str) -> Iterator[benchmark.Item]:
    """Yields the items of a category in the package's order."""
    request = {"do": "load", "category": category, "first": self._max_items}
    loaded = self._started().ask(request, secs=_LOAD_SECS)
    rows = zip(loaded["entries"], loaded["golds"], loaded["announcements"])
    for entry, gold, announcements in rows:
      row = {
        "entry": entry,
        "gold": gold,
        "announcements": announcements,
        "short_announcement": loaded["short_announcement"],
      }
      yield benchmark.Item(entry["id"], category, row)

  def _shown(
    self, documents: Sequence[Mapping[str, Any]]
  ) -> tuple[Mapping[str, Any], ...]:
    return bfcl_documents.shown(documents, form=self._form, names=self._names)

  def _converse_once(self, item: benchmark.Item) -> conversation.Conversation:
    entry, start = item.row["entry"], time.monotonic()
    tools = self._shown(entry["function"])
    answer = yield conversation.Ask(
      messages=tuple(entry["question"][0]), tools=tools
    )
    secs = time.monotonic() - start
    step = bfcl_outcomes.step_record(answer, tools, secs=secs)
    return {"turns": [[step]], "stopped": "", "secs": secs}

  def _converse_turns(self, item: benchmark.Item) -> conversation.Conversation:
    entry, start = item.row["entry"], time.monotonic()
    episode = bfcl_process.Episode(
      self._started(),
      name=f"{item.id}#{next(self._episode_numbers)}",
      entry=entry,
      is_long_context="long_context" in item.category,
    )
    messages: list[Mapping[str, Any]] = []
    tools = self._shown(entry["function"])
    turns: list[list[dict[str, Any]]] = []
    stopped = ""
    try:
      for turn, question in enumerate(entry["question"]):
        asked, added = self._opening(item, turn, question)
        messages += asked
        tools += added
        turns.append([])
        stopped = yield from self._converse_turn(
          episode, messages, tools, turns
        )
        if stopped:
          break
    finally:
      episode.close()
    return {
      "turns": turns,
      "stopped": stopped,
      "secs": time.monotonic() - start,
    }

  def _opening(
    self, item: benchmark.Item, turn: int, question: Sequence[Mapping[str, Any]]
  ) -> tuple[Sequence[Mapping[str, Any]], tuple[Mapping[str, Any], ...]]:
    """Returns what opens a turn: messages, and tools that come with it."""
    announcement = item.row["announcements"].get(str(turn))
    if announcement is None:
      return question, ()
    if self._missed_documents == "message":
      return ({"role": "user", "content": announcement},), ()
    added = item.row["entry"]["missed_function"][str(turn)]
    content = item.row["short_announcement"]
    return ({"role": "user", "content": content},), self._shown(added)

  def _converse_turn(
    self,
    episode: bfcl_process.Episode,
    messages: list[Mapping[str, Any]],
    tools: tuple[Mapping[str, Any], ...],
    turns: list[list[dict[str, Any]]],
  ) -> Generator[conversation.Ask, conversation.Answer, str]:
    """Asks until the model calls nothing; returns why all ends, or ""."""
    for step in itertools.count():
      start = time.monotonic()
      answer = yield conversation.Ask(
        tuple(messages), tools, turn=len(turns) - 1, step=step
      )
      messages.append(conversation.assistant_turn(answer))
      secs = time.monotonic() - start
      turns[-1].append(bfcl_outcomes.step_record(answer, tools, secs=secs))
      calls = bfcl_outcomes.read_calls(answer)
      if not calls:
        return ""
      try:
        texts = episode.perform(calls)
      except bfcl_process.Stopped as stop:
        return stop.reason
      messages += [
        conversation.tool_turn(text, call.name)
        for text, call in zip(texts, calls)
      ]
      if step + 1 > STEP_LIMIT:
        break
    return "steps"

  def _is_right(
    self,
    item: benchmark.Item,
    outcome: Mapping[str, Any] | None,
    stopped: list[str],
  ) -> bool:
    """Asks for a verdict; adds an item whose check was stopped to the list."""
    turns = bfcl_outcomes.turns_of(outcome)
    if turns is None:
      return False
    if "relevance" in item.category:
      return bool(turns[0][0]) == ("irrelevance" not in item.category)
    # A turn limit alone is judged by the number of turns, as in the package.
    if (outcome or {}).get("stopped", "") not in ("", "steps"):
      return False
    request: dict[str, Any] = {
      "do": "check",
      "id": item.id,
      "category": item.category,
    }
    if item.category in bfcl_scores.MULTI_TURN:
      request["turns"] = turns
    else:
      request["calls"] = turns[0][0]
      request["is_underscored"] = self._names == "underscored"
    try:
      self._prepare(item.category)
      return bool(self._started().ask(request)["is_valid"])
    except bfcl_process.Stopped as stop:
      stopped.append(f"{item.id} ({stop.reason})")
      return False

  def _prepare(self, category: str) -> None:
    """Has the worker load what it scores with, outside a verdict's limit."""
    generation = self._started().start()
    if self._prepared.get(category) != generation:
      request = {"do": "prepare", "category": category}
      self._started().ask(request, secs=_LOAD_SECS)
      self._prepared[category] = generation

  def _notes(
    self, outcomes: Mapping[str, Mapping[str, Any]], stopped: Sequence[str]
  ) -> Iterator[str]:
    """Yields what a reader has to know beside the averages."""
    if self._max_items:
      yield f"Only the first {self._max_items} items of each category were run."
    absent = sum(item.id not in outcomes for item in self.items())
    if absent:
      yield f"{absent} items have no outcome and count as failed."
    reasons = {item.id: bfcl_oracle.unpassable(item) for item in self.items()}
    for name, reason in reasons.items():
      if reason:
        yield f"{name} can be passed by no right answer ({reason}); it counts."
    if stopped:
      names = ", ".join(stopped)
      yield f"The check of these was stopped, so they failed: {names}."
    stops = [outcome.get("stopped") for outcome in outcomes.values() if outcome]
    for reason in ("steps", "time", "memory", "crash", "request"):
      if stops.count(reason):
        yield f"{stops.count(reason)} conversations were ended by: {reason}."
