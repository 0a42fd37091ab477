r"""How far the tiny model's score moves when only the way of asking changes.

    uv run toolrl-evaluate --config=configs/sensitivity.py --workdir=/tmp/study

Template x thinking x system under three seeds on generated rows, offline. For
a real model name its folder, its benchmark and longer limits:

    --config.model.path=Qwen3-4B --config.benchmark.names="('bfcl',)" \
    --config.sensitivity.base=...

All values are our choice; the axes are those of arXiv:2606.00135, section 3.
"""

from configs import evaluate_tiny


def get_config():
  """Returns the recipe."""
  config = evaluate_tiny.get_config()
  # Room for the longer system text.
  config.data.max_prompt_tokens = 1408
  config.data.prompt_buckets = (160, 640, 1408)
  config.rollout.max_completion_tokens = 96
  config.rollout.completion_buckets = (96,)
  config.data.eval_path = "synthetic:256"
  config.sensitivity.templates = ("native", "context", "toolrl")
  config.sensitivity.thinking = ("official", "drop")
  config.sensitivity.systems = ("default", "stronger")
  return config
