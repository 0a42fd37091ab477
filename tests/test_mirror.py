"""A run whose folder lies in storage, seen from machines that come and go."""

import json
import shutil

import pytest
import whole_runs
from etils import epath

from toolrl_jax import command, command_line, mirror, train


@pytest.fixture
def caches(monkeypatch, tmp_path):
  """Where this machine keeps its own side."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  return tmp_path / "cache"


def test_files_come_back_on_a_new_machine(caches, tmp_path):
  remote = epath.Path(tmp_path / "bucket" / "run")
  first = mirror.Mirror(remote)
  first.check()
  assert not list(remote.iterdir())
  first.folder.mkdir(parents=True)
  (first.folder / "metrics.jsonl").write_text('{"step": 1}\n')
  (first.folder / "export").mkdir()
  (first.folder / "export" / "config.json").write_text("{}")
  first.take()
  shutil.rmtree(caches)
  second = mirror.Mirror(remote)
  second.folder.mkdir(parents=True)
  # What lies here and not there is of another time.
  (second.folder / "samples.jsonl").write_text("old\n")
  second.bring()
  assert (second.folder / "metrics.jsonl").read_text() == '{"step": 1}\n'
  assert not (second.folder / "samples.jsonl").exists()
  assert (remote / "export" / "config.json").read_text() == "{}"


def test_runs_in_storage_do_not_share_a_folder(caches, tmp_path):
  one, other = (
    mirror.Mirror(epath.Path(tmp_path / name)).folder for name in ("a", "b")
  )
  assert one != other


def test_a_local_run_has_no_mirror(tmp_path):
  local = mirror.Mirror(tmp_path)
  assert local.folder == tmp_path
  local.check()
  local.bring()
  local.take()
  assert not list(tmp_path.iterdir())


def test_a_run_goes_on_where_only_the_storage_is_left(
  caches, tmp_path, monkeypatch
):
  fields = {"eval__benchmarks_every_steps": 0, "mesh__cpu_devices": 0}
  config, _ = command_line.load(
    ["toolrl-train", *whole_runs.arguments(tmp_path, **fields)], ""
  )
  remote = epath.Path(tmp_path / "bucket" / "run")
  is_stopped = train._is_stopped
  monkeypatch.setattr(
    train, "_is_stopped", lambda run, progress: progress.step == 3
  )
  with pytest.raises(command.ToldToStopError, match="step 3"):
    train.main(config, remote)
  shutil.rmtree(caches)
  monkeypatch.setattr(train, "_is_stopped", is_stopped)
  train.main(config, remote)
  lines = (remote / "metrics.jsonl").read_text().splitlines()
  assert [json.loads(line)["step"] for line in lines] == list(
    range(whole_runs.NUM_STEPS + 1)
  )
  assert json.loads((remote / "summary.json").read_text())["steps"] == (
    whole_runs.NUM_STEPS
  )
  assert (remote / "export" / "model.safetensors").exists()


@pytest.mark.parametrize(
  ("workdir", "said"),
  [
    ("s3://bucket/run", "local folder or gs://BUCKET/FOLDER"),
    ("gs://no-such-bucket-of-toolrl/run", "give this machine access"),
  ],
)
def test_storage_that_cannot_be_written_is_one_line(
  caches, tmp_path, capsys, monkeypatch, workdir, said
):
  # No waiting for a network that is not there.
  monkeypatch.setenv("GCSFS_RETRIES", "1")
  arguments = whole_runs.arguments(tmp_path, mesh__cpu_devices=0)
  arguments[-1] = f"--workdir={workdir}"
  with pytest.raises(SystemExit) as ended:
    train.run(["toolrl-train", *arguments])
  assert ended.value.code == 2
  lines = capsys.readouterr().err.strip().splitlines()
  assert said in lines[-1]
