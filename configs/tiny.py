r"""GRPO on the bundled tiny model and generated tool calls, in minutes on a CPU.

    toolrl-train --config=configs/tiny.py --workdir=/tmp/tiny

Two simulated devices share the groups. All values are our choice; the reward
is ToolRL's, except that a right refusal earns as much as a right call
(`reward.no_call`), so that refusing is not unlearned.
"""

from configs import common


def get_config():
  """Returns the recipe."""
  config = common.get_config()
  config.model.path = "bundled:tiny"
  config.model.compute_dtype = "float32"
  config.model.remat = "none"
  config.data.train_path = "synthetic:1440"
  config.data.eval_path = "synthetic:512"
  config.data.max_prompt_tokens = 160
  config.data.prompt_buckets = (128, 160)
  config.prompt.template = "native"
  config.sampler.prompts_per_step = 16
  config.sampler.num_epochs = 1
  config.sampler.group_lengths = False
  config.rollout.group_size = 8
  config.rollout.max_completion_tokens = 56
  config.rollout.completion_buckets = (56,)
  config.rollout.slots = 128
  # Under "optimal", the paper's sets of names, a call made twice costs nothing,
  # and the model learns to make each call twice.
  config.reward.matching = "greedy"
  config.reward.no_call = "match"
  config.selection.keep = 4
  config.loss.clip_high = 0.28
  # A constant rate of this size wears the model out after some 70 steps.
  config.optimizer.learning_rate = 3e-4
  config.optimizer.warmup_steps = 5
  config.optimizer.schedule = "linear"
  config.optimizer.b2 = 0.98
  config.mesh.strategy = "pmap"
  config.mesh.cpu_devices = 2
  config.checkpoint.every_steps = 40
  config.eval.every_steps = 0
  return config
