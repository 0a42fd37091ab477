"""Times the rollout through JetStream's driver and through the plain loop.

    uv run python benchmarks/rollout_throughput.py --peer=tunix

The two serve the same requests alternately in one process on one core, so that
a drift of the machine meets both. The last line is a JSON object: tokens per
second of each (medians), `driver_over_inline` (median of the paired ratios, by
the clock and by CPU seconds, which other processes disturb less), and decode
iterations over the fewest that the lengths allow. What one decode iteration
costs beside its floors, decode_floors.py tells.

With `--peer=tunix` tunix's sampler takes its turn in a process of its own, a
group at a time, and `driver_over_tunix` is the ratio of tokens per second.

The default setting is that of the peers' comparison: a random Qwen2 of 4
layers, width 256, vocabulary 8192, prompts of 1024 tokens, 64 new tokens,
float32.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import time

import jax
import numpy as np
import peer_process

from toolrl_jax.model import decoder, presets
from toolrl_jax.rollout import collect, engine


def parse_args() -> argparse.Namespace:
  """Reads the setting from the command line."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  for name, default in (
    ("layers", 4),
    ("width", 256),
    ("ffn", 768),
    ("vocab", 8192),
    ("prompt_len", 1024),
    ("response_len", 64),
    ("group_size", 8),
    ("prompts", 2),
    ("slots", 8),
    ("decode_chunk", 16),
    ("refill", 4),
    ("repeats", 5),
    ("core", max(os.sched_getaffinity(0))),
  ):
    parser.add_argument(f"--{name}", type=int, default=default)
  parser.add_argument("--peer", choices=("tunix",), help="takes its turn too")
  return parser.parse_args()


def make_config(args: argparse.Namespace) -> presets.DecoderConfig:
  """Returns the decoder of the setting: heads of 64, half of them key heads."""
  num_heads = args.width // 64
  return presets.DecoderConfig(
    family="qwen2",
    vocab_size=args.vocab,
    width=args.width,
    num_layers=args.layers,
    num_heads=num_heads,
    num_kv_heads=max(1, num_heads // 2),
    head_dim=64,
    ffn_width=args.ffn,
    has_qkv_bias=True,
  )


def make_engine(args, config, params) -> engine.RolloutEngine:
  """Returns an engine without stop tokens: every completion has full length."""
  return engine.RolloutEngine(
    config,
    params,
    slots=args.slots,
    group_size=args.group_size,
    decode_chunk=args.decode_chunk,
    refill=args.refill,
  )


def peer_flags(args: argparse.Namespace) -> dict[str, int]:
  """Returns the setting by the names of the peer's command line."""
  config = make_config(args)
  same = ("layers", "width", "ffn", "vocab", "response_len", "group_size")
  return {name: getattr(args, name) for name in (*same, "core")} | {
    "heads": config.num_heads,
    "kv_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    "prompt_len": args.prompt_len,
    "max_prompt_len": args.prompt_len,
    "num_prompts": args.prompts,
  }


def time_rollouts(args, config, params, prompts) -> tuple[dict, int]:
  """Times all in turn; the first repeat compiles and is left out.

  Returns:
    (seconds, CPU seconds) of each repeat by name, and the decode iterations of
    one rollout of the driver.
  """
  secs: dict[str, list] = {"jetstream": [], "inline": []}
  with contextlib.ExitStack() as stack:
    takers = {}
    if args.peer:
      peer = stack.enter_context(
        peer_process.start(args.peer, peer_flags(args))
      )
      secs[args.peer] = []
      takers[args.peer] = lambda repeat: _peer_secs(peer)
    servers = {
      name: stack.enter_context(
        collect.start(make_engine(args, config, params), name)
      )
      for name in ("jetstream", "inline")
    }
    for name, server in servers.items():
      takers[name] = lambda repeat, server=server: _our_secs(
        args, server, prompts, repeat
      )
    for repeat in range(args.repeats + 1):
      names = list(takers) if repeat % 2 else list(takers)[::-1]
      for name in names:
        secs[name].append(takers[name](repeat))
    num_iterations = servers["jetstream"].stats.num_iterations
  return {name: values[1:] for name, values in secs.items()}, num_iterations


def _our_secs(args, server, prompts, repeat) -> tuple[float, float]:
  server.reset_stats()
  start, cpu_start = time.perf_counter(), time.process_time()
  server.rollout(
    prompts,
    group_size=args.group_size,
    max_tokens=args.response_len,
    completion_buckets=(args.response_len,),
    step=repeat,
  )
  return time.perf_counter() - start, time.process_time() - cpu_start


def _peer_secs(peer: peer_process.PeerProcess) -> tuple[float, float]:
  record = peer.take_step()
  return record["step_secs"], record["cpu_secs"]


def figures(
  args: argparse.Namespace, secs: dict[str, list], num_iterations: int
) -> dict[str, float]:
  """Returns tokens per second and their ratios.

  Args:
    args: The setting.
    secs: (seconds, CPU seconds) of each repeat, by name.
    num_iterations: Decode iterations of one rollout of the driver.
  """
  num_completions = args.prompts * args.group_size
  num_tokens = num_completions * args.response_len
  found = {
    f"{'driver' if name == 'jetstream' else name}_tokens_per_sec": round(
      num_tokens / statistics.median(clock for clock, _ in values), 1
    )
    for name, values in secs.items()
  }
  for name in secs:
    if name == "jetstream":
      continue
    for clock, suffix in ((0, ""), (1, "_cpu")):
      found[f"driver_over_{name}{suffix}"] = round(
        statistics.median(
          other[clock] / driver[clock]
          for driver, other in zip(secs["jetstream"], secs[name])
        ),
        3,
      )
  # Every completion has the full length, so full rounds are the least.
  ideal = math.ceil(num_completions / args.slots) * args.response_len
  found["iterations_over_ideal"] = round(num_iterations / ideal, 3)
  return found


def main() -> None:
  """Runs the setting and prints the JSON line."""
  args = parse_args()
  peer_process.pin(args.core)
  jax.config.update("jax_platforms", "cpu")
  config = make_config(args)
  params = decoder.init_params(config, jax.random.key(0))
  generator = np.random.default_rng(0)
  prompts = generator.integers(
    0, args.vocab, (args.prompts, args.prompt_len), dtype=np.int32
  )
  secs, num_iterations = time_rollouts(args, config, params, prompts.tolist())
  setting = {
    name: getattr(args, name)
    for name in ("prompts", "group_size", "prompt_len", "response_len", "slots")
  }
  found = figures(args, secs, num_iterations)
  print(json.dumps({**setting, **found}))


if __name__ == "__main__":
  main()
