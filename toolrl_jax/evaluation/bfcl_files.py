"""Outcomes to and from the result files that `bfcl evaluate` reads.

The form is that of the package's Qwen handler with native calls
(`QwenFCHandler`, bfcl-eval 2026.3.23): one JSON object a line in

    <folder>/<registry name>/<group>/BFCL_v4_<category>_result.json

whose `result` is the text after the thinking; for multi-turn items the texts
of each step of each turn. Calls are written anew from what was read, whatever
the layout of the run, so that the package decodes the same calls as we did. An
item without an outcome has no line: evaluate such files with `--partial-eval`,
which leaves the item out instead of failing it.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.evaluation import (
  benchmark,
  bfcl_outcomes,
  bfcl_scores,
  conversation,
)
from toolrl_jax.parsing import tool_calls

_TAG = "<tool_call>"


def path(
  folder: pathlib.Path, registry_name: str, category: str
) -> pathlib.Path:
  """Returns where the package looks for the results of a category.

  Args:
    folder: The package's result folder.
    registry_name: Name of the model in the package's list.
    category: Category.

  Returns:
    The path of the file.

  Raises:
    ValueError: The name has a "_", which the package would read as "/".
  """
  if "_" in registry_name or not registry_name:
    raise ValueError(
      "a registry name must not be empty nor hold '_', which bfcl-eval reads"
      f" as '/', got {registry_name!r}; use '-' instead."
    )
  if category in bfcl_scores.MULTI_TURN:
    group = "multi_turn"
  else:
    group = "live" if category.startswith("live") else "non_live"
  name = f"BFCL_v4_{category}_result.json"
  return folder / registry_name.replace("/", "_") / group / name


def write(
  folder: pathlib.Path,
  registry_name: str,
  items: Sequence[benchmark.Item],
  outcomes: Mapping[str, Any],
) -> list[pathlib.Path]:
  """Writes one file a category.

  Args:
    folder: The package's result folder.
    registry_name: Name of the model in the package's list.
    items: Items that were run.
    outcomes: Outcomes by item id.

  Returns:
    The files; those that were there are replaced.
  """
  lines: dict[str, list[str]] = {}
  for item in items:
    turns = bfcl_outcomes.turns_of(outcomes.get(item.id))
    if turns is not None:
      row = _row(item, outcomes[item.id], turns)
      lines.setdefault(item.category, []).append(json.dumps(row))
  files = []
  for category, rows in lines.items():
    file = path(folder, registry_name, category)
    file.parent.mkdir(parents=True, exist_ok=True)
    # The package opens files without naming UTF-8; escapes are safe.
    file.write_text("\n".join(rows) + "\n", encoding="ascii")
    files.append(file)
  return files


def read(
  folder: pathlib.Path, registry_name: str, categories: Sequence[str]
) -> dict[str, dict[str, Any]]:
  """Reads result files, ours or the package's, back to outcomes.

  Args:
    folder: The package's result folder.
    registry_name: Name of the model in the package's list.
    categories: Categories to read.

  Returns:
    Outcomes by item id.

  Raises:
    FileNotFoundError: A category has no file.
    ValueError: A line is broken.
  """
  outcomes = {}
  for category in categories:
    file = path(folder, registry_name, category)
    if not file.is_file():
      raise FileNotFoundError(
        f"every category to read must have a file, got none at {file}; leave"
        f" {category} out or generate it."
      )
    for number, line in enumerate(_lines(file), start=1):
      try:
        row = json.loads(line)
        outcomes[str(row["id"])] = _outcome(row)
      except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
          "a result line must be a JSON object with id and result, got"
          f" {line[:60]!r} at {file}:{number} ({type(error).__name__}); delete"
          " the line or generate the file again."
        ) from error
  return outcomes


def _lines(file: pathlib.Path) -> Iterator[str]:
  """Yields lines; bytes that are no UTF-8 break only the line they are in."""
  with file.open(encoding="utf-8", errors="replace") as text:
    yield from (line for line in text if line.strip())


def _row(
  item: benchmark.Item, outcome: Mapping[str, Any], turns: bfcl_outcomes.Turns
) -> dict[str, Any]:
  """Writes one line's object."""
  texts = [
    [_text(record, calls) for record, calls in zip(records, steps)]
    for records, steps in zip(outcome["turns"], turns)
  ]
  columns = {
    "input_token_count": _numbers(outcome, "num_prompt_tokens"),
    "output_token_count": _numbers(outcome, "num_tokens"),
    "latency": _numbers(outcome, "secs"),
  }
  if item.category not in bfcl_scores.MULTI_TURN:
    columns = {name: values[0][0] for name, values in columns.items()}
    return {"id": item.id, "result": texts[0][0], **columns}
  stopped = str(outcome.get("stopped") or "")
  if stopped not in ("", "steps"):
    # No list: the package fails such an entry, as we do.
    error = f"Error during inference: stopped by {stopped}"
    return {"id": item.id, "result": error, **columns}
  return {"id": item.id, "result": texts, **columns}


def _text(record: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> str:
  """Writes a step so that the package decodes exactly these calls."""
  if not calls:
    # What we could not read must not be read there.
    return str(record.get("text") or "").replace(_TAG, f"{_TAG[:-1]} unread>")
  gold = types.Gold(
    calls=tuple(
      types.ToolCall(call["name"], call["arguments"]) for call in calls
    )
  )
  return tool_calls.render_gold(gold, style="native", think="")


def _numbers(outcome: Mapping[str, Any], key: str) -> list[list[Any]]:
  return [
    [record.get(key, 0) for record in records] for records in outcome["turns"]
  ]


def _outcome(row: Mapping[str, Any]) -> dict[str, Any]:
  """Reads one line's object."""
  written = row["result"]
  texts = [[written]] if isinstance(written, str) else written
  if not all(isinstance(text, str) for turn in texts for text in turn):
    raise ValueError("result must be a text, or lists of lists of texts")
  is_single = isinstance(written, str) and "multi_turn" not in row["id"]
  return {
    "turns": [[_step(text) for text in turn] for turn in texts],
    "stopped": "" if is_single or not isinstance(written, str) else "crash",
  }


def _step(text: str) -> dict[str, Any]:
  parsed = tool_calls.parse_completion(text, style="native")
  answer = conversation.Answer(text=text, parsed=parsed)
  record = bfcl_outcomes.step_record(answer, ())
  # Which tools were shown is not in the file.
  del record["num_unknown_tools"]
  return record
