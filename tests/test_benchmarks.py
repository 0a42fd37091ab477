"""The step-time benchmark runs, and says what is wrong when it cannot."""

import json
import os
import stat
import subprocess
import sys

import pytest

_TINY = (
  "--layers=1", "--width=32", "--ffn=48", "--vocab=64", "--heads=2",
  "--kv_heads=1", "--head_dim=16", "--prompt_len=12", "--response_len=5",
  "--group_size=2", "--steps=2",
)  # fmt: skip


def _step_time(root_dir, *flags, **environment):
  return subprocess.run(
    [sys.executable, "benchmarks/step_time.py", *_TINY, *flags],
    cwd=root_dir,
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, **environment},
  )


def test_step_time_prints_the_figures_of_our_step(root_dir):
  done = _step_time(root_dir)
  assert done.returncode == 0, done.stderr
  figures = json.loads(done.stdout.splitlines()[-1])
  assert (figures["P"], figures["R"], figures["n"]) == (12, 5, 2)
  assert 0 < figures["ours_secs"] < 60
  parts = figures["ours_rollout_secs"] + figures["ours_update_secs"]
  # Medians of two steps are means, so the parts add up.
  assert parts == pytest.approx(figures["ours_secs"], abs=3e-4)
  assert figures["versions"]["google-jetstream"] == "0.2.2"
  assert "ratio_vs_tunix" not in figures


def test_step_time_names_why_the_peer_cannot_be_installed(root_dir, tmp_path):
  uv = tmp_path / "uv"
  uv.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n")
  uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
  # Away from an environment that an earlier run may have made.
  copy = tmp_path / "benchmarks"
  copy.mkdir()
  script = (root_dir / "benchmarks" / "step_time.py").read_text()
  (copy / "step_time.py").write_text(script)
  done = subprocess.run(
    [sys.executable, str(copy / "step_time.py"), *_TINY, "--peer=tunix"],
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, "PATH": str(tmp_path)},
  )
  assert done.returncode == 1
  assert done.stderr.strip().splitlines()[-1] == (
    "step_time.py: google-tunix==0.1.7 cannot be installed: no such package"
  )
  assert not (tmp_path / ".peers" / "tunix" / "installed.txt").exists()


def test_step_time_refuses_a_core_it_may_not_use(root_dir):
  done = _step_time(root_dir, "--core=999")
  assert done.returncode == 2
  assert "--core must be one of" in done.stderr.splitlines()[-1]
