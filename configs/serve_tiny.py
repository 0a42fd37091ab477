r"""Serves the bundled tiny model on this machine, for a first try.

    uv run toolrl-serve --config=configs/serve_tiny.py

A trained run of configs/tiny.py is served with

    --config.model.path=/tmp/tiny/export

All values are our choice; docs/serving.md has requests to try.
"""

from configs import tiny


def get_config():
  """Returns the recipe."""
  config = tiny.get_config()
  config.mesh.cpu_devices = 1
  config.data.max_prompt_tokens = 512
  config.data.prompt_buckets = (128, 512)
  config.rollout.slots = 8
  config.rollout.max_completion_tokens = 128
  config.rollout.completion_buckets = (128,)
  # Small, so that a streamed answer comes in many pieces.
  config.rollout.decode_chunk = 4
  return config
