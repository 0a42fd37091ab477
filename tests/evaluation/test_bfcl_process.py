"""Hostile calls, limits and restarts, on the real back-ends."""

import ast
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from toolrl_jax import types
from toolrl_jax.evaluation import (
  bfcl_environment,
  bfcl_execution,
  bfcl_process,
)

_LIMITS = bfcl_process.Limits(request_secs=60.0, conversation_secs=200.0)
_LOAD = {"do": "load", "category": "multi_turn_base", "first": 100}


@pytest.fixture(scope="module")
def environment():
  return bfcl_environment.ensure()


@pytest.fixture(scope="module")
def scorer(environment):
  started = bfcl_process.Scorer(environment, limits=_LIMITS)
  yield started
  started.close()


@pytest.fixture(scope="module")
def entries(scorer):
  loaded = scorer.ask(_LOAD, secs=120.0)["entries"]
  return {entry["id"]: entry for entry in loaded}


def _episode(scorer, entry, name="one"):
  return bfcl_process.Episode(
    scorer, name=name, entry=entry, is_long_context=False
  )


def _with_math(entries):
  return next(
    entry
    for entry in entries.values()
    if "MathAPI" in entry["involved_classes"]
  )


def _deep(levels):
  value = []
  for _ in range(levels):
    value = [value]
  return value


def test_hostile_calls_get_an_error_text_and_change_nothing(
  scorer, entries, tmp_path
):
  marker = tmp_path / "executed"
  code = f"__import__('pathlib').Path({str(marker)!r}).touch()"
  hostile = [
    ("__import__", {"name": "os"}),
    ("__init__", {}),
    ("_load_scenario", {"scenario": {}}),
    ("__class__", {}),
    ("print", {"x": 1}),
    ("open", {"file": str(marker), "mode": "w"}),
    ("eval", {"source": code}),
    (code, {}),
    (f"ls() or {code}", {}),
    ("os.system", {"command": f"touch {marker}"}),
    ("GorillaFileSystem.ls", {}),
    ("kill", {}),
    ("", {}),
    ("ls\n", {}),
    ("\ud800", {}),
    ("cd", {"self": 1}),
    ("cd", {"folder": code, "__class__": code}),
    ("cd", {code: 1}),
    ("cd", {"folder": _deep(60)}),
    ("mkdir", {"dir_name": {"a": {"b": code}}}),
    ("cd", {"folder": float("nan")}),
    ("cd", {"folder": 10**4000}),
  ]
  episode = _episode(scorer, entries["multi_turn_base_0"], "hostile")
  before = (episode.perform([]), episode.snapshot())[1]
  calls = [types.ToolCall(name, arguments) for name, arguments in hostile]
  texts = episode.perform(calls)
  after = episode.snapshot()
  episode.close()
  assert len(texts) == len(calls)
  assert not marker.exists()
  refused = [text for text in texts if "Error during execution" in text]
  assert len(refused) >= 17
  assert texts[4] == "Error during execution: name 'print' is not defined"
  assert texts[9] == "Error during execution: name 'os' is not defined"
  assert texts[11] == (
    "Error during execution: Function call kill is not allowed."
  )
  assert {k: v for k, v in after.items() if k != "GorillaFileSystem"} == {
    k: v for k, v in before.items() if k != "GorillaFileSystem"
  }


def test_code_and_paths_in_texts_stay_texts(scorer, entries):
  episode = _episode(scorer, entries["multi_turn_base_0"], "texts")
  texts = [
    # The package writes the name of an internal object into this one.
    "call cd(x) and ls()",
    "__import__('os').getcwd()",
    "'); import os; ('",
    "</tool_response>\n\0\u2028",
  ]
  calls = [types.ToolCall("echo", {"content": text}) for text in texts]
  got = [json.loads(text)["terminal_output"] for text in episode.perform(calls)]
  assert got == texts
  for path in ("../../../etc/passwd", "/etc/passwd", "~", "..", "a/../b"):
    calls = [
      types.ToolCall("cat", {"file_name": path}),
      types.ToolCall("cd", {"folder": path}),
    ]
    for text in episode.perform(calls):
      assert "root:" not in text
  state = episode.snapshot()["GorillaFileSystem"]
  assert "etc" not in state["root"]
  episode.close()


def test_numbers_keep_their_type(scorer, entries):
  episode = _episode(scorer, _with_math(entries), "numbers")
  calls = [types.ToolCall("add", {"a": a, "b": 2}) for a in (1, 1.0, True)]
  texts = episode.perform(calls)
  episode.close()
  assert texts == ['{"result": 3}', '{"result": 3.0}', '{"result": 3}']


def test_cruise_control_echoes_whole_and_broken_numbers_alike(scorer, entries):
  # multi_turn_base_79 wants speed=65; older versions failed 65.0.
  episode = _episode(scorer, entries["multi_turn_base_79"], "speed")
  doors = ["driver", "passenger", "rear_left", "rear_right"]
  cruise = {"activate": True, "distanceToNextVehicle": 100}
  texts = episode.perform(
    [
      types.ToolCall("lockDoors", {"unlock": False, "door": doors}),
      types.ToolCall("pressBrakePedal", {"pedalPosition": 1.0}),
      types.ToolCall("startEngine", {"ignitionMode": "START"}),
      types.ToolCall("setCruiseControl", cruise | {"speed": 65}),
      types.ToolCall("setCruiseControl", cruise | {"speed": 65.0}),
    ]
  )
  episode.close()
  assert (
    texts[3]
    == texts[4]
    == (
      '{"cruiseStatus": "active", "currentSpeed": 65.0,'
      ' "distanceToNextVehicle": 100.0}'
    )
  )


def test_a_hanging_call_ends_its_conversation_and_no_other(
  environment, entries
):
  scorer = bfcl_process.Scorer(
    environment, limits=bfcl_process.Limits(request_secs=5.0)
  )
  files = _episode(scorer, entries["multi_turn_base_0"], "files")
  moved = files.perform([types.ToolCall("cd", {"folder": "document"})])
  numbers = _episode(scorer, _with_math(entries), "numbers")
  first = scorer.start()
  with pytest.raises(bfcl_process.Stopped) as stopped:
    numbers.perform([types.ToolCall("power", {"base": 7, "exponent": 10**9})])
  assert stopped.value.reason == "time"
  numbers.close()
  assert not scorer.is_alive(first)
  # The other goes on in a new process, in the state it had.
  (text,) = files.perform([types.ToolCall("pwd", {})])
  assert moved == ['{"current_working_directory": "document"}']
  assert text == '{"current_working_directory": "/workspace/document"}'
  assert scorer.start() == first + 1
  scorer.close()


def test_a_killed_worker_is_replaced_and_memory_is_bounded(
  environment, entries
):
  scorer = bfcl_process.Scorer(
    environment,
    limits=bfcl_process.Limits(request_secs=60.0, memory_gib=0.25),
  )
  episode = _episode(scorer, entries["multi_turn_base_0"])
  episode.perform([types.ToolCall("cd", {"folder": "document"})])
  scorer._process.kill()
  scorer._process.wait()
  (text,) = episode.perform([types.ToolCall("pwd", {})])
  assert text == '{"current_working_directory": "/workspace/document"}'
  greedy = _episode(scorer, entries["multi_turn_base_1"], "greedy")
  huge = types.ToolCall("echo", {"content": "x" * 80_000_000})
  with pytest.raises(bfcl_process.Stopped) as stopped:
    greedy.perform([huge])
  assert stopped.value.reason in ("memory", "crash")
  (text,) = episode.perform([types.ToolCall("pwd", {})])
  assert text == '{"current_working_directory": "/workspace/document"}'
  scorer.close()


def test_requests_that_are_no_json_stop_with_a_reason(scorer, entries):
  episode = _episode(scorer, entries["multi_turn_base_0"], "deep")
  for value in (_deep(100_000), {1, 2}):
    with pytest.raises(bfcl_process.Stopped) as stopped:
      episode.perform([types.ToolCall("cd", {"folder": value})])
    assert stopped.value.reason == "request"
  with pytest.raises(RuntimeError, match="must answer 'dance', got ValueError"):
    scorer.ask({"do": "dance"})


def test_worker_has_no_secrets_and_no_network_and_evaluates_nothing(
  environment, tmp_path, monkeypatch
):
  """The guard as a whole: what the executor would never do is refused."""
  monkeypatch.setenv("SECRET_TOKEN", "hidden")
  folder = pathlib.Path(bfcl_process.__file__).parent
  probe = tmp_path / "probe.py"
  probe.write_text(
    f"""
import json, os, pathlib, subprocess, socket, sys
sys.path.append({str(folder)!r})
import bfcl_guard
bfcl_guard.refuse_dangers(os.getcwd())
refused = []
for name, act in dict(
  evaluate=lambda: eval("1 + 1"),
  execute=lambda: exec("x = 1"),
  process=lambda: subprocess.run(["true"]),
  shell=lambda: os.system("true"),
  fork=lambda: os.fork(),
  connect=lambda: socket.create_connection(("127.0.0.1", 9)),
  write=lambda: open({str(tmp_path / "out")!r}, "w"),
  remove=lambda: os.remove({str(probe)!r}),
  inside=lambda: pathlib.Path("inside").write_text("fine"),
  read=lambda: open({str(probe)!r}).read(),
).items():
  try:
    act()
  except PermissionError:
    refused.append(name)
print(json.dumps(refused))
"""
  )
  inner = tmp_path / "inner"
  inner.mkdir()
  done = subprocess.run(
    [sys.executable, str(probe)], cwd=inner, capture_output=True, text=True
  )
  assert json.loads(done.stdout) == [
    *("evaluate", "execute", "process", "shell", "fork"),
    *("connect", "write", "remove"),
  ], done.stderr
  scorer = bfcl_process.Scorer(environment, limits=_LIMITS)
  scorer.start()
  environ = pathlib.Path(f"/proc/{scorer._process.pid}/environ")
  if environ.exists():
    assert b"hidden" not in environ.read_bytes()
  folder = pathlib.Path(f"/proc/{scorer._process.pid}/cwd").resolve()
  scorer.close()
  assert not folder.exists()


@pytest.mark.quick
def test_worker_files_import_the_standard_library_alone():
  folder = pathlib.Path(bfcl_process.__file__).parent
  for name in ("bfcl_worker", "bfcl_execution", "bfcl_guard"):
    tree = ast.parse((folder / f"{name}.py").read_text())
    for node in ast.walk(tree):
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [node.module]
      for imported in names:
        assert imported.split(".")[0] in sys.stdlib_module_names
  assert importlib.util.find_spec("bfcl_eval") is None


@pytest.mark.quick
def test_parse_gold_call_takes_literals_alone():
  call = bfcl_execution.parse_gold_call("f('a', [1, -2.5], k={'x': None})")
  assert call == ("f", ("a", [1, -2.5]), {"k": {"x": None}})
  for text in ("f(g())", "f(x)", "a.f()", "f", "f(**{'a': 1}) + 1"):
    with pytest.raises(ValueError):
      bfcl_execution.parse_gold_call(text)


@pytest.mark.quick
def test_result_text_is_worded_as_the_package_does():
  texts = [
    bfcl_execution.result_text(value)
    for value in ("a", {"a": (1, None)}, {"a": {1}}, None, [1, "b"], 2.0)
  ]
  assert texts == [
    "a",
    '{"a": [1, null]}',
    "{'a': {1}}",
    "None",
    "[1, 'b']",
    "2.0",
  ]
