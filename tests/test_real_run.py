"""Two GRPO steps of a real Qwen on real ToolRL rows, through the command."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from toolrl_jax.model import weights


@pytest.mark.real_weights
@pytest.mark.timeout(3600)
def test_two_grpo_steps_change_the_weights(
  request, root_dir, shared_dir, tmp_path
):
  source = pathlib.Path(request.config.getoption("--real-weights"))
  done = subprocess.run(
    [
      sys.executable,
      "-m",
      "toolrl_jax.train",
      "--config=configs/toolrl_qwen25_1p5b.py",
      f"--workdir={tmp_path}",
      f"--config.model.path={source}",
      "--config.model.compute_dtype=float32",
      f"--config.data.train_path={shared_dir / 'data/toolrl/test.parquet'}",
      "--config.data.eval_path=",
      # In 64 tokens this model, untrained in the format, earns the same reward
      # in every rollout (tried: the ToolRL layout, too). The entropy term of
      # the authors' code then is the whole gradient.
      "--config.prompt.template=native",
      "--config.prompt.completion=native",
      "--config.loss.entropy_coef=0.001",
      "--config.loss.logprob_chunk_tokens=128",
      # One program with the optimizer: no sums of gradients beside it.
      "--config.loss.micro_groups=0",
      "--config.data.max_prompt_tokens=512",
      "--config.data.prompt_buckets=(512,)",
      "--config.sampler.prompts_per_step=2",
      "--config.sampler.max_steps=2",
      "--config.rollout.group_size=4",
      "--config.rollout.slots=8",
      "--config.rollout.max_completion_tokens=64",
      "--config.rollout.completion_buckets=(64,)",
      "--config.loss.minibatches=1",
      "--config.optimizer.learning_rate=1e-5",
      "--config.checkpoint.every_steps=0",
    ],
    cwd=root_dir,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  rows = [
    json.loads(line)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
  ]
  assert [row["step"] for row in rows] == [0, 1, 2]
  assert all(row["update/is_finite"] == 1 for row in rows[1:])
  assert any(row["update/grad_norm"] > 0 for row in rows[1:])
  # Sampler and update agree on real weights, too.
  assert max(row["rollout/logprob_gap_max"] for row in rows[1:]) < 1e-2
  _, before = weights.load(source)
  _, after = weights.load(tmp_path / "export")
  kernel = lambda params: np.asarray(params["layers"]["q_proj"]["kernel"][0])
  assert not np.array_equal(kernel(before), kernel(after))
