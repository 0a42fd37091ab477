"""A run killed at random moments, and again while it resumes.

The long form of `test_killed_run_resumes_bit_for_bit` in test_train.py. Its log
stands in docs/kills.md:

    uv run pytest tests/test_kills.py -m slow -n 0 -s
"""

import random
import signal
import sys
import time

import pytest
import whole_runs

# Where kills fall, how many, and seconds at most after that moment.
_MOMENTS = {
  "anywhere": (8, None),
  "in_a_save": (5, 0.05),
  "in_a_benchmark": (4, 0.5),
  "in_the_export": (3, 0.03),
}
# A benchmark in the middle and one at the end of the run.
_CHANGES = {"eval__benchmarks_every_steps": 2}


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_run_killed_at_20_random_moments_equals_the_whole_run(
  tmp_path_factory,
):
  environment = whole_runs.environment(tmp_path_factory.mktemp("cache"))
  whole_runs.finish(
    whole_runs.start(environment, tmp_path_factory.mktemp("first"), **_CHANGES)
  )
  # Again, with the programs compiled: how long a run takes.
  whole = tmp_path_factory.mktemp("whole")
  started = time.monotonic()
  whole_runs.finish(whole_runs.start(environment, whole, **_CHANGES))
  secs = time.monotonic() - started
  sys.stdout.write(f"\nthe whole run takes {secs:.1f} s\n")
  draws = random.Random(0)
  moments = [
    (name, limit)
    for name, (count, limit) in _MOMENTS.items()
    for _ in range(count)
  ]
  assert len(moments) == 20
  for index, (moment, limit) in enumerate(moments):
    workdir = tmp_path_factory.mktemp(f"kill-{index}")
    if limit is None:
      moment = f"row {draws.randint(0, whole_runs.NUM_STEPS)}"
      limit = secs / whole_runs.NUM_STEPS
    delay = draws.uniform(0, limit)
    found = _kill(environment, workdir, moment, delay)
    said = whole_runs.finish(whole_runs.start(environment, workdir, **_CHANGES))
    whole_runs.assert_equal_runs(whole, workdir)
    resumed = [line for line in said.splitlines() if "resumed from" in line]
    sys.stdout.write(
      f"kill {index + 1:2d}  {moment:15s} +{delay:6.3f} s  {found}  then "
      f"{resumed[0].partition(' ')[2] if resumed else 'began anew'}: equal\n"
    )


def _kill(environment, workdir, moment, delay) -> str:
  """Kills a run at a moment; returns what it had written by then."""
  process = whole_runs.start(environment, workdir, **_CHANGES)
  whole_runs.wait_for(moment, workdir, process)
  time.sleep(delay)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  path = workdir / "metrics.jsonl"
  num_rows = path.read_text().count("\n") if path.exists() else 0
  saves = [save.name for save in workdir.glob("checkpoints/*")]
  partial = [name for name in saves if "tmp" in name]
  return (
    f"rows {num_rows}, saves {len(saves) - len(partial)} whole "
    f"{len(partial)} partial, export "
    f"{_state(workdir, 'export')}, benchmark "
    f"{len(list(workdir.glob('benchmarks/*/scores.json')))} of "
    f"{len(list(workdir.glob('benchmarks/*')))} scored"
  )


def _state(workdir, name) -> str:
  if (workdir / f".{name}.partial").exists():
    return "partial"
  return "whole" if (workdir / name).exists() else "none"
