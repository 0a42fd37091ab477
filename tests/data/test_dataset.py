"""Reading rows from files, good and bad."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from toolrl_jax import types
from toolrl_jax.data import dataset, synthetic

SYSTEM = (
  "Role.\n\n**Available Tools**\nLead.\n1. Name: look\nDescription: Looks.\n"
  'Parameters: {"at": {"description": "", "type": "str", "default": ""}}\n\n'
  "**Steps for Each Turn**\n..."
)
USER = "**Dialogue Records History**\n<user> Look at it. </user>"
ANSWER = (
  "<think> I mention <tool_call> here. </think>\n<tool_call>\n"
  '{"name": "look", "parameters": {"at": "it"}}\n</tool_call>'
)
ROW = {"instruction": SYSTEM, "input": USER, "output": ANSWER}


def write(path, rows):
  path.write_text(json.dumps(rows))
  return str(path)


def write_parquet(path, rows):
  table = [
    {
      "prompt": [
        {"content": row["instruction"], "role": "system"},
        {"content": row["input"], "role": "user"},
      ],
      "reward_model": {"ground_truth": row["output"], "style": "rule"},
    }
    for row in rows
  ]
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
  return str(path)


@pytest.mark.parametrize("is_parquet", [False, True])
def test_load_reads_a_toolrl_row(tmp_path, is_parquet):
  if is_parquet:
    path = write_parquet(tmp_path / "rows.parquet", [ROW])
  else:
    path = write(tmp_path / "rows.json", [ROW])
  loaded = dataset.load(path)
  assert loaded.rejected == [] and loaded.unparsed == []
  assert loaded.targets == [ANSWER]
  (example,) = loaded.examples
  assert example.id == "rows:0"
  assert example.verbatim == (
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": USER},
  )
  assert example.messages == (
    {"role": "system", "content": "Role."},
    {"role": "user", "content": "Look at it."},
  )
  assert [tool["name"] for tool in example.tools] == ["look"]
  # The tag in the thinking is no call.
  assert example.gold == types.Gold((types.ToolCall("look", {"at": "it"}),))


def test_load_lists_bad_rows_with_their_reason(tmp_path):
  rows = [
    ROW,
    ROW | {"output": "<think> a </think>\n<tool_call>\nno\n</tool_call>"},
    ROW | {"input": " "},
    "not a row",
    ROW | {"output": None},
    ROW | {"input": USER + "\ud800"},
  ]
  loaded = dataset.load(write(tmp_path / "rows.json", rows))
  assert [example.id for example in loaded.examples] == ["rows:0"]
  assert [row.id for row in loaded.rejected] == [
    "rows:1",
    "rows:2",
    "rows:3",
    "rows:4",
    "rows:5",
  ]
  assert "gold calls must be" in loaded.rejected[0].reason
  assert "needs a user text" in loaded.rejected[1].reason
  assert "valid Unicode" in loaded.rejected[4].reason


def test_load_refuses_bad_rows_when_asked_to(tmp_path):
  path = write(tmp_path / "rows.json", [ROW, ROW | {"output": ""}])
  with pytest.raises(ValueError, match="1 rows cannot be used, first rows:1"):
    dataset.load(path, bad_rows="error")


def test_load_counts_rows_whose_dialogue_is_not_in_the_layout(tmp_path):
  path = write(tmp_path / "rows.json", [ROW, ROW | {"input": "Look at it."}])
  loaded = dataset.load(path)
  assert len(loaded.examples) == 2
  assert [row.id for row in loaded.unparsed] == ["rows:1"]
  assert loaded.examples[1].messages == ()
  assert loaded.examples[1].verbatim[1]["content"] == "Look at it."


def test_load_reads_jsonl_and_lists_bad_lines(tmp_path):
  good = {"messages": [{"role": "user", "content": "a"}], "gold": {"calls": []}}
  again = good | {"id": "x"}
  lines = [json.dumps(good), "", "{", json.dumps(again), json.dumps(again)]
  file = tmp_path / "rows.jsonl"
  # A byte order mark and Windows line ends are no error.
  file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
  loaded = dataset.load(str(file))
  assert [example.id for example in loaded.examples] == ["rows:1", "x"]
  assert [row.id for row in loaded.rejected] == ["rows:3", "x"]
  assert loaded.rejected[1].reason == "the id occurs before"


@pytest.mark.parametrize(
  ("calls", "reason"),
  [
    ([{"name": "a", "arguments": {}}] * 65, "at most 64 calls, has 65"),
    (
      [{"name": "a", "arguments": {str(i): i for i in range(257)}}],
      "at most 256 argument names, has 257",
    ),
  ],
)
def test_load_leaves_out_gold_of_absurd_size(tmp_path, calls, reason):
  line = {"messages": [{"role": "user", "content": "a"}]}
  file = tmp_path / "rows.jsonl"
  file.write_text(
    "\n".join(
      json.dumps(line | {"gold": {"calls": calls}}) for calls in ([], calls)
    )
  )
  loaded = dataset.load(str(file))
  assert len(loaded.examples) == 1
  assert reason in loaded.rejected[0].reason


def test_load_keeps_line_separators_inside_strings(tmp_path):
  content = "a\u2028b\u0085c"
  line = {"messages": [{"role": "user", "content": content}]}
  file = tmp_path / "rows.jsonl"
  text = json.dumps(line | {"gold": {"calls": []}}, ensure_ascii=False)
  file.write_text(text, encoding="utf-8")
  (example,) = dataset.load(str(file)).examples
  assert example.messages[0]["content"] == content


def test_load_renders_targets_in_the_style_asked_for(tmp_path):
  call = {"name": "look", "arguments": {"at": "it"}}
  line = {
    "messages": [{"role": "user", "content": "a"}],
    "gold": {"calls": [call], "think": "Why."},
  }
  file = tmp_path / "rows.jsonl"
  file.write_text(json.dumps(line))
  native = (
    '<think> Why. </think>\n<tool_call>\n{"name": "look", "arguments":'
    ' {"at": "it"}}\n</tool_call>'
  )
  toolrl = native.replace("arguments", "parameters")
  assert dataset.load(str(file)).targets == [toolrl]
  assert dataset.load(str(file), style="native").targets == [native]
  # A row in the ToolRL form is written anew for another style.
  path = write(tmp_path / "rows.json", [ROW])
  assert dataset.load(path, style="native").targets == [
    native.replace("Why.", "I mention <tool_call> here.")
  ]


def test_load_finds_the_form_without_a_suffix(tmp_path):
  for name, content in (
    ("table", [ROW]),
    ("raw", [ROW]),
    ("lines", {"messages": [], "gold": {}}),
  ):
    file = tmp_path / name
    if name == "table":
      write_parquet(file, content)
    elif name == "raw":
      write(file, content)
    else:
      file.write_text(
        '{"messages": [{"role": "user", "content": "a"}],'
        ' "gold": {"calls": []}}'
      )
    assert len(dataset.load(str(file)).examples) == 1


def test_load_missing_file_is_one_line(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"set config\.data"):
    dataset.load(str(tmp_path / "nothing.parquet"))
  with pytest.raises(FileNotFoundError, match="must be a file"):
    dataset.load(str(tmp_path))


@pytest.mark.parametrize(
  ("name", "content", "form", "reason"),
  [
    ("a.parquet", b"", "auto", "whole parquet file"),
    ("a.parquet", b"PAR1 and no more", "auto", "whole parquet file"),
    ("a.json", b"", "auto", "one JSON list"),
    ("a.json", b'[{"instruction": "a"', "auto", "one JSON list"),
    ("a.json", b"[]", "auto", "at least one usable row"),
    ("a.json", b"7", "auto", "JSON list of rows"),
    ("a.jsonl", b"", "auto", "at least one usable row"),
    ("a.jsonl", b"{\n{\n", "auto", "has none of 2: a:1"),
    ("a.jsonl", b"\xff\xfe\x00", "auto", "UTF-8"),
    ("a.txt", b"hello", "auto", "suffix and content tell none"),
    ("a.json", b"[]", "toolrl_parquet", "whole parquet file"),
    ("a.parquet", b"PAR1\xff", "jsonl", "UTF-8"),
  ],
)
def test_load_broken_file_is_one_line(tmp_path, name, content, form, reason):
  file = tmp_path / name
  file.write_bytes(content)
  with pytest.raises(ValueError, match=reason) as caught:
    dataset.load(str(file), format=form)
  assert str(file) in str(caught.value)
  assert "\n" not in str(caught.value)


def test_load_truncated_parquet_is_one_line(tmp_path):
  file = tmp_path / "rows.parquet"
  write_parquet(file, [ROW])
  content = file.read_bytes()
  file.write_bytes(content[: len(content) // 2])
  with pytest.raises(ValueError, match="fetch it again") as caught:
    dataset.load(str(file))
  assert "\n" not in str(caught.value)


def test_load_other_table_names_its_columns(tmp_path):
  file = tmp_path / "rows.parquet"
  pyarrow.parquet.write_table(pyarrow.table({"a": [1], "b": [2]}), file)
  with pytest.raises(ValueError, match="this one has a, b"):
    dataset.load(str(file))
  table = pyarrow.table({"prompt": [1], "reward_model": ["x"]})
  pyarrow.parquet.write_table(table, file)
  with pytest.raises(ValueError, match="at least one usable row"):
    dataset.load(str(file))


@pytest.mark.parametrize(
  "path", ["synthetic:", "synthetic:0", "synthetic:x", f"synthetic:{10**40}"]
)
def test_load_synthetic_needs_a_number(path):
  with pytest.raises(ValueError, match="synthetic:N"):
    dataset.load(path)


def test_load_synthetic_gives_generated_examples():
  loaded = dataset.load("synthetic:5", split="eval", seed=7)
  assert loaded.examples == synthetic.generate(5, split="eval", seed=7)
  assert len(loaded.targets) == 5 and loaded.rejected == []
  warm = dataset.load("synthetic:5", split="sft", seed=7)
  assert warm.targets == synthetic.demonstrations(warm.examples, seed=7)
  with pytest.raises(ValueError, match="toolrl"):
    dataset.load("synthetic:5", split="sft", style="native")


def test_load_reads_all_toolrl_test_rows(shared_dir):
  path = shared_dir / "data" / "toolrl" / "test.parquet"
  loaded = dataset.load(str(path), bad_rows="error")
  assert len(loaded.examples) == len(loaded.targets) == 80
  assert loaded.rejected == [] and loaded.unparsed == []
  kinds = [example.gold.kind for example in loaded.examples]
  assert (kinds.count("calls"), kinds.count("response")) == (71, 9)
  assert loaded.examples[79].id == "test:79"
  # Names are opaque, the blank at the end counts.
  assert loaded.examples[9].gold.calls[0].name == (
    "DAX Point Changes for Each Month "
  )
  roles = [
    message["role"] for row in loaded.examples for message in row.messages
  ]
  # User turns per row: 1 in 75 rows, 2 in 1, 3 in 4.
  assert roles.count("user") == 75 + 2 + 12


def test_load_reads_all_toolrl_sft_rows(shared_dir):
  path = shared_dir / "data" / "toolrl" / "rlla_sft.json"
  loaded = dataset.load(str(path), bad_rows="error")
  assert len(loaded.examples) == 400
  assert loaded.rejected == [] and loaded.unparsed == []
  num_calls = [len(example.gold.calls) for example in loaded.examples]
  assert [num_calls.count(n) for n in range(6)] == [54, 187, 109, 33, 13, 4]
  kinds = [example.gold.kind for example in loaded.examples]
  assert (kinds.count("calls"), kinds.count("response")) == (346, 54)
  raw = json.loads(path.read_text())
  assert loaded.targets == [row["output"] for row in raw]
  # Tags inside the thinking (spec data, 6.1).
  for row in (10, 44, 73, 95, 213, 363):
    assert loaded.examples[row].gold.kind in ("calls", "response")
