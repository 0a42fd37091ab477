"""Our loop, verdicts and result files against the package's own program."""

import collections
import json
import pathlib
import subprocess

import pytest

from toolrl_jax import types
from toolrl_jax.data import prompt
from toolrl_jax.evaluation import (
  benchmark,
  bfcl,
  bfcl_environment,
  bfcl_files,
  bfcl_oracle,
  bfcl_process,
  bfcl_scores,
  conversation,
)
from toolrl_jax.model import tokenizer as tokenizer_lib
from toolrl_jax.parsing import tool_calls

_NAME = "Qwen/Qwen3-0.6B-FC"
_LIMITS = bfcl_process.Limits(request_secs=60.0, conversation_secs=120.0)
_SCRIPT = (
  pathlib.Path(__file__).parents[2] / "benchmarks/peers/bfcl_upstream.py"
)


@pytest.fixture(scope="module")
def runner():
  return bfcl_environment.ensure(has_runner=True)


@pytest.fixture(scope="module")
def bench():
  made = bfcl.Bfcl(max_items=3, limits=_LIMITS)
  yield made
  made.close()


def _upstream(runner, folder, request):
  """Runs the package's program on a request and returns its reply."""
  asked, replied = folder / "request.json", folder / "reply.json"
  asked.write_text(json.dumps(request))
  done = subprocess.run(
    [str(runner.python), str(_SCRIPT), str(asked), str(replied)],
    env={"BFCL_PROJECT_ROOT": str(folder), "HOME": str(folder)},
    cwd=folder,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(replied.read_text())


def _drive(bench, item, texts):
  """Says prepared texts; the last of a turn is repeated."""
  talk, asked = bench.converse(item), []
  ask = next(talk)
  while True:
    asked.append(ask)
    said = texts[ask.turn][min(ask.step, len(texts[ask.turn]) - 1)]
    parsed = tool_calls.parse_completion(said, style="native")
    try:
      ask = talk.send(conversation.Answer(said, parsed))
    except StopIteration as end:
      return end.value, asked


def _call(name, arguments):
  return bfcl_oracle.text([types.ToolCall(name, arguments)])


def _scripts(item):
  """Policies that meet every end of a turn and every kind of result."""
  golds = bfcl_oracle.turns(item)
  whole = [[bfcl_oracle.text(calls), "Done."] for calls in golds]
  single = [[bfcl_oracle.text([c]) for c in calls] + ["Done."]
            for calls in golds]  # fmt: skip
  wrong = [
    [
      _call("no_such_tool", {"a": 1}),
      _call("cd", {"nonsense": [1, {"b": None}]}),
      _call("kill", {}),
      *turn,
    ]
    for turn in whole
  ]
  thinking = [
    [f"<think>\nStep by step.\n</think>\n\n{text}" for text in turn]
    for turn in whole
  ]
  endless = [*whole[:-1], [whole[-1][0], _call("no_such_tool", {})]]
  stuck = [[_call("no_such_tool", {})], *whole[1:]]
  unreadable = [["<tool_call>\n{broken\n</tool_call>"], *whole[1:]]
  return [whole, single, wrong, thinking, endless, stuck, unreadable]


def _comparable(message):
  """The parts of a message that a prompt is made of."""
  calls = [
    [call["name"], call["arguments"]] for call in message.get("tool_calls", ())
  ] or [[call.name, dict(call.arguments)] for call in message.get("calls", ())]
  think = message.get("reasoning_content") or message.get("think") or ""
  return [message["role"], message["content"], calls, think]


def _check_prompts(asked, reply):
  """Our native template gives the package's prompts, byte for byte."""
  # The package quotes Qwen3's template above its own rendering of it.
  quoted = reply["template"].partition('"chat_template":')[2]
  tokenizer = tokenizer_lib.load("bundled:tiny")
  tokenizer.chat_template = quoted.partition('"""')[0].strip()
  for ask, expected in zip(asked, reply["prompts"], strict=True):
    text = prompt.encode_next(
      types.Example("e", ask.messages, ask.tools, types.Gold()),
      tokenizer,
      template="native",
      thinking="official",
      wrap_tools=False,
    ).text
    assert text == expected


def test_our_loop_is_the_packages_loop(bench, runner, tmp_path):
  items = [
    next(item for item in bench.items() if item.category == category)
    for category in bfcl_scores.MULTI_TURN
  ]
  jobs = [
    {"id": item.id, "texts": texts}
    for item in items
    for texts in _scripts(item)
  ]
  replies = _upstream(runner, tmp_path, {"do": "loop", "jobs": jobs})
  by_id = {item.id: item for item in items}
  verdicts = collections.Counter()
  for job, reply in zip(jobs, replies):
    item = by_id[job["id"]]
    outcome, asked = _drive(bench, item, job["texts"])
    assert [len(ask.messages) for ask in asked] == reply["lengths"]
    for earlier, later in zip(asked, asked[1:]):
      assert later.messages[: len(earlier.messages)] == earlier.messages
      assert later.tools is earlier.tools
    assert list(asked[0].tools) == reply["functions"]
    _check_prompts(asked, reply)
    for mine, other in zip(asked[-1].messages, reply["messages"]):
      mine, other = _comparable(mine), _comparable(other)
      # We keep what could not be read as `raw`, the package as content.
      is_unreadable = mine[0] == "assistant" and "{broken" in other[1]
      assert mine == other or is_unreadable
    assert len(outcome["turns"]) == len(reply["written"])
    is_right = bench.score({item.id: outcome}).verdicts[item.id] == 1
    assert is_right == reply["is_valid"]
    verdicts[is_right] += 1
  # 4 items: the first five policies are right, the last two are not.
  assert verdicts == {True: 20, False: 8}


def _mixed(bench):
  """Outcomes of which every third is wrong in one of several ways."""
  outcomes = {}
  for number, item in enumerate(bench.items()):
    golds = bfcl_oracle.turns(item)
    texts = [[bfcl_oracle.text(calls), "Done."] for calls in golds]
    if number % 3 == 1:
      texts[0] = [_call("no_such_tool", {"x": 1}), "Done."]
    if number % 3 == 2 and golds[0]:
      texts[0] = ["I cannot. <tool_call>\n{broken\n</tool_call>"]
    outcomes[item.id] = _drive(bench, item, texts)[0]
  return outcomes


def _agree(bench, runner, folder, outcomes):
  """Has both score the same outcomes; returns our scores."""
  bfcl_files.write(folder / "result", _NAME, bench.items(), outcomes)
  (folder / "score").mkdir()
  request = {
    "do": "evaluate",
    "categories": ["single_turn", "multi_turn"],
    "result": str(folder / "result"),
    "score": str(folder / "score"),
  }
  reply = _upstream(runner, folder, request)
  scores = bench.score(outcomes)
  failed = {name for name, value in scores.verdicts.items() if not value}
  theirs = [name for one in reply["headers"].values() for name in one["failed"]]
  assert set(theirs) == failed
  for category, header in reply["headers"].items():
    assert header["total_count"] == scores.counts[category]
    assert header["accuracy"] == pytest.approx(scores.table[category])
  overall = reply["overall"].splitlines()
  row = dict(zip(overall[0].split(","), overall[1].split(",")))
  percent = float(row["Overall Acc"].rstrip("%"))
  assert percent == pytest.approx(100 * scores.table["v4/overall"], abs=0.005)
  return scores


def test_package_scores_our_files_as_we_do(bench, runner, tmp_path):
  outcomes = _mixed(bench)
  scores = _agree(bench, runner, tmp_path, outcomes)
  assert len(scores.counts) == 17
  assert 0.3 < scores.table["items"] < 0.7
  # And back: what is read again scores the same.
  names = list(scores.counts)
  again = bfcl_files.read(tmp_path / "result", _NAME, names)
  assert bench.score(again).verdicts == scores.verdicts


@pytest.mark.slow
def test_package_scores_all_gold_as_we_do(runner, tmp_path):
  whole = bfcl.Bfcl(limits=_LIMITS)
  try:
    outcomes = {}
    for item in whole.items():
      texts = [
        [bfcl_oracle.text(calls), "Done."] for calls in bfcl_oracle.turns(item)
      ]
      outcomes[item.id] = _drive(whole, item, texts)[0]
    scores = _agree(whole, runner, tmp_path, outcomes)
  finally:
    whole.close()
  assert scores.table["paper/multi"] == 1.0
  assert len([v for v in scores.verdicts.values() if not v]) == 7


@pytest.mark.slow
def test_package_scores_mixed_outcomes_as_we_do(runner, tmp_path):
  many = bfcl.Bfcl(limits=_LIMITS, max_items=200)
  try:
    scores = _agree(many, runner, tmp_path, _mixed(many))
  finally:
    many.close()
  assert 0.3 < scores.table["items"] < 0.7


# ----- files alone -----


def _item(name, category):
  return benchmark.Item(name, category, {"entry": {}, "gold": None})


def _step(calls=(), text="", **more):
  documents = [{"name": name, "arguments": args} for name, args in calls]
  return {"calls": documents, "text": text, **more}


@pytest.mark.quick
def test_write_gives_the_packages_form(tmp_path):
  item = _item("live_simple_0-0-0", "live_simple")
  turns = _item("multi_turn_base_0", "multi_turn_base")
  outcomes = {
    item.id: {
      "turns": [
        [_step([("f", {"a": "é </tool_call>"})], num_prompt_tokens=7, secs=0.5)]
      ]
    },
    turns.id: {
      "turns": [[_step([("g", {})], num_tokens=3), _step(text="Done.")]],
      "stopped": "",
    },
  }
  files = bfcl_files.write(tmp_path, _NAME, [item, turns], outcomes)
  assert [file.relative_to(tmp_path).as_posix() for file in files] == [
    "Qwen_Qwen3-0.6B-FC/live/BFCL_v4_live_simple_result.json",
    "Qwen_Qwen3-0.6B-FC/multi_turn/BFCL_v4_multi_turn_base_result.json",
  ]
  first, second = (json.loads(file.read_text()) for file in files)
  assert first == {
    "id": "live_simple_0-0-0",
    "result": '<tool_call>\n{"name": "f", "arguments": {"a": "é \\u003c'
    '/tool_call>"}}\n</tool_call>',
    "input_token_count": 7,
    "output_token_count": 0,
    "latency": 0.5,
  }
  assert second["result"] == [
    ['<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', "Done."]
  ]
  assert second["output_token_count"] == [[3, 0]]
  read = bfcl_files.read(tmp_path, _NAME, ["live_simple", "multi_turn_base"])
  (call,) = read[item.id]["turns"][0][0]["calls"]
  assert call["arguments"] == {"a": "é </tool_call>"}


@pytest.mark.quick
def test_write_hides_what_we_could_not_read_and_fails_the_stopped(tmp_path):
  item = _item("multi_turn_base_0", "multi_turn_base")
  half = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
  written = {
    "": [["<tool_call unread>" + half[11:]]],
    "time": "Error during inference: stopped by time",
  }
  for stopped, expected in written.items():
    outcome = {"turns": [[_step(text=half)]], "stopped": stopped}
    (file,) = bfcl_files.write(tmp_path, _NAME, [item], {item.id: outcome})
    assert json.loads(file.read_text())["result"] == expected
  read = bfcl_files.read(tmp_path, _NAME, ["multi_turn_base"])
  assert read[item.id]["stopped"] == "crash"


@pytest.mark.quick
@pytest.mark.parametrize(
  "line",
  [
    "{broken",
    "[]",
    '{"id": "multiple_0"}',
    '{"id": "multiple_0", "result": [[3]]}',
    '{"id": "multiple_0", "result": null}',
    "[" * 100_000,
    "\udcff",
  ],
)
def test_read_names_the_broken_line(tmp_path, line):
  file = bfcl_files.path(tmp_path, _NAME, "multiple")
  file.parent.mkdir(parents=True)
  good = '{"id": "multiple_1", "result": "Hm."}\n'
  file.write_bytes((good + line).encode(errors="surrogateescape"))
  with pytest.raises(ValueError, match=r"a result line must be.*json:2 \("):
    bfcl_files.read(tmp_path, _NAME, ["multiple"])


@pytest.mark.quick
def test_read_and_path_refuse_what_the_package_cannot_find(tmp_path):
  with pytest.raises(FileNotFoundError, match="every category to read must"):
    bfcl_files.read(tmp_path, _NAME, ["multiple"])
  with pytest.raises(ValueError, match="must not be empty nor hold '_'"):
    bfcl_files.path(tmp_path, "my_model", "multiple")
