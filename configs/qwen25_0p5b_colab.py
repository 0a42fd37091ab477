r"""GRPO on Qwen2.5-0.5B-Instruct on one chip of a notebook service.

    toolrl-train --config=configs/qwen25_0p5b_colab.py:gpu --workdir=/tmp/qwen \
      --config.model.path=/data/Qwen2.5-0.5B-Instruct

What follows the colon says what the run has: "tpu" (one chip with 16 GB, or
several), "gpu" (one with 15 GB; a T4 has no bfloat16, later ones run faster
with --config.model.compute_dtype=bfloat16) or "cpu" (two steps that show that
everything works, in 15 GB and some ten minutes). All values are our choice.

Rows are generated, in the ToolRL layout: --config.data.train_path and
eval_path take ToolRL's own parquet files; prompts over 1,024 tokens are left
out of them.
"""

from configs import common


def get_config(platform="gpu"):
  """Returns the recipe for "tpu", "gpu" or "cpu"."""
  if platform not in ("tpu", "gpu", "cpu"):
    raise ValueError(
      f"the recipe is for tpu, gpu or cpu, got {platform!r}; name one behind "
      "the colon."
    )
  config = common.get_config()

  # Given on the command line.
  config.model.path = "Qwen2.5-0.5B-Instruct"
  config.model.compute_dtype = "bfloat16" if platform == "tpu" else "float32"

  # data
  config.data.train_path = "synthetic:1440"
  config.data.eval_path = "synthetic:64"
  config.data.max_prompt_tokens = 1_024
  config.data.prompt_buckets = (512, 640, 1_024)

  # sampler
  config.sampler.prompts_per_step = 16
  config.sampler.num_epochs = 1

  # rollout
  config.rollout.group_size = 8
  config.rollout.max_completion_tokens = 256
  config.rollout.completion_buckets = (128, 256)
  config.rollout.slots = 64 if platform == "tpu" else 32
  # The copy would not fit beside optimizer state and gradients.
  config.rollout.unstack_layers = False

  # reward: a right refusal earns as much as a right call, and a call made
  # twice costs; see configs/tiny.py.
  config.reward.matching = "greedy"
  config.reward.no_call = "match"

  # selection
  config.selection.keep = 4

  # loss
  config.loss.clip_high = 0.28
  # One group at a time, and few logits: 151,936 tokens of vocabulary.
  config.loss.micro_groups = 1
  config.loss.logprob_chunk_tokens = 512

  # optimizer
  config.optimizer.learning_rate = 2e-6
  config.optimizer.warmup_steps = 5

  # checkpoint, eval: a checkpoint takes 6 GB.
  config.checkpoint.every_steps = 30
  config.checkpoint.keep_last = 1
  config.checkpoint.keep_best = 0
  config.eval.every_steps = 15

  if platform == "cpu":
    config.sampler.prompts_per_step = 2
    config.sampler.max_steps = 2
    config.data.eval_path = "synthetic:4"
    config.optimizer.warmup_steps = 0
    config.rollout.group_size = 4
    config.rollout.max_completion_tokens = 64
    config.rollout.completion_buckets = (64,)
    config.rollout.slots = 8
    config.selection.keep = 2
    config.eval.every_steps = 0
    config.eval.sampled = False
  return config
