"""ACEBench, English: 17 categories, 1,023 items.

From ACEBench's data (`data_en/` with `possible_answer/`) to conversations, and
from their outcomes to scores (`acebench_scores`). A model answers with
`[Api(key='value')]` or with `<tool_call>` blocks; which of the two was read is
in the outcome. Models and templates are not known here.
"""

import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax.evaluation import (
  acebench_calls,
  acebench_prompts,
  acebench_rollout,
  acebench_scores,
  acebench_worlds,
  benchmark,
  conversation,
  user_simulator,
)

_MULTI_STEP, _MULTI_TURN = acebench_scores.AGENT
_RULES = (
  "acebench-1: fixed = no white-space strip in multi-turn answers; "
  "_upstream = with it, rounded at every stage; dialogues all or nothing; "
  "agent = end states, unpaired classes not compared"
)


class AceBench:
  """The benchmark.

  Args:
    folder: Folder that holds `data_en/`.
    categories: Those that are run; empty is all.
    max_items: Takes the first items of each category; a dialogue of several
      prompts is taken whole. 0 takes all.
    user: Plays the user of the 30 agent_multi_turn items; without one they are
      not run, and the overall figure has another name.

  Attributes:
    name: "acebench".
    headline: "overall", "overall_without_agent_multi_turn", or
      "overall_of_a_part" with categories or a limit.

  Raises:
    ValueError: A file is missing or is not ACEBench's.
  """

  def __init__(
    self,
    folder: str | pathlib.Path,
    *,
    categories: Sequence[str] = (),
    max_items: int = 0,
    user: user_simulator.UserSimulator | None = None,
  ):
    self.name = "acebench"
    self.headline = (
      acebench_scores.OVERALL if user else acebench_scores.OVERALL_WITHOUT_USER
    )
    if categories or max_items:
      self.headline = acebench_scores.OVERALL_OF_PART
    self._user = user
    self._sha256 = hashlib.sha256()
    path = pathlib.Path(folder) / "data_en"
    items = [
      benchmark.Item(row["id"], category, row)
      for category in acebench_scores.CATEGORIES
      for row in self._read_category(path, category)
    ]
    self._memory = acebench_worlds.read_memory(
      [
        item.row["ground_truth"]
        for item in items
        if item.category in acebench_scores.AGENT
      ]
    )
    _check_categories(categories)
    self._items = [
      item
      for item in _first_items(items, max_items)
      if (user or item.category != _MULTI_TURN)
      and (not categories or item.category in categories)
    ]

  def items(self) -> Sequence[benchmark.Item]:
    """Returns all items that will be run, category by category."""
    return self._items

  def converse(self, item: benchmark.Item) -> conversation.Conversation:
    """Starts the conversation of an item; its outcome is a JSON object."""
    if item.category not in acebench_scores.AGENT:
      return _ask_once(item)
    world = acebench_worlds.build(
      item.row["involved_classes"], item.row["initial_config"], self._memory
    )
    if item.category == _MULTI_STEP:
      return acebench_rollout.multi_step(item.row, world)
    if self._user is None:
      raise ValueError(
        f"{item.id} needs a user simulator, got none; give one, or run the "
        "items that items() lists."
      )
    return acebench_rollout.multi_turn(item.row, world, self._user)

  def score(
    self, outcomes: Mapping[str, Mapping[str, Any]]
  ) -> benchmark.Scores:
    """Scores outcomes by item id; an item without one counts as failed."""
    return acebench_scores.score(self._items, outcomes, headline=self.headline)

  def provenance(self) -> Mapping[str, str]:
    """Returns what a score depends on beside the model."""
    return {
      "data_sha256": self._sha256.hexdigest(),
      "rules": _RULES,
      "prompts_sha256": acebench_prompts.digest(),
      "user": self._user.name if self._user else "none",
      "user_rules_sha256": user_simulator.digest() if self._user else "none",
    }

  def _read_category(
    self, path: pathlib.Path, category: str
  ) -> list[dict[str, Any]]:
    """Reads a category's items together with their gold."""
    name = f"data_{category}.json"
    rows = self._read_lines(path / name, ("question", "function"))
    golds = self._read_lines(path / "possible_answer" / name, ("ground_truth",))
    if [row["id"] for row in rows] != [gold["id"] for gold in golds]:
      raise ValueError(
        f"{name} and possible_answer/{name} must hold the same ids in the same "
        f"order, got {len(rows)} and {len(golds)} rows that differ; use "
        "ACEBench's English data unchanged."
      )
    return [row | gold for row, gold in zip(rows, golds)]

  def _read_lines(
    self, path: pathlib.Path, keys: Sequence[str]
  ) -> list[dict[str, Any]]:
    """Reads one JSON object a line, and adds the file to the hash."""
    remedy = "give the folder that holds ACEBench's data_en/."
    try:
      content = path.read_bytes()
      lines = content.decode("utf-8").split("\n")
      rows = [json.loads(line) for line in lines if line.strip()]
    except OSError as error:
      raise ValueError(
        f"{path} must be a readable file, got {type(error).__name__}; {remedy}"
      ) from error
    except ValueError as error:
      raise ValueError(
        f"{path} must hold one JSON object a line, got {error}; {remedy}"
      ) from error
    for row in rows:
      if not isinstance(row, dict) or not {"id", *keys} <= row.keys():
        raise ValueError(
          f"each line of {path} must hold id, {', '.join(keys)}, got "
          f"{str(row)[:60]!r}; {remedy}"
        )
    self._sha256.update(path.name.encode() + b"\0" + content + b"\0")
    return rows


def _check_categories(categories: Sequence[str]) -> None:
  unknown = set(categories) - set(acebench_scores.CATEGORIES)
  if unknown:
    raise ValueError(
      "categories must be some of ACEBench's "
      f"{', '.join(acebench_scores.CATEGORIES)}, got {sorted(unknown)}."
    )


def _first_items(
  items: Sequence[benchmark.Item], max_items: int
) -> list[benchmark.Item]:
  """Returns the first items of each category, whole dialogues."""
  taken: dict[str, set[str]] = {}
  chosen = []
  for item in items:
    units = taken.setdefault(item.category, set())
    unit = acebench_scores.dialogue(item)
    if not max_items or unit in units or len(units) < max_items:
      units.add(unit)
      chosen.append(item)
  return chosen


def _ask_once(item: benchmark.Item) -> conversation.Conversation:
  """Asks for one answer and records it in the form that it has."""
  messages = acebench_prompts.question(item.row, item.category)
  answer = yield conversation.Ask(messages=tuple(messages))
  outcome: dict[str, Any] = {"text": answer.spoken, "form": "text"}
  if acebench_scores.read(answer.spoken, item.category) is not None:
    outcome["form"] = "brackets"
  elif answer.parsed.calls:
    outcome["form"] = "tool_call"
    outcome["calls"] = [call._asdict() for call in answer.parsed.calls]
  return acebench_calls.as_json(outcome)
