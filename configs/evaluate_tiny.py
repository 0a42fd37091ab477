r"""Scores the bundled tiny model on generated rows, offline, in two minutes.

    uv run toolrl-evaluate --config=configs/evaluate_tiny.py --workdir=/tmp/scores

A trained run of configs/tiny.py is scored beside it with

    --config.model.path=/tmp/tiny/export

All values are our choice: the generated rows are no public benchmark.
"""

from configs import tiny


def get_config():
  """Returns the recipe."""
  config = tiny.get_config()
  config.mesh.cpu_devices = 1
  config.rollout.slots = 64
  config.benchmark.names = ("rows",)
  config.benchmark.seeds = (0, 1, 2)
  return config
