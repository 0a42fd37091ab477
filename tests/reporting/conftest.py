"""Folders of runs, written by the writers that training writes with."""

import json

import numpy as np
import pytest

from configs import tiny
from toolrl_jax import parts, scoring, types
from toolrl_jax.training import completions, groups, metrics

GOLD = types.Gold(
  (
    types.ToolCall("book", {"city": "Oslo", "count": 2}),
    types.ToolCall("pay", {"sum": 5}),
  )
)
# Names 1, keys 1/3 + 1, values 1 + 1: 4.333 of 1 + 2 + 3 points.
HALF_RIGHT = (
  "<think>a</think>\n<tool_call>\n"
  '{"name": "book", "parameters": {"city": "Oslo", "day": 2}}\n'
  '{"name": "pay", "parameters": {"sum": 5}}\n</tool_call>'
)


def row(step: int, **changes: float) -> dict[str, float]:
  """The metrics of a step; round numbers that are easily followed."""
  numbers = {
    "reward/total": step / 10,
    "reward/format": 0.5,
    "reward/correctness": step / 10 - 0.5,
    "reward/length": 0.0,
    "reward/success_frac": 0.25,
    "filter/zero_variance_frac": 0.5,
    "filter/skipped_prompts": 0.0 if step <= 4 else 16.0,
    "sampler/epoch": 0.0 if step <= 4 else 1.0,
    "rollout/length_tokens": 20.0,
    "rollout/prompt_tokens": 100.0,
    "rollout/cut_frac": 0.0,
    "rollout/parse_fail_frac": 0.0,
    "rollout/tool_call_frac": 0.75,
    "rollout/gold_call_frac": 0.75,
    "rollout/logprob_gap_max": 1e-5,
    "rollout/secs": 4.0,
    "reward/secs": 1.0,
    "update/secs": 3.0,
    "update/clip_frac": 0.0,
    "update/is_finite": 1.0,
    "sync/secs": 0.5,
    "step/secs": 10.0,
    "step/compilations": 3.0 if step == 1 else 0.0,
  }
  return numbers | {k.replace("__", "/"): v for k, v in changes.items()}


@pytest.fixture(scope="session")
def write_run(make_rollouts):
  """Writes a run of some steps; returns its folder."""

  def write(
    folder,
    *,
    num_steps=6,
    text=HALF_RIGHT,
    config=None,
    tensorboard=False,
    changes=None,
    example_id="row-1",
  ):
    example = types.Example(example_id, (), (), GOLD)
    options = tiny.get_config().reward.to_dict()
    scored = scoring.parse_and_score([[text]], [GOLD], reward=options)
    zeros = np.zeros((1, 1), np.float32)
    kept = groups.KeptGroups(
      np.zeros((1, 1), np.int32), zeros, zeros, np.array([False])
    )
    samples = completions.samples(
      [example], [[text]], make_rollouts([[3]]), scored, kept, count=1,
      style="toolrl",
    )  # fmt: skip
    writer = metrics.MetricWriter(
      folder, total_steps=num_steps, tensorboard=tensorboard
    )
    with writer:
      writer.truncate_to(-1)
      writer.write(0, {"heldout/exact_greedy_frac": 0.5, "heldout/secs": 30.0})
      for step in range(1, num_steps + 1):
        writer.write_samples(step, samples)
        last = {"heldout/exact_greedy_frac": 0.75, "heldout/secs": 30.0}
        more = last if step == num_steps else {}
        writer.write(step, row(step, **(changes or {}).get(step, {})) | more)
    parts.write_config(config or tiny.get_config(), folder)
    (folder / "summary.json").write_text(json.dumps({"steps": num_steps}))
    return folder

  return write
