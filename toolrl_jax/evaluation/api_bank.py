"""API-Bank: one call for the last request of a dialogue, at three levels.

From the three files of processed items to conversations of one answer, and
from answers to the share of right calls. The prompts came rendered in the
ToolRL layout and are kept byte for byte; messages and tools are read from them
for the other templates. No tool is ever run.

Scoring follows ToolRL's evaluation of API-Bank (github.com/qiancheng0/ToolRL,
benchmarks/API-Bank, commit 8cee13e), written anew:

* soft, its headline: any predicted object equals the gold in name and
  parameters; an object that lacks either key is compared as bare parameters.
* hard, inactive there: exactly one object, and that with both keys.
* strict, ours: as soft, but an object that lacks a key never counts.
* parsed, ours: any call equals the gold as our own parser reads the answer,
  which in the ToolRL layout is the first block, all lines or none.

Objects are the JSON lines behind the last call tag, lines that are no JSON
left out. Departure: an item is answered once; upstream runs the failed items
of a scored run again, so that its repeated runs are best-of-k.

See "API-Bank" (arXiv:2304.08244) and "ToolRL" (arXiv:2504.13958).
"""

import ast
import hashlib
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.data import toolrl_layout
from toolrl_jax.evaluation import benchmark, conversation
from toolrl_jax.parsing import call_objects, tool_calls

METRICS = ("soft", "hard", "strict", "parsed")

# Files of ToolRL commit 8cee13e.
_SHA256 = {
  1: "51ebc8209ba467ce4cc1854d23b2cfd89759f3c45ff2aaf90de4f003162ea98f",
  2: "75c8097b3127d1f7aec13edb6b7a8428565d753b107f2b1e20daa3d0cfda51db",
  3: "57228427976f05725d9cf2f0ab03ac16487efaed67d5a929b28e974b9b27ef05",
}
_LEVEL_3_ENTRY = re.compile(r"^(\d+)\. (?!Name: )([^:\n]+): ", re.MULTILINE)
_PARAMETERS = re.compile(r"^Parameters: (.*)$", re.MULTILINE)
# What reading a file that is no file of items can raise.
_BROKEN = (
  KeyError,
  IndexError,
  TypeError,
  ValueError,
  SyntaxError,
  RecursionError,
)
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class ApiBank:
  """The 597 items of API-Bank as ToolRL processed them.

  Attributes:
    name: "api_bank".
    headline: "overall": right items over all items, soft rule.
  """

  name = "api_bank"
  headline = "overall"

  def __init__(
    self,
    path: str,
    *,
    style: tool_calls.Style = "toolrl",
    categories: Sequence[str] = (),
    max_items: int = 0,
  ):
    """Reads the files.

    Args:
      path: Folder of `level-{1,2,3}-api_processed.json`.
      style: Layout of calls that the run asks for. Only "toolrl" has objects
        as upstream reads them; the others are scored on the parsed calls.
      categories: Levels that are run; empty is all.
      max_items: Takes the first items of each level; 0 takes all.

    Raises:
      ValueError: A file is missing or not in the form of the processed items.
    """
    self._style = style
    self._sha256: dict[int, str] = {}
    self._items: list[benchmark.Item] = []
    for level in _SHA256:
      rows = self._read(pathlib.Path(path), level)
      self._items += rows[: max_items or None]
    names = {item.category for item in self._items}
    if set(categories) - names:
      raise ValueError(
        f"categories must be some of API-Bank's {', '.join(sorted(names))}, got"
        f" {sorted(set(categories) - names)}."
      )
    if categories:
      self._items = [it for it in self._items if it.category in categories]

  def _read(self, folder: pathlib.Path, level: int) -> list[benchmark.Item]:
    file = folder / f"level-{level}-api_processed.json"
    try:
      content = file.read_bytes()
    except OSError as error:
      raise ValueError(
        f"API-Bank needs the file {file.name}, not readable in {str(folder)!r};"
        " give the folder of the three level files."
      ) from error
    self._sha256[level] = hashlib.sha256(content).hexdigest()
    try:
      rows = json.loads(content)
      return [_item(level, n, row) for n, row in enumerate(rows)]
    except _BROKEN as error:
      raise ValueError(
        f"{file.name} must be a JSON list of system, user and answer, got"
        f" {' '.join(str(error).split())!r}; fetch the file again."
      ) from error

  def items(self) -> Sequence[benchmark.Item]:
    """Returns the items in the order of the files."""
    return tuple(self._items)

  def converse(self, item: benchmark.Item) -> conversation.Conversation:
    """Asks once; the outcome holds the answer's text and parsed calls."""
    answer = yield conversation.Ask(
      messages=item.row["messages"],
      tools=item.row["tools"],
      verbatim=item.row["verbatim"],
    )
    return {
      "text": answer.text,
      "calls": _call_documents(answer.parsed),
      "is_cut": answer.is_cut,
    }

  def score(
    self, outcomes: Mapping[str, Mapping[str, Any]]
  ) -> benchmark.Scores:
    """Scores outcomes under all four rules; see the module."""
    verdicts = {
      item.id: self._judge(item, outcomes.get(item.id)) for item in self._items
    }
    members: dict[str, list[str]] = {"overall": list(verdicts)}
    for item in self._items:
      members.setdefault(item.category, []).append(item.id)
    table = {}
    for metric in METRICS:
      suffix = "" if metric == "soft" else f"_{metric}"
      for group, ids in members.items():
        right = sum(verdicts[item_id][metric] for item_id in ids)
        table[group + suffix] = right / len(ids) if ids else 0.0
    return benchmark.Scores(
      verdicts={key: float(rules["soft"]) for key, rules in verdicts.items()},
      table=table,
      counts={
        key: len(ids) for key, ids in members.items() if key != "overall"
      },
      notes=self._notes(),
    )

  def _judge(self, item: benchmark.Item, outcome: Any) -> dict[str, bool]:
    if not isinstance(outcome, Mapping):
      return dict.fromkeys(METRICS, False)
    calls = outcome.get("calls")
    calls = calls if isinstance(calls, list | tuple) else []
    if self._style == "toolrl":
      objects = read_objects(str(outcome.get("text", "")))
    else:
      objects = list(calls)
    rules = judge(objects, item.row["gold"])
    rules["parsed"] = judge(calls, item.row["gold"])["strict"]
    return rules

  def _notes(self) -> tuple[str, ...]:
    notes = []
    hidden = [item.id for item in self._items if not item.row["is_listed"]]
    if hidden:
      notes.append(
        f"{len(hidden)} items name a tool that their prompt does not list:"
        f" {', '.join(hidden)}."
      )
    other = [
      level for level, sha in _SHA256.items() if self._sha256[level] != sha
    ]
    if other:
      notes.append(
        f"The files of level {', '.join(map(str, other))} are not those of"
        " ToolRL commit 8cee13e."
      )
    if self._style != "toolrl":
      notes.append(
        f"Calls were asked for in the layout {self._style}, so soft, hard and"
        " strict are taken over the parsed calls."
      )
    return tuple(notes)

  def provenance(self) -> Mapping[str, str]:
    """Returns the hash of each file and the name of the headline rule."""
    hashes = {f"level_{level}": sha for level, sha in self._sha256.items()}
    return hashes | {"rule": "soft match of ToolRL commit 8cee13e"}


def read_objects(text: str) -> list[Any]:
  """Reads the objects that upstream takes from an answer.

  Upstream stops at the first object that its comparison cannot handle, such
  as a number; so does this.

  Args:
    text: The answer. Without a call tag all of its lines are tried.

  Returns:
    JSON values in order; a string that holds JSON stands for that.
  """
  block = text.rpartition(_OPEN)[2].partition(_CLOSE)[0]
  objects = []
  for line in block.split("\n"):
    value = call_objects.load(line)
    if value is types.ParseStatus.TOO_DEEP:
      # It was an object to upstream, and it equals no gold.
      value = {"name": "", "parameters": None}
    if not isinstance(value, types.ParseStatus):
      objects.append(value)
  return objects


def judge(objects: Sequence[Any], gold: Mapping[str, Any]) -> dict[str, bool]:
  """Compares predicted objects with the gold under soft, hard and strict.

  Args:
    objects: Predicted JSON values in order.
    gold: `name` and `parameters` of the right call.

  Returns:
    Rule to whether it is met.
  """
  is_soft = False
  for value in objects:
    value = call_objects.load(value) if isinstance(value, str) else value
    try:
      is_whole = "name" in value and "parameters" in value
      call = value if is_whole else {**gold, "parameters": value}
      is_soft = _equals(call, gold)
    except TypeError:
      break
    if is_soft:
      break
  whole = [value for value in objects if _is_whole(value)]
  return {
    "soft": is_soft,
    "hard": len(objects) == 1 == len(whole) and _equals(whole[0], gold),
    "strict": any(_equals(value, gold) for value in whole),
  }


def _is_whole(value: Any) -> bool:
  return isinstance(value, dict) and "name" in value and "parameters" in value


def _equals(call: Mapping[str, Any], gold: Mapping[str, Any]) -> bool:
  return bool(
    call["name"] == gold["name"] and call["parameters"] == gold["parameters"]
  )


def _call_documents(parsed: types.ParsedCompletion) -> list[dict[str, Any]]:
  """Returns parsed calls as JSON; one without arguments lacks that key."""
  documents = []
  for call, shape in zip(parsed.calls, parsed.call_shapes, strict=True):
    document: dict[str, Any] = {"name": call.name}
    if shape != types.CallShape.NO_ARGUMENTS:
      document["parameters"] = dict(call.arguments)
    documents.append(document)
  return documents


def _item(level: int, number: int, row: Mapping[str, Any]) -> benchmark.Item:
  """Reads one row; level 2 has its one call bare, the others in a list."""
  answer = row["answer"]
  gold = answer[0] if isinstance(answer, list) else answer
  gold = {"name": str(gold["name"]), "parameters": dict(gold["parameters"])}
  messages, tools = toolrl_layout.parse_rows(
    _in_layout_of_tools(row["system"]), _in_layout_of_dialogue(row["user"])
  )
  verbatim = (
    {"role": "system", "content": row["system"]},
    {"role": "user", "content": row["user"]},
  )
  fields = {
    "messages": messages,
    "tools": tools,
    "verbatim": verbatim,
    "gold": gold,
    "is_listed": gold["name"] in [tool["name"] for tool in tools],
  }
  return benchmark.Item(f"level_{level}_{number}", f"level_{level}", fields)


def _in_layout_of_tools(system: str) -> str:
  """Rewrites the list of tools into the form that our layout reads.

  The files write parameters as Python literals, and level 3 writes
  "1. tool: description" for "1. Name: tool" and "Description: description".
  """
  head, heading, rest = system.partition(toolrl_layout.TOOLS_HEADING)
  listing, end_heading, tail = rest.partition(toolrl_layout.STEPS_HEADING)
  listing = _LEVEL_3_ENTRY.sub(r"\1. Name: \2\nDescription: ", listing)
  listing = _PARAMETERS.sub(
    lambda line: "Parameters: " + json.dumps(ast.literal_eval(line[1])),
    listing,
  )
  return head + heading + listing + end_heading + tail


def _in_layout_of_dialogue(user: str) -> str:
  """Rewrites the dialogue into the form that our layout reads.

  Level 2 has one star too many in its heading, and answers in two parts.
  """
  if user.startswith("*" + toolrl_layout.DIALOGUE_HEADING):
    user = user[1:]
  return re.sub(r" ?</response>\n<response> ?", "\n", user)
