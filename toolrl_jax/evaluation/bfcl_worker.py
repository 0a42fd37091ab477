"""Requests to replies, inside the environment that holds bfcl-eval.

A script, run by `bfcl_process`; it imports the standard library, bfcl_eval
and the two files of its folder that do the same. One JSON object a line comes
in, one goes out. It loads entries, keeps the executable back-ends of many
conversations, and asks the package's own checkers for verdicts; its
multi-turn checker is given the executor of `bfcl_execution`. It does not know
the model, nor who asks.
"""

import copy
import importlib
import json
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

# Behind all else, so that nothing here hides a module of the environment.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
execution = importlib.import_module("bfcl_execution")
guard = importlib.import_module("bfcl_guard")

_CHECKERS = "bfcl_eval.eval_checker"
_ANNOUNCEMENT = "DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION"
# Names of the stand-in's two models; "_" in a name would become "/".
_DOTTED, _UNDERSCORED = "dotted", "underscored"


class Package(NamedTuple):
  """What is used of bfcl_eval.

  Attributes:
    entries: Module `utils`.
    prompts: Module `constants.default_prompts`.
    languages: Enumeration `Language`.
    ast: Module of the single-turn checker.
    multi_turn: Module of the multi-turn checker.
    classes: Name to class of each executable back-end.
    stateless: Names of the classes without a scenario.
  """

  entries: Any
  prompts: Any
  languages: Any
  ast: Any
  multi_turn: Any
  classes: Mapping[str, type]
  stateless: Sequence[str]


def import_package() -> Package:
  """Imports the checkers, with a stand-in for the list of all vendors.

  The real module `constants.model_config` imports every vendor's library;
  the checkers read one flag of it.

  Returns:
    The modules and classes.
  """
  stand_in = types.ModuleType("bfcl_eval.constants.model_config")
  stand_in.MODEL_CONFIG_MAPPING = {  # type: ignore[attr-defined]
    _DOTTED: types.SimpleNamespace(underscore_to_dot=False),
    _UNDERSCORED: types.SimpleNamespace(underscore_to_dot=True),
  }
  sys.modules[stand_in.__name__] = stand_in
  load = importlib.import_module
  backends = load("bfcl_eval.constants.executable_backend_config")
  multi_turn = f"{_CHECKERS}.multi_turn_eval"
  return Package(
    entries=load("bfcl_eval.utils"),
    prompts=load("bfcl_eval.constants.default_prompts"),
    languages=load("bfcl_eval.constants.enums").Language,
    ast=load(f"{_CHECKERS}.ast_eval.ast_checker"),
    multi_turn=load(f"{multi_turn}.multi_turn_checker"),
    classes={
      name: getattr(load(module), name)
      for name, module in backends.CLASS_FILE_PATH_MAPPING.items()
      # The others need a search service or embedding models.
      if not name.startswith(("Memory", "WebSearch"))
    },
    stateless=tuple(backends.STATELESS_CLASSES),
  )


class Worker:
  """The loaded entries and the open conversations of one process."""

  def __init__(self, package: Package):
    """Prepares an empty worker.

    Args:
      package: Modules of bfcl_eval; its multi-turn checker is given our
        executor.
    """
    self._package = package
    self._scored: dict[str, dict[str, tuple[Any, Any]]] = {}
    self._episodes: dict[str, list[Any]] = {}
    # Instances of the check in progress, by the name the checker gives.
    self._checked: dict[str, dict[str, Any]] = {}
    self._num_checks = 0
    package.multi_turn.execute_multi_turn_func_call = self._execute

  def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
    """Answers one request.

    Args:
      request: `do` names the kind; the rest are its arguments.

    Returns:
      The reply.

    Raises:
      ValueError: The kind is unknown.
    """
    kinds = {
      "load": self._load,
      "open": self._open,
      "perform": self._perform,
      "snapshot": self._snapshot,
      "close": self._close,
      "prepare": self._prepare,
      "check": self._check,
    }
    kind = request["do"]
    if kind not in kinds:
      raise ValueError(f"request must be one of {sorted(kinds)}, got {kind!r}.")
    return kinds[kind](request)

  def _load(self, request: Mapping[str, Any]) -> dict[str, Any]:
    """Loads a category as generation sees it: with the language hints.

    Java and JavaScript entries also get their documents without the hints,
    which hide the types.
    """
    entries = self._package.entries.load_dataset_entry(request["category"])
    golds = self._golds(request["category"], len(entries))
    if request["first"]:
      entries = entries[: request["first"]]
    prompts = self._package.prompts
    announce = getattr(prompts, f"{_ANNOUNCEMENT}_PROMPTING")
    if "simple_java" in request["category"]:  # javascript too
      plain = self._package.entries.load_dataset_entry(
        request["category"], include_language_specific_hint=False
      )
      for entry, unhinted in zip(entries, plain):
        entry["plain_function"] = unhinted["function"]
    return {
      "entries": entries,
      "golds": golds,
      "announcements": [
        {
          turn: announce.format(functions=documents)
          for turn, documents in entry.get("missed_function", {}).items()
        }
        for entry in entries
      ],
      "short_announcement": getattr(prompts, f"{_ANNOUNCEMENT}_FC"),
    }

  def _golds(self, category: str, num_entries: int) -> list[Any]:
    """Golds in the order of the entries; their ids may differ from these."""
    if "relevance" in category:
      return [None] * num_entries
    golds = self._package.entries.load_ground_truth_entry(category)
    return [gold["ground_truth"] for gold in golds]

  def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
    self._episodes[request["episode"]] = list(
      self._build(
        request["classes"], request["config"], request["is_long_context"]
      ).values()
    )
    return {}

  def _perform(self, request: Mapping[str, Any]) -> dict[str, Any]:
    instances = self._episodes[request["episode"]]
    calls = [execution.model_call(call) for call in request["calls"]]
    return {"texts": execution.perform(instances, calls)}

  def _snapshot(self, request: Mapping[str, Any]) -> dict[str, Any]:
    """Shows the public state of a conversation's back-ends, for tests."""
    return {
      "state": {
        type(instance).__name__: {
          name: str(value)
          for name, value in vars(instance).items()
          if not name.startswith("_")
        }
        for instance in self._episodes[request["episode"]]
      }
    }

  def _close(self, request: Mapping[str, Any]) -> dict[str, Any]:
    self._episodes.pop(request["episode"], None)
    return {}

  def _prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
    """Loads a category as scoring sees it: without the hints."""
    category = request["category"]
    entries = self._package.entries.load_dataset_entry(
      category, include_language_specific_hint=False
    )
    golds = self._golds(category, len(entries))
    self._scored[category] = {
      entry["id"]: (entry, gold) for entry, gold in zip(entries, golds)
    }
    return {}

  def _check(self, request: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the verdict on the calls of one entry."""
    category = request["category"]
    entry, gold = self._scored[category][request["id"]]
    try:
      if "multi_turn" in category:
        verdict = self._check_turns(entry, gold, request["turns"])
      else:
        verdict = self._check_calls(entry, gold, request)
    except MemoryError:
      raise
    except Exception as error:  # noqa: BLE001  the answer broke the checker
      kind = type(error).__name__
      return {"is_valid": False, "reason": f"checker:{kind}: {error}"[:300]}
    return {
      "is_valid": bool(verdict["valid"]),
      "reason": str(verdict.get("error_type", "")),
    }

  def _check_calls(
    self, entry: Mapping[str, Any], gold: Any, request: Mapping[str, Any]
  ) -> dict[str, Any]:
    name = request["id"]
    language = self._package.languages.PYTHON
    if "javascript" in name:
      language = self._package.languages.JAVASCRIPT
    elif "java" in name:
      language = self._package.languages.JAVA
    return self._package.ast.ast_checker(
      entry["function"],
      [{call["name"]: call["arguments"]} for call in request["calls"]],
      gold,
      language,
      request["category"],
      _UNDERSCORED if request["is_underscored"] else _DOTTED,
    )

  def _check_turns(
    self, entry: Mapping[str, Any], gold: Any, turns: Sequence[Any]
  ) -> dict[str, Any]:
    if len(turns) != len(gold):
      return {"valid": False, "error_type": "multi_turn:force_terminated"}
    # Steps without calls are left out, as the package's runner does.
    decoded = [
      [[execution.model_call(call) for call in step] for step in turn if step]
      for turn in turns
    ]
    self._num_checks += 1
    name = f"check{self._num_checks}"
    try:
      return self._package.multi_turn.multi_turn_checker(
        decoded, gold, dict(entry), request_category(entry["id"]), name
      )
    finally:
      self._checked.clear()

  def _execute(
    self,
    func_call_list: Sequence[Any],
    initial_config: Mapping[str, Any],
    involved_classes: Sequence[str],
    model_name: str,
    test_entry_id: str,
    long_context: bool = False,
    is_evaL_run: bool = False,
  ) -> tuple[list[str], dict[str, Any]]:
    """Stands in for the package's executor; same arguments, no `eval`."""
    if model_name not in self._checked:
      self._checked[model_name] = self._build(
        involved_classes, initial_config, long_context
      )
    instances = self._checked[model_name]
    calls = [
      execution.parse_gold_call(call) if isinstance(call, str) else call
      for call in func_call_list
    ]
    texts = execution.perform(instances.values(), calls)
    return texts, instances

  def _build(
    self,
    class_names: Sequence[str],
    config: Mapping[str, Any],
    is_long_context: bool,
  ) -> dict[str, Any]:
    """Makes fresh back-ends in their initial state."""
    instances = {}
    for name in class_names:
      instance: Any = self._package.classes[name]()
      if name not in self._package.stateless:
        scenario = copy.deepcopy(config.get(name, {}))
        instance._load_scenario(scenario, long_context=is_long_context)
      instances[name] = instance
    return instances


def request_category(entry_id: str) -> str:
  """Returns the category in an entry's id, as the package reads it."""
  return entry_id.rsplit("_", 1)[0]


def _reply_to(worker: Worker, line: str) -> str:
  try:
    request = json.loads(line)
  except (ValueError, RecursionError):
    return '{"failed": "request"}'
  return json.dumps(worker.answer(request))


def serve(worker: Worker, requests: TextIO, replies: TextIO, secs: int) -> None:
  """Answers requests until there are no more.

  Args:
    worker: Who answers.
    requests: One JSON object a line.
    replies: The same.
    secs: Processor seconds of one request; the process ends itself after
      them, for the case that nobody is there to end it.
  """
  # The first line only says that the imports went well.
  replies.write("{}\n")
  replies.flush()
  for line in requests:
    guard.allow_processor(secs)
    try:
      reply = _reply_to(worker, line)
    except MemoryError:
      reply = '{"failed": "memory"}'
    except Exception as error:  # noqa: BLE001  the asker decides
      text = f"{type(error).__name__}: {error}"[:300]
      reply = json.dumps({"failed": text})
    replies.write(reply + "\n")
    replies.flush()


def main(memory_gib: float, secs: int) -> None:
  """Prepares the process and serves.

  Args:
    memory_gib: Most address space, in GiB.
    secs: Processor seconds of one request.
  """
  # The package prints; replies have a channel of their own.
  replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
  os.dup2(2, 1)
  guard.limit_memory(memory_gib)
  worker = Worker(import_package())
  guard.refuse_dangers(os.environ["BFCL_PROJECT_ROOT"])
  serve(worker, sys.stdin, replies, secs)


if __name__ == "__main__":
  main(float(sys.argv[1]), int(sys.argv[2]))
