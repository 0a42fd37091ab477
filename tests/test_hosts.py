"""Runs of several processes, each with devices of its own, on this machine."""

import os
import shutil
import signal
import socket
import time

import jax
import numpy as np
import pytest
import whole_runs

from toolrl_jax import hosts

# One batch is shorter than the others, so that a process has no group of it.
# A device a process, and parameters spread over them.
_CHANGES = {
  "mesh__strategy": "sharded",
  "mesh__cpu_devices": 1,
  "eval__benchmarks_every_steps": 0,
  "loss__minibatches": 1,
}
# A dead process is noticed within a minute.
_NOTICED_SECS = 60


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
  return whole_runs.environment(tmp_path_factory.mktemp("compilation-cache"))


def _start(environment, workdir, num_processes, **changes):
  """Starts the processes of one run."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  changes = {
    **_CHANGES,
    "mesh__coordinator": f"127.0.0.1:{port}",
    "mesh__num_processes": num_processes,
    **changes,
  }
  return [
    whole_runs.start(
      environment | {"JAX_PROCESS_ID": str(number)}, workdir, **changes
    )
    for number in range(num_processes)
  ]


def _finish(processes, status=0):
  return [whole_runs.finish(process, status) for process in processes]


@pytest.fixture(scope="module")
def alone(environment, tmp_path_factory):
  """One process with one device."""
  workdir = tmp_path_factory.mktemp("alone")
  whole_runs.finish(whole_runs.start(environment, workdir, **_CHANGES))
  return workdir


@pytest.fixture(scope="module")
def pair(environment, tmp_path_factory):
  """Two processes, the parameters split between them."""
  workdir = tmp_path_factory.mktemp("pair")
  _finish(_start(environment, workdir, 2))
  return workdir


def _assert_alike(one, other):
  """The first steps agree to rounding; later a sampled token may turn over."""
  for left, right in zip(whole_runs.rows(one)[:3], whole_runs.rows(other)[:3]):
    assert left.keys() == right.keys()
    for name in ("reward/total", "update/loss", "update/grad_norm"):
      if name in left:
        assert left[name] == pytest.approx(right[name], rel=1e-4, abs=1e-6)
    for name in ("rollout/tokens", "rollout/prefills", "update/tokens"):
      assert left.get(name) == right.get(name)


def test_two_processes_do_what_one_does(alone, pair):
  _assert_alike(alone, pair)
  assert len(whole_runs.rows(pair)) == whole_runs.NUM_STEPS + 1
  assert (pair / "export" / "model.safetensors").is_file()
  # The second process keeps its own files apart; the numbers are equal.
  other = pair / "processes" / "1"
  assert whole_runs.exact(whole_runs.rows(other)) == whole_runs.exact(
    whole_runs.rows(pair)
  )


def test_four_processes_do_what_one_does(environment, alone, tmp_path):
  changes = {"mesh__data": 2, "mesh__fsdp": 2}
  _finish(_start(environment, tmp_path, 4, **changes))
  _assert_alike(alone, tmp_path)


def test_a_killed_process_ends_the_others_and_the_run_goes_on_exactly(
  environment, pair, tmp_path
):
  processes = _start(environment, tmp_path, 2)
  whole_runs.wait_for("row 5", tmp_path, *processes)
  processes[1].send_signal(signal.SIGKILL)
  died = time.monotonic()
  processes[0].communicate(timeout=_NOTICED_SECS)
  assert processes[0].returncode != 0
  assert time.monotonic() - died < _NOTICED_SECS
  processes[1].communicate()
  said = _finish(_start(environment, tmp_path, 2))
  assert all("resumed from the checkpoint" in text for text in said)
  whole_runs.assert_equal_runs(pair, tmp_path)


def test_sigterm_to_one_process_stops_all_at_one_step(
  environment, pair, tmp_path
):
  processes = _start(environment, tmp_path, 2)
  whole_runs.wait_for("row 2", tmp_path, *processes)
  processes[1].send_signal(signal.SIGTERM)
  said = _finish(processes, status=75)
  assert all("the same command resumes the run" in text for text in said)
  # What two processes saved, one with other devices reads.
  changes = {**_CHANGES, "mesh__cpu_devices": 2, "mesh__data": 2}
  assert "resumed from the checkpoint" in whole_runs.finish(
    whole_runs.start(environment, tmp_path, **changes)
  )
  one, other = whole_runs.rows(pair)[-1], whole_runs.rows(tmp_path)[-1]
  assert one["step"] == other["step"] == whole_runs.NUM_STEPS


def test_damage_that_one_process_meets_sends_all_one_step_back(
  environment, pair, tmp_path
):
  shutil.copytree(pair, tmp_path, dirs_exist_ok=True)
  (tmp_path / "summary.json").unlink()
  newest = max(int(path.name) for path in tmp_path.glob("checkpoints/[0-9]*"))
  # What the second process wrote, and reads.
  parts = list(tmp_path.glob(f"checkpoints/{newest}/state/ocdbt.process_1/d/*"))
  assert parts
  for part in parts:
    part.write_bytes(b"")
  said = _finish(_start(environment, tmp_path, 2))
  assert all(f"checkpoint {newest} cannot be read" in text for text in said)
  assert "process 1 cannot" in said[0]
  assert all("resumed from the checkpoint" in text for text in said)
  whole_runs.assert_equal_runs(pair, tmp_path)


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"mesh__process_id": 2}, "process_id must be in [0, 2)"),
    ({"mesh__strategy": "pmap"}, 'strategy "pmap" is for one process'),
    ({"mesh__tensor": 2}, "must divide the 1 devices of a host"),
  ],
)
def test_a_mistake_is_one_line_in_every_process(
  environment, tmp_path, changes, said
):
  processes = _start(environment, tmp_path, 2, **changes)
  for process in processes:
    _, text = process.communicate(timeout=200)
    assert process.returncode == 2, text
    assert said in text.strip().splitlines()[-1]
    assert "Traceback" not in text


@pytest.mark.quick
def test_one_process_is_the_trivial_case():
  assert hosts.count() == 1 and hosts.is_first()
  assert hosts.own_rows(5) == slice(0, 5)
  rows = {"a": np.arange(6).reshape(3, 2)}
  assert hosts.gather_rows(rows, 3) is rows
  np.testing.assert_array_equal(hosts.gather([1, True]), [[1, 1]])
  x = jax.numpy.arange(4)
  np.testing.assert_array_equal(hosts.fetch(x), np.arange(4))


@pytest.mark.quick
def test_shares_are_contiguous_and_whole(monkeypatch):
  for num_processes in (1, 2, 3, 7):
    monkeypatch.setattr(jax, "process_count", lambda n=num_processes: n)
    for num_rows in (0, 1, 5, 7, 16):
      taken = []
      for number in range(num_processes):
        monkeypatch.setattr(jax, "process_index", lambda n=number: n)
        taken += range(num_rows)[hosts.own_rows(num_rows)]
      assert taken == list(range(num_rows))


@pytest.mark.quick
def test_a_process_number_comes_from_the_environment(monkeypatch):
  monkeypatch.delenv("JAX_PROCESS_ID", raising=False)
  with pytest.raises(ValueError, match="JAX_PROCESS_ID"):
    hosts.connect("127.0.0.1:1", 2, -1)
  monkeypatch.setenv("JAX_PROCESS_ID", "two")
  with pytest.raises(ValueError, match="'two'"):
    hosts.connect("127.0.0.1:1", 2, -1)
  assert "JAX_PROCESS_ID" in os.environ
