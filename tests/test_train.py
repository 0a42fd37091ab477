"""The whole path through the command, killed, stopped and resumed."""

import json
import os
import shutil
import signal
import time

import jax
import pytest
import whole_runs

from toolrl_jax import command, command_line, parts, train


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
  return whole_runs.environment(tmp_path_factory.mktemp("compilation-cache"))


@pytest.fixture(scope="module")
def whole(environment, tmp_path_factory):
  """A run that nothing disturbed."""
  workdir = tmp_path_factory.mktemp("whole")
  whole_runs.finish(whole_runs.start(environment, workdir))
  return workdir


def test_benchmarks_are_scored_while_training(whole):
  named = [
    {name for name in row if name.startswith("benchmark/")}
    for row in whole_runs.rows(whole)
  ]
  assert [bool(names) for names in named] == [step == 4 for step in range(7)]
  assert {"benchmark/rows/exact", "benchmark/secs"} <= named[4]
  folder = whole / "benchmarks" / "step-4"
  scores = json.loads((folder / "scores.json").read_text())
  assert scores["seeds"] == [0] and len(scores["weights"]) == 16
  by_seed = scores["benchmarks"]["rows"]["by_seed"]
  assert len(by_seed["0"]["verdicts"]) == 6


def test_run_leaves_a_whole_workdir(whole):
  rows = whole_runs.rows(whole)
  assert [row["step"] for row in rows] == list(range(whole_runs.NUM_STEPS + 1))
  assert all(row["update/is_finite"] == 1 for row in rows[1:])
  # One prefill a real group; the prompts of an epoch end in a short batch.
  assert max(row["rollout/prefills"] for row in rows[1:]) == 3
  assert "heldout/exact_sampled_frac" in rows[0]
  assert "heldout/exact_sampled_frac" in rows[3]
  assert "heldout/exact_sampled_frac" in rows[-1]
  # The big programs are compiled in the first steps; later a reward kernel
  # for more calls or arguments may follow.
  assert rows[1]["step/compilations"] >= 3
  assert sum(row["step/compilations"] for row in rows[3:]) <= 3
  samples = (whole / "samples.jsonl").read_text().splitlines()
  # Two a step, one where the last batch of an epoch holds one prompt.
  assert (
    2 * whole_runs.NUM_STEPS - 2 <= len(samples) <= 2 * whole_runs.NUM_STEPS
  )
  assert {"completion", "gold", "total", "success"} <= json.loads(
    samples[0]
  ).keys()
  summary = json.loads((whole / "summary.json").read_text())
  assert summary["steps"] == whole_runs.NUM_STEPS
  exact = summary["heldout"]["heldout/exact_sampled_frac"]
  assert exact["before"] == rows[0]["heldout/exact_sampled_frac"]
  assert exact["after"] == rows[-1]["heldout/exact_sampled_frac"]
  assert json.loads((whole / "config.json").read_text())["seed"] == 0
  about = json.loads((whole / "run.json").read_text())
  # common.py is the recipe, 16 rows are generated, and two devices simulated.
  wanted = {
    "recipe": "common.py", "num_train_rows": 16, "num_heldout_rows": 8,
    "num_devices": 2, "num_processes": 1,
  }  # fmt: skip
  assert wanted.items() <= about.items()
  assert about["num_params"] > 1e6
  assert about["versions"]["jax"] == jax.__version__
  assert list((whole / "tensorboard").iterdir())


def test_run_trains(whole):
  rows = whole_runs.rows(whole)
  assert any(row["update/grad_norm"] > 0 for row in rows[1:])
  # The sampler's and the update's log-probabilities differ by rounding.
  assert max(row["rollout/logprob_gap_max"] for row in rows[1:]) < 1e-3


@pytest.mark.parametrize(
  "moment", ["first_step", "later_step", "in_a_save", "in_the_export"]
)
def test_killed_run_resumes_bit_for_bit(environment, whole, tmp_path, moment):
  process = whole_runs.start(environment, tmp_path)
  whole_runs.wait_for(moment, tmp_path, process)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert not (tmp_path / "summary.json").exists()
  # A line that was being written when the kill came.
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write('{"step": 99, "reward/tot')
  said = whole_runs.finish(whole_runs.start(environment, tmp_path))
  whole_runs.assert_equal_runs(whole, tmp_path)
  assert ("resumed from" in said) == (moment != "first_step")


def test_sigterm_saves_and_exits_cleanly(environment, whole, tmp_path):
  said = _stopped(environment, tmp_path, signal.SIGTERM, status=75)
  assert said.count("SIGTERM: the run ends after this step") == 1
  num_rows = len(whole_runs.rows(tmp_path))
  assert num_rows <= whole_runs.NUM_STEPS
  assert not (tmp_path / "summary.json").exists()
  said = whole_runs.finish(whole_runs.start(environment, tmp_path))
  assert f"resumed from the checkpoint of step {num_rows - 1}" in said
  whole_runs.assert_equal_runs(whole, tmp_path)


def test_interrupt_saves_like_sigterm(environment, tmp_path, with_interrupts):
  said = _stopped(environment, tmp_path, signal.SIGINT, status=130)
  assert said.count("interrupted: the run ends after this step") == 1
  step = len(whole_runs.rows(tmp_path)) - 1
  assert f"stopped after step {step}; the same command" in said
  assert (tmp_path / "checkpoints" / str(step)).is_dir()


def _stopped(environment, workdir, number, *, status) -> str:
  """Stops a run in its first step; returns what it said."""
  process = whole_runs.start(environment, workdir)
  whole_runs.wait_for("first_step", workdir, process)
  # Twice, as a terminal and a process between may send it.
  process.send_signal(number)
  process.send_signal(number)
  return whole_runs.finish(process, status=status)


def test_sigterm_before_the_first_step_ends_at_once(
  environment, whole, tmp_path
):
  process = whole_runs.start(environment, tmp_path)
  whole_runs.wait_for("first_evaluation", tmp_path, process)
  process.send_signal(signal.SIGTERM)
  assert "nothing to save" in whole_runs.finish(process, status=75)
  assert not (tmp_path / "metrics.jsonl").exists() or not whole_runs.rows(
    tmp_path
  )
  whole_runs.finish(whole_runs.start(environment, tmp_path))
  whole_runs.assert_equal_runs(whole, tmp_path)


@pytest.fixture
def with_interrupts():
  """Undoes that SIGINT is ignored, as a shell's background job has it."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


def test_a_background_job_does_not_hear_of_interrupts(with_interrupts):
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  with command.StopSignal() as stop:
    stop.defer()
    signal.raise_signal(signal.SIGINT)
    assert not stop.is_set


def test_second_interrupt_does_not_wait(with_interrupts):
  with command.StopSignal() as stop:
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    stop.defer()
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert stop.is_set and stop.status == 130
    time.sleep(1.1)
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)


def test_inline_server_gives_the_same_run(environment, whole, tmp_path):
  whole_runs.finish(
    whole_runs.start(environment, tmp_path, rollout__server="inline")
  )
  whole_runs.assert_equal_runs(whole, tmp_path)


def test_finished_run_started_again_changes_nothing(environment, whole):
  before = whole_runs.rows(whole)
  whole_runs.finish(whole_runs.start(environment, whole))
  assert whole_runs.rows(whole) == before


def test_sharded_run_agrees_to_rounding(environment, whole, tmp_path):
  whole_runs.finish(
    whole_runs.start(
      environment, tmp_path, mesh__strategy="sharded", mesh__data=2
    )
  )
  one, other = whole_runs.rows(whole)[1], whole_runs.rows(tmp_path)[1]
  for name in ("reward/total", "update/loss", "update/grad_norm"):
    assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6)


def test_loss_that_is_not_finite_stops_the_run(environment, tmp_path):
  process = whole_runs.start(
    environment, tmp_path, optimizer__learning_rate=1e38
  )
  _, said = process.communicate(timeout=400)
  assert process.returncode == 1
  last = said.strip().splitlines()[-1]
  assert "not finite at step" in last
  assert "Traceback" not in said
  kept = (tmp_path / "warnings.jsonl").read_text().splitlines()
  assert last == f"toolrl-train: {json.loads(kept[-1])['text']}"


def test_sft_lowers_the_loss(environment, tmp_path):
  whole_runs.finish(
    whole_runs.start(
      environment,
      tmp_path,
      algorithm="sft",
      optimizer__learning_rate=1e-3,
      loss__minibatches=1,
    )
  )
  rows = whole_runs.rows(tmp_path)
  assert rows[-1]["update/loss"] < rows[1]["update/loss"]
  assert "heldout/exact_greedy_frac" in rows[-1]
  assert (tmp_path / "export" / "model.safetensors").exists()


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"data__train_path": "nowhere.parquet"}, "nowhere.parquet"),
    ({"data__train_path": "synthetic:none"}, "synthetic"),
    ({"model__path": "nowhere"}, "no checkpoint at 'nowhere'"),
    (
      {"data__max_prompt_tokens": 8, "data__prompt_buckets": (8,)},
      "usable row",
    ),
    ({"reward__name": "n1"}, "gold that is no"),
    ({"model__preset": "tiny"}, "set one of them to ''"),
    (
      {
        "rollout__max_completion_tokens": 100_000,
        "rollout__completion_buckets": (100_000,),
      },
      "must fit the checkpoint's",
    ),
    ({"rollout__group_size": 1}, "at least 2"),
    ({"logging__profile_steps": "3"}, "a:b"),
  ],
)
def test_users_mistake_is_one_line(changes, said, tmp_path, capsys):
  with pytest.raises(SystemExit) as caught:
    train.run(["toolrl-train", *whole_runs.arguments(tmp_path, **changes)])
  assert caught.value.code == 2
  lines = capsys.readouterr().err.strip().splitlines()
  assert lines[-1].startswith("toolrl-train: ")
  assert said in lines[-1]
  assert not any("Traceback" in line for line in lines)


def test_foreign_export_is_refused_before_work(tmp_path, capsys):
  (tmp_path / "export").mkdir()
  (tmp_path / "export" / "notes.txt").write_text("mine")
  with pytest.raises(SystemExit) as caught:
    train.run(["toolrl-train", *whole_runs.arguments(tmp_path)])
  assert caught.value.code == 2
  assert "no exported checkpoint" in capsys.readouterr().err
  assert (tmp_path / "export" / "notes.txt").read_text() == "mine"


def test_folder_of_an_evaluation_is_refused(tmp_path, capsys):
  (tmp_path / "answers").mkdir()
  with pytest.raises(SystemExit) as caught:
    train.run(["toolrl-train", *whole_runs.arguments(tmp_path)])
  assert caught.value.code == 2
  assert "must not be a folder of toolrl-evaluate" in capsys.readouterr().err
  assert not (tmp_path / "config.json").exists()


def test_refused_command_leaves_the_runs_configuration(whole):
  before = (whole / "config.json").read_text()
  with pytest.raises(SystemExit) as caught:
    train.run(
      ["toolrl-train", *whole_runs.arguments(whole, model__path="/nowhere")]
    )
  assert caught.value.code == 2
  assert (whole / "config.json").read_text() == before


def test_resume_with_fewer_steps_still_finishes(environment, whole, tmp_path):
  shutil.copytree(whole / "checkpoints", tmp_path / "checkpoints")
  shutil.rmtree(tmp_path / "checkpoints" / str(whole_runs.NUM_STEPS))
  shutil.copy(whole / "metrics.jsonl", tmp_path)
  whole_runs.finish(
    whole_runs.start(environment, tmp_path, sampler__max_steps=2)
  )
  assert (tmp_path / "summary.json").exists()


def test_second_run_in_a_folder_is_refused(tmp_path, capsys):
  with parts.sole_writer(tmp_path), pytest.raises(SystemExit) as caught:
    train.run(["toolrl-train", *whole_runs.arguments(tmp_path)])
  assert caught.value.code == 2
  said = capsys.readouterr().err
  assert f"another run, process {os.getpid()}, writes to" in said
  assert not (tmp_path / "config.json").exists()


def test_sft_refuses_long_targets_before_work(tmp_path, capsys):
  with pytest.raises(SystemExit) as caught:
    train.run(
      [
        "toolrl-train",
        *whole_runs.arguments(
          tmp_path,
          algorithm="sft",
          rollout__max_completion_tokens=8,
        ),
      ]
    )
  assert caught.value.code == 2
  assert "targets have more tokens than" in capsys.readouterr().err
  assert not (tmp_path / "config.json").exists()


def test_help_says_how(capsys):
  with pytest.raises(SystemExit) as caught:
    command_line.load(["toolrl-train", "--help"], train.USAGE)
  assert caught.value.code == 0
  assert "--workdir" in capsys.readouterr().out
