"""A trace of the steps that were asked for."""

import jax.numpy as jnp
import pytest

from toolrl_jax.training import metrics, profile, step_metrics


def test_parse_steps_reads_a_range():
  assert profile.parse_steps("2:3") == (2, 3)
  assert profile.parse_steps("") is None


@pytest.mark.parametrize("text", ["3", "3:2", "0:1", "a:b", "1:2:3"])
def test_parse_steps_refuses(text):
  with pytest.raises(ValueError, match="a:b"):
    profile.parse_steps(text)


def test_step_profiler_traces_once(tmp_path):
  with profile.StepProfiler((2, 2), tmp_path / "profile") as profiler:
    for step in (1, 2, 3):
      profiler.begin(step)
      jnp.ones(3).sum().block_until_ready()
      # The trace is written when the step after its last begins.
      assert len(list(tmp_path.rglob("*.xplane.pb"))) == (step > 2)
    profiler.begin(2)  # A second time it traces nothing.
  assert len(list(tmp_path.rglob("*.xplane.pb"))) == 1


def test_stages_of_a_step_are_regions_of_the_trace(tmp_path):
  with profile.StepProfiler((1, 1), tmp_path / "profile") as profiler:
    profiler.begin(1)
    clock = step_metrics.Clock(metrics.CompilationCounter())
    for stage in ("rollout", "reward", "update"):
      clock.begin(stage)
      jnp.ones(3).sum().block_until_ready()
    row = clock.metrics()
  assert {"rollout/secs", "reward/secs", "update/secs"} <= row.keys()
  stages = sum(row[f"{name}/secs"] for name in ("rollout", "reward", "update"))
  assert 0 < stages <= row["step/secs"]
  (trace,) = tmp_path.rglob("*.xplane.pb")
  found = trace.read_bytes()
  assert all(name in found for name in (b"rollout", b"reward", b"update"))
