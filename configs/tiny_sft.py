r"""Supervised warm start of the bundled tiny model, on generated demonstrations.

    toolrl-train --config=configs/tiny_sft.py --workdir=/tmp/tiny_sft

Makes the weights in toolrl_jax/assets/tiny from random ones; the export of the
run is what is bundled. The tokenizer there comes first, from
benchmarks/make_tiny_tokenizer.py. All values are our choice.

3000 steps; took 38 minutes on one core shared with other work. Held-out (512
items) after the clean part, at step 2500: exact 0.77 greedy, 0.72 sampled; at
the end, after the faulty part: 0.63 greedy, 0.42 sampled, right refusals 0.93
sampled. On 1800 other held-out items: 0.63 greedy, 0.37 sampled, 0.98 parsable.
"""

from configs import common


def get_config():
  """Returns the recipe."""
  config = common.get_config()
  config.algorithm = "sft"
  config.model.preset = "tiny"
  config.model.tokenizer = "bundled:tiny"
  config.model.compute_dtype = "float32"
  config.model.remat = "none"
  # Right targets first, partly faulty ones at the end (data/synthetic.py), so
  # the order matters: the model learns form, copying and when to refuse, and
  # keeps room to improve.
  config.data.train_path = "synthetic:48000"
  config.data.eval_path = "synthetic:512"
  config.data.max_prompt_tokens = 160
  config.data.prompt_buckets = (144, 160)
  config.prompt.template = "native"
  config.sampler.prompts_per_step = 16
  config.sampler.num_epochs = 1
  config.sampler.shuffle = False
  config.rollout.max_completion_tokens = 56
  config.rollout.completion_buckets = (56,)
  config.reward.no_call = "match"
  config.optimizer.learning_rate = 3e-3
  config.optimizer.warmup_steps = 50
  config.optimizer.schedule = "linear"
  config.optimizer.b2 = 0.98
  config.optimizer.weight_decay = 0.01
  config.mesh.strategy = "pmap"
  config.mesh.cpu_devices = 2
  config.checkpoint.every_steps = 500
  config.checkpoint.keep_best = 0
  config.eval.every_steps = 500
  return config
