"""Reads training and evaluation rows.

From a path to `types.Example` records with their target texts. Forms:

    toolrl_parquet  ToolRL's rlla table: `prompt` holds [system, user],
                    `reward_model.ground_truth` the right answer.
    toolrl_json     ToolRL's raw list of {instruction, input, output}.
    jsonl           Our own format, see `data/jsonl.py`.
    synthetic:N     N generated examples, see `data/synthetic.py`.

A row that cannot be used is listed with its reason when the file is read, so
that nothing fails later in a run. This module knows neither tokens nor
templates.
"""

import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow
import pyarrow.parquet

from toolrl_jax import types
from toolrl_jax.data import jsonl, synthetic, toolrl_layout
from toolrl_jax.parsing import tool_calls

Format = Literal["auto", "toolrl_parquet", "toolrl_json", "jsonl"]
BadRows = Literal["drop", "error"]

_SYNTHETIC = "synthetic:"
# More would take hours, and fill the memory.
_MOST_SYNTHETIC = 1_000_000
# All rows of a batch are padded to its largest gold, so one absurd row would
# slow every step or exhaust the memory.
_MAX_CALLS = 64
_MAX_ARGUMENTS = 256


class Loaded(NamedTuple):
  """The rows of one path.

  Attributes:
    examples: Usable rows in the order of the file.
    targets: Text of the right answer of each example, with its thinking; what
      SFT learns.
    rejected: Rows left out.
    unparsed: Usable rows whose dialogue or tools could not be read from the
      ToolRL layout; only the template `toolrl` can show them.
  """

  examples: list[types.Example]
  targets: list[str]
  rejected: list[types.Rejected]
  unparsed: list[types.Rejected]


def load(
  path: str,
  *,
  format: Format = "auto",
  bad_rows: BadRows = "drop",
  seed: int = 0,
  split: synthetic.Split = "train",
  style: tool_calls.Style = "toolrl",
) -> Loaded:
  """Reads all rows of a path.

  Args:
    path: A file, or "synthetic:N".
    format: Form of the file; "auto" looks at suffix and content.
    bad_rows: "drop" lists rows that cannot be used, "error" refuses them.
    seed: Of the generator of synthetic examples.
    split: Which synthetic examples: "train", "eval" or "sft"; the targets of
      "sft" are the generator's demonstrations, some of them faulty.
    style: Form of the targets that are made from gold: "toolrl", "native" or
      "n1".
      Rows that came with a text in the ToolRL form keep it under "toolrl".

  Returns:
    The rows.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: The file is not in a known form, no row is usable, or a row is
      bad under "error".
  """
  if path.startswith(_SYNTHETIC):
    return _load_synthetic(path, seed=seed, split=split, style=style)
  file = pathlib.Path(path)
  if not file.is_file():
    raise FileNotFoundError(
      f"data path must be a file or synthetic:N, there is no file {path!r}; "
      "set config.data.train_path and config.data.eval_path."
    )
  if format == "auto":
    format = _detect(file)
  loaded = Loaded([], [], [], [])
  if format == "jsonl":
    _add_jsonl(loaded, _text(file).split("\n"), file.stem, style)
  elif format == "toolrl_json":
    _add_toolrl(loaded, _raw_rows(file), file.stem, style)
  else:
    _add_toolrl(loaded, _parquet_rows(file), file.stem, style)
  return _check(loaded, path, bad_rows)


def _load_synthetic(
  path: str, *, seed: int, split: synthetic.Split, style: tool_calls.Style
) -> Loaded:
  number = path.removeprefix(_SYNTHETIC)
  if not (number.isdecimal() and 1 <= int(number[:20]) <= _MOST_SYNTHETIC):
    raise ValueError(
      "a synthetic path must be synthetic:N with N in "
      f"[1, {_MOST_SYNTHETIC}], got {path[:60]!r}."
    )
  examples = synthetic.generate(int(number), split=split, seed=seed)
  if split == "sft":
    if style != "toolrl":
      raise ValueError(
        f'demonstrations have the style "toolrl" only, got {style!r}; set'
        " config.prompt.template to toolrl."
      )
    targets = synthetic.demonstrations(examples, seed=seed)
  else:
    targets = [
      tool_calls.render_gold(example.gold, style=style) for example in examples
    ]
  return Loaded(examples, targets, [], [])


def _detect(file: pathlib.Path) -> Format:
  with file.open("rb") as stream:
    head = stream.read(4096)
  first = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
  if file.suffix == ".parquet" or head[:4] == b"PAR1":
    return "toolrl_parquet"
  if file.suffix == ".jsonl" or first == b"{":
    return "jsonl"
  if file.suffix == ".json" or first == b"[":
    return "toolrl_json"
  raise ValueError(
    f"{file}: the form must be parquet, a JSON list or JSONL, but suffix and"
    " content tell none; set config.data.format."
  )


def _text(file: pathlib.Path) -> str:
  try:
    return file.read_text(encoding="utf-8-sig")
  except UnicodeDecodeError as error:
    raise ValueError(
      f"{file}: must be UTF-8 text, but {error.reason} at byte {error.start};"
      " check the file or set config.data.format."
    ) from error


def _raw_rows(file: pathlib.Path) -> Iterator[tuple[Any, Any, Any]]:
  try:
    rows = json.loads(_text(file))
  except (json.JSONDecodeError, RecursionError) as error:
    raise ValueError(
      f"{file}: must be one JSON list, but {error}; fetch the file again or set"
      " config.data.format."
    ) from error
  if not isinstance(rows, list):
    raise ValueError(
      f"{file}: must be a JSON list of rows, got {type(rows).__name__}; set"
      " config.data.format."
    )
  for row in rows:
    row = row if isinstance(row, dict) else {}
    yield row.get("instruction"), row.get("input"), row.get("output")


def _parquet_rows(file: pathlib.Path) -> Iterator[tuple[Any, Any, Any]]:
  try:
    table = pyarrow.parquet.read_table(file)
  except (pyarrow.ArrowException, OSError) as error:
    reason = str(error).splitlines()[0]
    raise ValueError(
      f"{file}: must be a whole parquet file, but {reason}; fetch it again."
    ) from error
  missing = {"prompt", "reward_model"} - set(table.column_names)
  if missing:
    raise ValueError(
      f"{file}: a ToolRL table needs the columns prompt and reward_model, this"
      f" one has {', '.join(table.column_names)}; convert it to JSONL."
    )
  for row in table.select(["prompt", "reward_model"]).to_pylist():
    answer = row["reward_model"]
    is_answer = isinstance(answer, dict)
    system, user = _prompt_texts(row["prompt"])
    yield system, user, answer.get("ground_truth") if is_answer else None


def _prompt_texts(messages: Any) -> tuple[Any, Any]:
  """Takes the contents of [system, user]; None where it is something else."""
  is_list = isinstance(messages, list) and all(
    isinstance(message, dict) for message in messages
  )
  roles = [message.get("role") for message in messages] if is_list else []
  if roles != ["system", "user"]:
    return None, None
  return messages[0].get("content"), messages[1].get("content")


def _add_toolrl(
  loaded: Loaded,
  rows: Iterable[tuple[Any, Any, Any]],
  stem: str,
  style: tool_calls.Style,
) -> None:
  for number, (system, user, answer) in enumerate(rows):
    row_id = f"{stem}:{number}"
    try:
      row, reason = _toolrl_row(row_id, system, user, answer)
      _add(loaded, row, style)
    except ValueError as error:
      loaded.rejected.append(types.Rejected(row_id, str(error)))
      continue
    if reason:
      loaded.unparsed.append(types.Rejected(row_id, reason))


def _toolrl_row(
  row_id: str, system: Any, user: Any, answer: Any
) -> tuple[jsonl.Row, str]:
  """Reads one ToolRL row; also why its dialogue could not be read, or ""."""
  for name, text in (("system", system), ("user", user), ("answer", answer)):
    if not isinstance(text, str) or not text.strip():
      raise ValueError(f"the row needs a {name} text.")
  gold = tool_calls.parse_gold(answer)
  head, end, _ = answer.partition("</think>")
  think = head.partition("<think>")[2].strip() if end else ""
  try:
    (messages, tools), reason = toolrl_layout.parse_rows(system, user), ""
  except ValueError as error:
    messages, tools, reason = (), (), str(error)
  verbatim = (
    {"role": "system", "content": system},
    {"role": "user", "content": user},
  )
  example = types.Example(row_id, messages, tools, gold, verbatim)
  return jsonl.Row(example, think, answer), reason


def _add_jsonl(
  loaded: Loaded, lines: Sequence[str], stem: str, style: tool_calls.Style
) -> None:
  for number, line in enumerate(lines, start=1):
    if not line.strip():
      continue
    line_id = f"{stem}:{number}"
    try:
      rows = jsonl.read_line(line, default_id=line_id)
    except ValueError as error:
      loaded.rejected.append(types.Rejected(line_id, str(error)))
      continue
    for row in rows:
      try:
        _add(loaded, row, style)
      except ValueError as error:
        loaded.rejected.append(types.Rejected(row.example.id, str(error)))


def _add(loaded: Loaded, row: jsonl.Row, style: tool_calls.Style) -> None:
  """Appends a row whose text can be written and whose target is known."""
  example, target = row.example, row.target
  names = {name for call in example.gold.calls for name in call.arguments}
  for count, most, what in (
    (len(example.gold.calls), _MAX_CALLS, "calls"),
    (len(names), _MAX_ARGUMENTS, "argument names"),
  ):
    if count > most:
      raise ValueError(f"a gold may have at most {most} {what}, has {count}.")
  # Targets in the ToolRL form do not fit another style.
  is_foreign = style != "toolrl" and example.verbatim is not None
  if target is None or is_foreign:
    target = tool_calls.render_gold(
      example.gold, style=style, think=row.think or None
    )
  try:
    json.dumps([example, target], ensure_ascii=False).encode()
  except (UnicodeEncodeError, RecursionError) as error:
    raise ValueError(
      f"the text of a row must be valid Unicode, but {error}"
    ) from error
  loaded.examples.append(example)
  loaded.targets.append(target)


def _check(loaded: Loaded, path: str, bad_rows: BadRows) -> Loaded:
  """Refuses repeated ids, and bad rows where that is asked for."""
  loaded = _without_repeats(loaded)
  num_bad = len(loaded.rejected)
  first = "; ".join(f"{row.id}: {row.reason}" for row in loaded.rejected[:3])
  if not loaded.examples:
    raise ValueError(
      f"{path}: needs at least one usable row, has none of"
      f" {num_bad}{': ' + first if first else ''}; check file and"
      " config.data.format."
    )
  if bad_rows == "error" and loaded.rejected:
    raise ValueError(
      f"{path}: {num_bad} rows cannot be used, first {first}; repair them or"
      " set config.data.bad_rows to drop."
    )
  return loaded


def _without_repeats(loaded: Loaded) -> Loaded:
  """Keeps the first example of each id; the streak filter keys on it."""
  seen, examples, targets = set(), [], []
  rejected = list(loaded.rejected)
  for example, target in zip(loaded.examples, loaded.targets, strict=True):
    if example.id in seen:
      rejected.append(types.Rejected(example.id, "the id occurs before"))
      continue
    seen.add(example.id)
    examples.append(example)
    targets.append(target)
  return Loaded(examples, targets, rejected, loaded.unparsed)
