"""Tasks of lm-evaluation-harness through the command, on the bundled model.

Needs the optional package lm_eval (extra `eval`).
"""

import importlib.util
import json

import pytest

from toolrl_jax import evaluate
from toolrl_jax.evaluation import harness, likelihood
from toolrl_jax.model import tokenizer, weights

_HAS_PACKAGE = importlib.util.find_spec("lm_eval") is not None
_QUESTIONS = (
  ("The weather in", [" Oslo", " zzz", "?!"]),
  ("Book a", [" room", " flight for two", "}}"]),
  ("<tool_call>", ["\n{", "hello", "<tool_call>"]),
)


def _arguments(root_dir, workdir, **fields):
  return [
    "toolrl-evaluate",
    f"--config={root_dir / 'configs' / 'evaluate_tiny.py'}",
    f"--workdir={workdir}",
    "--config.mesh.cpu_devices=0",
    "--config.rollout.server=inline",
    "--config.benchmark.names=('general',)",
    *(f"--config.{name}={value}" for name, value in fields.items()),
  ]


@pytest.mark.skipif(
  not _HAS_PACKAGE, reason=f"needs lm_eval=={harness.VERSION}"
)
def test_accuracy_is_that_of_the_model(root_dir, tmp_path):
  text = tokenizer.load("bundled:tiny")
  config, params = weights.load("bundled:tiny")
  scorer = likelihood.LikelihoodScorer(params, config)
  rows, right = [], 0
  for gold, (question, choices) in enumerate(_QUESTIONS):
    context = text(question, add_special_tokens=False)["input_ids"]
    sequences = [
      text(question + choice, add_special_tokens=False)["input_ids"]
      for choice in choices
    ]
    marks = scorer(sequences, [len(context)] * len(choices))
    best = max(range(3), key=lambda i: marks[i][0])
    right += best == gold
    rows.append({"question": question, "choices": choices, "gold": gold})
  data = tmp_path / "tasks" / "rows.jsonl"
  data.parent.mkdir()
  data.write_text("".join(json.dumps(row) + "\n" for row in rows))
  task = {
    "task": "own",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(data)}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{gold}}",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
  }
  # YAML reads JSON.
  (data.parent / "own.yaml").write_text(json.dumps(task))
  fields = {
    "benchmark.tasks": "('own',)",
    "benchmark.task_dir": data.parent,
  }
  evaluate.run(_arguments(root_dir, tmp_path / "w", **fields))
  scores = json.loads((tmp_path / "w" / "scores.json").read_text())
  one = scores["benchmarks"]["general"]
  assert one["summary"]["own/acc"]["mean"] == pytest.approx(right / 3)
  assert one["by_seed"]["greedy"]["counts"] == {"own": 3}


@pytest.mark.extras
def test_a_missing_package_or_task_is_one_line(root_dir, tmp_path, capsys):
  fields = {} if _HAS_PACKAGE else {"benchmark.tasks": "('mmlu',)"}
  with pytest.raises(SystemExit) as caught:
    evaluate.run(_arguments(root_dir, tmp_path, **fields))
  assert caught.value.code == 2
  line = capsys.readouterr().err.strip().splitlines()[-1]
  assert ("tasks is empty" if _HAS_PACKAGE else "lm_eval") in line
