"""Tests of the notebooks in colab/: their shape, and that they run."""

import ast
import importlib
import json
import re
import types

import nbformat
import notebook_runs
import pytest

from toolrl_jax.training import metrics

GOLD = (
  '<think> t </think>\n<tool_call>\n{"name": "book", "parameters": '
  '{"city": "Oslo"}}\n</tool_call>'
)
FIELD = re.compile(r"^(\w+) = .*  # @param ", re.MULTILINE)
SMALL = {
  "NUM_REQUESTS": 4,
  "NUM_STEPS": 2,
  "NUM_HELD_OUT": 4,
  "NUM_ROWS": 8,
  "NUM_EPOCHS": 4,
}
EACH = pytest.mark.parametrize("name", notebook_runs.NAMES)


def _small(name, **fields):
  """Fills in small numbers where the notebook has such a field."""
  own = FIELD.findall("\n".join(notebook_runs.code(notebook_runs.read(name))))
  return {k: v for k, v in SMALL.items() if k in own} | fields


def test_all_notebooks_are_named_here():
  found = {path.stem for path in notebook_runs.COLAB.glob("*.ipynb")}
  assert found == set(notebook_runs.NAMES)


@EACH
def test_notebook_is_short_and_stripped(name):
  notebook = notebook_runs.read(name)
  nbformat.validate(notebook)
  assert len(notebook.cells) <= 15
  assert notebook.cells[0].cell_type == "markdown"
  assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
  for cell in notebook.cells:
    if cell.cell_type == "code":
      assert cell.outputs == []
      assert cell.execution_count is None


@EACH
def test_first_cell_is_the_same_and_asks_for_the_address(name):
  first = notebook_runs.code(notebook_runs.read(name))[0]
  assert first == notebook_runs.code(notebook_runs.read("quickstart"))[0]
  assert FIELD.findall(first) == ["SOURCE"]
  assert 'SOURCE = ""  # @param {type: "string"}' in first


@EACH
def test_cells_hold_no_logic(name):
  for source in notebook_runs.code(notebook_runs.read(name))[1:]:
    assert len(source.splitlines()) <= 32, source
    for node in ast.walk(ast.parse(source)):
      assert not isinstance(
        node,
        ast.FunctionDef | ast.ClassDef | ast.Lambda | ast.While | ast.Try
        | ast.With,
      ), ast.unparse(node)  # fmt: skip
      if isinstance(node, ast.If | ast.For):
        assert len(node.body) == 1 and not node.orelse, ast.unparse(node)


@EACH
def test_every_name_of_the_package_exists(name):
  """Finds what was renamed, without running the notebook."""
  modules = {}
  for source in notebook_runs.code(notebook_runs.read(name))[1:]:
    tree = ast.parse(source)
    for node in ast.walk(tree):
      if isinstance(node, ast.ImportFrom):
        for alias in node.names:
          modules[alias.name] = importlib.import_module(
            f"{node.module}.{alias.name}"
          )
    for node in ast.walk(tree):
      if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = modules.get(node.value.id)
        assert module is None or hasattr(module, node.attr), node.attr
  assert modules
  assert all(
    isinstance(module, types.ModuleType) for module in modules.values()
  )


def test_reward_playground_runs():
  shown = notebook_runs.texts(notebook_runs.run("reward_playground"))
  # Names 1, parameter names 2 of 2, values 3 of 4 (the days stand in another
  # order): 6/7 of the points, -3 + 6 * 6/7 = 2.143.
  assert "parameter values | 3 | 4" in shown[1]
  assert "correctness | 2.143" in shown[1]
  assert "equality: sets (LoopTool) | 4 | 1 | 3 | 0 | yes" in shown[2]
  # The paper's matching pays a call made twice in full, the authors' does not.
  assert "</tool_call> | 4 | 1 | 3 | 0 | no" in shown[3]
  assert "</tool_call> | 3.667 | 1 | 2.667 | 0 | no" in shown[4]


def _write_run(folder, seed):
  """Writes what a run of two steps leaves, with the real writer."""
  wrong = GOLD.replace("Oslo", "Rome")
  with metrics.MetricWriter(folder, total_steps=2, tensorboard=False) as writer:
    writer.write(0, {"heldout/exact_greedy_frac": 0.25})
    for step in (1, 2):
      writer.write_samples(
        step,
        [
          {
            "id": "row", "rollout": 0, "completion": wrong, "gold": GOLD,
            "finish": "stop", "is_kept": True, "total": 2.5, "format": 1.0,
            "correctness": 1.5, "length": 0.0, "success": False,
          }
        ],
      )  # fmt: skip
      writer.write(
        step, {"reward/total": 1.5 * step, "reward/success_frac": 0.25 * step}
      )
  config = {"seed": seed, "rollout": {"group_size": 4}}
  (folder / "config.json").write_text(json.dumps(config))


def test_read_run_runs(tmp_path):
  for seed, name in enumerate(("one", "other")):
    _write_run(tmp_path / name, seed)
  notebook = notebook_runs.run(
    "read_run",
    WORKDIR=str(tmp_path / "one"),
    OTHER_WORKDIR=str(tmp_path / "other"),
    NUM_SAMPLES=1,
  )
  shown = notebook_runs.texts(notebook)
  assert "exact greedy | 0.25 | 0.25 | 0" in shown[1]
  assert "There is no summary.json: after step 2" in shown[2]
  # The name and the parameter are right, its value is not.
  assert "| 2.5 | no | <think>" in shown[4]
  assert "| 1 | 1 of 1 | 0 of 1 | yes" in shown[4]
  assert "seed | 0 | 0 | 1" in shown[6]
  assert "1.5, 3. " in shown[7]
  titles = [chart["layout"]["title"]["text"] for chart in _charts(notebook)]
  assert titles == [
    "Reward and its parts",
    "Success",
    "Held-out rows",
    "Success",
  ]
  both = _charts(notebook)[-1]["data"]
  assert [trace["name"] for trace in both] == ["one", "other"]


def _charts(notebook):
  return [
    output.data["application/vnd.plotly.v1+json"]
    for cell in notebook.cells
    if cell.cell_type == "code"
    for output in cell.outputs
    if "application/vnd.plotly.v1+json" in output.get("data", {})
  ]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_notebooks_run_to_the_end(tmp_path):
  """All five, in an order in which read_run reads what another trained."""
  quickstart, streak = str(tmp_path / "quickstart"), str(tmp_path / "streak")
  fields = {
    "quickstart": {"WORKDIR": quickstart},
    "reward_playground": {},
    "streak_and_selection": {"WORKDIR": streak, "NUM_PROMPTS": 4},
    "train_qwen_0p5b": {
      "WORKDIR": str(tmp_path / "qwen"),
      "HUB_NAME": "",
      "EVAL_PATH": "synthetic:8",
    },
    "read_run": {"WORKDIR": quickstart, "OTHER_WORKDIR": streak},
  }
  shown, charts = {}, {}
  for name in notebook_runs.NAMES:
    done = notebook_runs.run(name, **_small(name, **fields[name]))
    shown[name], charts[name] = notebook_runs.texts(done), _charts(done)
  assert "right answers:" in shown["quickstart"][1]
  assert "step 2/2" in shown["quickstart"][2]
  assert shown["quickstart"][3].startswith("right answers:")
  assert "quickstart: 2 steps" in shown["quickstart"][5]
  # Skipped, contrast, kept, visits.
  assert len(charts["streak_and_selection"]) == 4
  assert "of 4 groups have contrast" in shown["streak_and_selection"][6]
  assert "platform='cpu'" in shown["train_qwen_0p5b"][1]
  assert "bundled:tiny" in shown["train_qwen_0p5b"][2]
  assert "step 2/2" in shown["train_qwen_0p5b"][4]
  assert len(charts["read_run"]) > 8
