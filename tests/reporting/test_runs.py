"""A run's folder to records, whole and damaged."""

import json
import math
import time

import numpy as np
import pytest

from toolrl_jax.reporting import runs


def test_read_gives_what_the_writers_wrote(write_run, tmp_path):
  run = runs.read(write_run(tmp_path / "one", num_steps=3))
  assert run.name == "one"
  assert run.damage == ()
  assert run.last_step == 3
  np.testing.assert_array_equal(run.curve("reward/total").steps, [1, 2, 3])
  np.testing.assert_array_equal(
    run.curve("reward/total").values, [0.1, 0.2, 0.3]
  )
  heldout = run.curve("heldout/exact_greedy_frac")
  np.testing.assert_array_equal(heldout.steps, [0, 3])
  np.testing.assert_array_equal(heldout.values, [0.5, 0.75])
  assert run.curve("no/such").steps.size == 0
  assert run.setting("reward.matching") == "greedy"
  assert run.setting("reward.no.such", 7) == 7
  assert run.summary == {"steps": 3}
  assert [sample.step for sample in run.samples] == [1, 2, 3]
  sample = run.samples[0]
  assert (sample.id, sample.finish, sample.is_kept) == ("row-1", "stop", True)
  # -3 + 6 * 4.333 / 6, and 1 for the format.
  assert sample.correctness == pytest.approx(4 / 3, abs=1e-6)
  assert sample.total == pytest.approx(7 / 3, abs=1e-6)
  assert not sample.success


def test_read_leaves_a_half_written_last_line_out(write_run, tmp_path):
  folder = write_run(tmp_path, num_steps=3)
  for name in ("metrics.jsonl", "samples.jsonl"):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-20])
  run = runs.read(folder)
  np.testing.assert_array_equal(run.curve("reward/total").steps, [1, 2])
  assert len(run.samples) == 2
  assert len(run.damage) == 2
  assert "metrics.jsonl ends inside line 4" in run.damage[0]
  assert "samples.jsonl ends inside line 3" in run.damage[1]


@pytest.mark.parametrize(
  "line",
  [
    b"\xff\xfe\x00",
    b"[1, 2]",
    b'{"no": "step"}',
    b'{"step": true, "reward/total": 1}',
    b'{"step": -1}',
    b'{"step": 1e3}',
    b"[" * 100_000,
    b'{"step": 2, "reward/total": ' + b"9" * 5000 + b"}",
  ],
)
def test_read_leaves_damaged_lines_out(write_run, tmp_path, line):
  folder = write_run(tmp_path, num_steps=2)
  path = folder / "metrics.jsonl"
  first, rest = path.read_bytes().split(b"\n", 1)
  path.write_bytes(first + b"\n" + line + b"\n" + rest)
  run = runs.read(folder)
  np.testing.assert_array_equal(run.curve("reward/total").values, [0.1, 0.2])
  [damage] = run.damage
  assert "1 in all, the first is line 2" in damage


def test_read_keeps_numbers_that_are_not_finite_as_gaps(write_run, tmp_path):
  folder = write_run(tmp_path, changes={2: {"update__loss": math.inf}})
  assert '"update/loss": null' in (folder / "metrics.jsonl").read_text()
  with (folder / "metrics.jsonl").open("a") as file:
    file.write('{"step": 7, "update/loss": NaN, "a": "text", "b": [1]}\n')
    file.write('{"step": 8, "update/loss": 1' + "0" * 400 + "}\n")
  run = runs.read(folder)
  np.testing.assert_array_equal(run.curve("update/loss").steps, [2, 7, 8])
  assert np.isnan(run.curve("update/loss").values).all()
  assert not {"a", "b"} & run.curves.keys()


def test_read_takes_the_last_line_of_a_step_that_stands_twice(
  write_run, tmp_path
):
  folder = write_run(tmp_path, num_steps=2)
  with (folder / "metrics.jsonl").open("a") as file:
    file.write('{"step": 1, "reward/total": 9}\n')
  run = runs.read(folder)
  np.testing.assert_array_equal(run.curve("reward/total").values, [9, 0.2])
  assert "4 lines for 3 steps" in run.damage[0]


def test_read_goes_on_without_files(write_run, tmp_path):
  folder = write_run(tmp_path)
  (folder / "samples.jsonl").unlink()
  (folder / "config.json").write_text("{")
  (folder / "metrics.jsonl").write_text("")
  run = runs.read(folder)
  assert (run.samples, run.config, run.curves, run.last_step) == ((), {}, {}, 0)
  assert not any("metrics" in line for line in run.damage)
  assert any("config.json cannot be read" in line for line in run.damage)


def test_read_takes_fields_of_another_type_as_absent(write_run, tmp_path):
  folder = write_run(tmp_path)
  strange = {
    "completion": "x",
    "id": 3,
    "gold": None,
    "total": "4",
    "rollout": 1.5,
  }
  with (folder / "samples.jsonl").open("w") as file:
    file.write(json.dumps({"step": 4} | strange) + "\n")
    file.write(json.dumps({"step": 5, "completion": None}) + "\n")
  run = runs.read(folder)
  [sample] = run.samples
  assert (sample.id, sample.gold, sample.rollout) == ("", "", 0)
  assert math.isnan(sample.total)
  assert "1 lines without a completion" in run.damage[0]


def test_read_counts_the_starts_of_a_run(write_run, tmp_path):
  folder = write_run(tmp_path, tensorboard=True)
  assert runs.read(folder).num_starts == 1
  time.sleep(1.1)  # Names of TensorBoard files have seconds.
  write_run(tmp_path, tensorboard=True)
  assert runs.read(folder).num_starts == 2


@pytest.mark.parametrize("name", ["", "missing"])
def test_read_refuses_a_folder_without_a_run(tmp_path, name):
  with pytest.raises(ValueError, match="WORKDIR must") as caught:
    runs.read(tmp_path / name)
  assert "\n" not in str(caught.value)


def test_read_all_tells_runs_of_one_name_apart(write_run, tmp_path):
  folders = [write_run(tmp_path / x / "run", num_steps=1) for x in "ab"]
  assert [run.name for run in runs.read_all(folders)] == ["a/run", "b/run"]
  with pytest.raises(ValueError, match="given twice"):
    runs.read_all([folders[0], folders[0] / ".." / "run"])
