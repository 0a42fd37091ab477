"""Runs of the command toolrl-train in processes of their own, and their files."""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import safetensors.numpy

from configs import common
from toolrl_jax.training import metrics

NUM_STEPS = 6
SETTINGS = {
  "model.path": "bundled:tiny",
  "model.compute_dtype": "float32",
  "model.remat": "none",
  "data.train_path": "synthetic:16",
  "data.eval_path": "synthetic:8",
  "data.max_prompt_tokens": 192,
  "data.prompt_buckets": (192,),
  "prompt.template": "native",
  "sampler.prompts_per_step": 3,
  "sampler.num_epochs": 4,
  "sampler.max_steps": NUM_STEPS,
  "sampler.streak": 1,
  "rollout.group_size": 4,
  "rollout.max_completion_tokens": 48,
  "rollout.completion_buckets": (48,),
  "rollout.slots": 8,
  "rollout.decode_chunk": 8,
  "selection.keep": 2,
  "optimizer.learning_rate": 1e-3,
  "loss.minibatches": 2,
  "mesh.strategy": "pmap",
  "mesh.cpu_devices": 2,
  "checkpoint.every_steps": 2,
  "eval.every_steps": 3,
  # Conversations of a benchmark do not disturb the exact resume.
  "eval.benchmarks_every_steps": 4,
  "benchmark.names": ("rows",),
  "benchmark.max_items": 6,
  "logging.samples_per_step": 2,
}


def arguments(workdir, **changes) -> list[str]:
  fields = SETTINGS | {k.replace("__", "."): v for k, v in changes.items()}
  return [
    f"--config={pathlib.Path(common.__file__)}",
    *(f"--config.{name}={value}" for name, value in fields.items()),
    f"--workdir={workdir}",
  ]


def environment(cache) -> dict[str, str]:
  """Environment of the started runs: one compilation cache for all."""
  return os.environ | {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(cache),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }


def start(environment, workdir, **changes) -> subprocess.Popen:
  """Starts a run with some fields changed, "." written as "__"."""
  return subprocess.Popen(
    [sys.executable, "-m", "toolrl_jax.train", *arguments(workdir, **changes)],
    env=environment,
    stderr=subprocess.PIPE,
    text=True,
  )


def wait_for(moment, workdir, *processes) -> None:
  """Waits for a moment of a run, looking every few milliseconds."""
  deadline = time.monotonic() + 300
  while time.monotonic() < deadline:
    for process in processes:
      if process.poll() is not None:
        said = process.communicate()[1]
        raise AssertionError(f"ended before {moment}: {said}")
    if _has_come(moment, workdir):
      return
    time.sleep(0.002)
  raise AssertionError(f"the run never came to {moment}")


def _has_come(moment, workdir) -> bool:
  path = workdir / "metrics.jsonl"
  num_rows = path.read_text().count("\n") if path.exists() else 0
  if moment.startswith("row "):
    return num_rows >= int(moment.removeprefix("row "))
  match moment:
    case "first_evaluation":
      return (workdir / "config.json").exists()
    case "first_step":
      return num_rows >= 2
    case "later_step":
      return num_rows >= 5
    case "in_a_save":
      saves = (workdir / "checkpoints").glob("*tmp*")
      return num_rows >= 4 and any(saves)
    case "in_a_benchmark":
      return any((workdir / "benchmarks").glob("*/answers/*"))
    case "in_the_export":
      return (workdir / ".export.partial").is_dir()
  raise ValueError(moment)


def finish(process, status=0) -> str:
  """Waits for the end of a run; returns what it said."""
  _, said = process.communicate(timeout=400)
  assert process.returncode == status, said
  return said


def rows(workdir) -> list[dict]:
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def exact(of_rows) -> list[dict]:
  """Metrics without those that depend on the machine's speed."""
  return [
    {
      name: value
      for name, value in row.items()
      if not name.endswith(metrics.MACHINE_DEPENDENT)
    }
    for row in of_rows
  ]


def _weights(workdir) -> dict[str, np.ndarray]:
  return safetensors.numpy.load_file(workdir / "export" / "model.safetensors")


def assert_equal_runs(one, other):
  assert exact(rows(one)) == exact(rows(other))
  assert (one / "samples.jsonl").read_text() == (
    other / "samples.jsonl"
  ).read_text()
  left, right = _weights(one), _weights(other)
  assert left.keys() == right.keys()
  for name in left:
    assert left[name].tobytes() == right[name].tobytes(), name
