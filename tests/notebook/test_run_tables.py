"""Tests of toolrl_jax/notebook/run_tables.py, on files of the real writer."""

from toolrl_jax.notebook import run_tables
from toolrl_jax.reporting import charts, runs
from toolrl_jax.training import metrics

GOLD = (
  '<think> t </think>\n<tool_call>\n{"name": "a", "parameters": {"p": 1}}\n'
  "</tool_call>"
)


def _run(folder):
  with metrics.MetricWriter(folder, total_steps=2, tensorboard=False) as writer:
    before = {"heldout/exact_greedy_frac": 0.25, "heldout/format_frac": 0.5}
    writer.write(0, before | {"heldout/secs": 3.0})
    writer.write_samples(
      1,
      [
        {
          "id": "x", "rollout": 0, "completion": GOLD.replace("1}", "2}"),
          "gold": GOLD, "finish": "stop", "is_kept": True, "total": 2.0,
          "format": 1.0, "correctness": 1.0, "length": 0.0, "success": False,
        }
      ],
    )  # fmt: skip
    writer.write(2, {"heldout/exact_greedy_frac": 0.75})
  return runs.read(folder)


def test_heldout_is_first_and_last(tmp_path):
  table = run_tables.heldout(_run(tmp_path))
  assert table.rows == (
    ("exact greedy", 0.25, 0.75, 0.5),
    ("format sampled", 0.5, 0.5, 0.0),
  )
  assert table.caption.endswith("2 steps")


def test_samples_show_the_points_of_the_calls(tmp_path):
  (row,) = run_tables.samples(_run(tmp_path)).rows
  # The name and the parameter are right, its value is not.
  assert row[:3] == (1, 2.0, False)
  assert row[5:] == (1.0, 1.0, "1 of 1", "0 of 1", True)


def test_a_run_without_a_step_has_warnings_and_nothing_else(tmp_path):
  (tmp_path / "metrics.jsonl").write_text("")
  run = runs.read(tmp_path)
  texts = [row[0] for row in run_tables.warnings(run).rows]
  assert any("No step has ended yet" in text for text in texts)
  assert run_tables.heldout(run).rows == run_tables.samples(run).rows == ()
  assert charts.all_charts([run]) == {}
  assert run.curve("reward/total").steps.size == 0


def test_settings_are_those_that_differ(tmp_path):
  run = _run(tmp_path)
  default = {"rollout": {"group_size": 4}, "seed": 0}
  one = run._replace(name="one", config=default | {"seed": 3})
  other = run._replace(
    name="other", config={"rollout": {"group_size": 8}, "seed": 0}
  )
  table = run_tables.settings([one, other])
  assert table.header == ("field", "default", "one", "other")
  assert set(table.rows) == {
    ("seed", "0", "3", "0"),
    ("rollout.group_size", "4", "4", "8"),
  }
