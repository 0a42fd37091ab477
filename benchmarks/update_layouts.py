"""Times the update with and without what it leaves out.

    taskset -c 1 uv run python benchmarks/update_layouts.py

The bundled model on random groups of unequal length: the prompt repeated or
shared, tokens padded or packed, all 8 rollouts or 4 of them, all groups or
half of them without contrast. A line a variant; the last line is a JSON object
with processor milliseconds an update (medians), real and computed tokens.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from toolrl_jax.model import weights
from toolrl_jax.training import state, step, update
from toolrl_jax.types import UpdateBatch

_REPEATED, _PADDED = {"layout": "repeated"}, {"is_packed": False}
# Name, rollouts updated, share of groups with contrast, options.
_VARIANTS = (
  ("repeated, all updated, padded", 8, 1.0, _REPEATED | _PADDED),
  ("repeated, all updated", 8, 1.0, _REPEATED),
  ("shared, all updated, padded", 8, 1.0, _PADDED),
  ("shared, all updated", 8, 1.0, {}),
  ("shared, half kept, padded", 4, 1.0, _PADDED),
  ("shared, half kept", 4, 1.0, {}),
  ("shared, half kept, half of the groups flat", 4, 0.5, {}),
)


def parse_args() -> argparse.Namespace:
  """Reads the setting from the command line."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  for name, default in (
    ("groups", 8),
    ("prompt_bucket", 160),
    ("completion_bucket", 56),
    ("repeats", 5),
  ):
    parser.add_argument(f"--{name}", type=int, default=default)
  return parser.parse_args()


def make_batch(args, kept: int, contrast: float) -> UpdateBatch:
  """Draws groups: prompts of 56 to 84 % of their bucket, answers of 27 to 80."""
  rng = np.random.default_rng(0)
  size, length = args.prompt_bucket, args.completion_bucket
  prompt_length = rng.integers(int(0.56 * size), int(0.84 * size), args.groups)
  lengths = rng.integers(
    int(0.27 * length), int(0.8 * length), (args.groups, kept)
  )
  mask = np.arange(length) < lengths[..., None]
  draw = lambda shape: rng.integers(1, 1000, shape).astype(np.int32)
  zeros = np.zeros(mask.shape, np.float32)
  advantage = rng.normal(size=lengths.shape).astype(np.float32)
  advantage[round(args.groups * contrast) :] = 0
  return UpdateBatch(
    prompt_ids=draw((args.groups, size))
    * (np.arange(size) < prompt_length[:, None]),
    prompt_length=prompt_length.astype(np.int32),
    completion_ids=draw(mask.shape) * mask,
    completion_mask=mask,
    old_logprobs=zeros,
    rollout_logprobs=zeros,
    reference_logprobs=zeros,
    advantage=advantage,
    weight=np.ones(lengths.shape, np.float32),
  )


def time_variant(args, config, params, kept, contrast, options) -> dict:
  """Returns the processor milliseconds and the tokens of an update."""
  fns = update.make_update_fns(
    config,
    state.make_optimizer(1e-4),
    options=step.UpdateOptions(
      remat="none", max_tokens=args.completion_bucket, **options
    ),
    strategy="pmap",
    devices=jax.devices()[:1],
  )
  batch = make_batch(args, kept, contrast)
  current, row = fns.update(fns.init(jax.tree.map(jnp.array, params)), batch)
  millis = []
  for _ in range(args.repeats):
    start = time.process_time()
    current, row = fns.update(current, batch)
    millis.append(1e3 * (time.process_time() - start))
  return {
    "ms": round(statistics.median(millis), 1),
    "tokens": row["update/tokens"],
    "computed": row["update/padded_tokens"],
  }


def main() -> None:
  """Times every variant and prints the JSON line."""
  args = parse_args()
  jax.config.update("jax_platforms", "cpu")
  config, params = weights.load("bundled:tiny")
  found = {}
  for name, kept, contrast, options in _VARIANTS:
    found[name] = time_variant(args, config, params, kept, contrast, options)
    print(f"{name:44}{found[name]}")
  print(json.dumps(found))


if __name__ == "__main__":
  main()
