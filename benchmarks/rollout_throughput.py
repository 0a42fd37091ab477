"""Times the rollout through JetStream's driver and through the plain loop.

    taskset -c 1 uv run python benchmarks/rollout_throughput.py

The two serve the same requests alternately in one process, so that a drift of
the machine meets both. The last line is a JSON object: tokens per second of
each (medians), `driver_over_inline` (median of the paired ratios, by the clock
and by CPU seconds, which other processes disturb less), and milliseconds of a
decode iteration and of a prefill by themselves.

The default setting is that of the peers' comparison: a random Qwen2 of 4
layers, width 256, vocabulary 8192, prompts of 1024 tokens, 64 new tokens,
float32.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from toolrl_jax.model import decoder, presets
from toolrl_jax.rollout import collect, decode_loop
from toolrl_jax.rollout import engine as engine_lib


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
  ):
    parser.add_argument(f"--{name}", type=int, default=default)
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


def make_engine(args, config, params) -> engine_lib.RolloutEngine:
  """Returns an engine without stop tokens: every completion has full length."""
  return engine_lib.RolloutEngine(
    config,
    params,
    slots=args.slots,
    group_size=args.group_size,
    decode_chunk=args.decode_chunk,
    refill=args.refill,
  )


def time_rollouts(args, config, params, prompts) -> dict[str, list]:
  """Returns (seconds, CPU seconds) of each repeat, of driver and plain loop."""
  secs: dict[str, list] = {"jetstream": [], "inline": []}
  with (
    collect.start(make_engine(args, config, params), "jetstream") as driver,
    collect.start(make_engine(args, config, params), "inline") as loop,
  ):
    for repeat in range(args.repeats + 1):
      pair = [("jetstream", driver), ("inline", loop)]
      for name, server in pair if repeat % 2 else pair[::-1]:
        start, cpu_start = time.perf_counter(), time.process_time()
        server.rollout(
          prompts,
          group_size=args.group_size,
          max_tokens=args.response_len,
          completion_buckets=(args.response_len,),
          step=repeat,
        )
        secs[name].append(
          (time.perf_counter() - start, time.process_time() - cpu_start)
        )
  # The first one compiles.
  return {name: values[1:] for name, values in secs.items()}


def time_programs(args, config, params, prompt) -> dict[str, float]:
  """Returns milliseconds of one prefill and of one decode iteration."""
  engine = make_engine(args, config, params)
  programs = engine.programs
  state = decode_loop.init_state(
    config,
    slots=args.slots,
    num_banks=engine_lib.num_banks(args.slots, args.group_size, "shared"),
    prompt_size=args.prompt_len,
    completion_size=args.response_len,
    compute_dtype=jnp.dtype(jnp.float32),
  )
  ids, length = prompt[None], np.array([args.prompt_len], np.int32)
  prefix = programs.prefill(params, ids, length)
  prefill_secs = _median_secs(lambda: programs.prefill(params, ids, length))
  state = programs.write_bank(
    state, prefix.k, prefix.v, np.int32(args.prompt_len), np.int32(0)
  )
  decode_secs = []
  for _ in range(4):
    for row in range(args.slots):
      words = np.array([0, 0, 0, row], np.uint32)
      state = programs.start_row(
        state, np.int32(row), np.int32(0), prefix.logits,
        np.int32(args.response_len), np.float32(1), np.uint32(0), words,
      )  # fmt: skip
    jax.block_until_ready(state)
    start = time.perf_counter()
    state, chunk = programs.decode_chunk(
      params, state, np.int32(1), np.int32(args.slots + 1)
    )
    num_iterations = int(jax.block_until_ready(chunk).num_iterations)
    decode_secs.append((time.perf_counter() - start) / num_iterations)
  return {
    "prefill_ms": round(1e3 * prefill_secs, 2),
    "decode_iteration_ms": round(1e3 * statistics.median(decode_secs[1:]), 3),
  }


def _median_secs(call) -> float:
  secs = []
  for _ in range(3):
    start = time.perf_counter()
    jax.block_until_ready(call())
    secs.append(time.perf_counter() - start)
  return statistics.median(secs)


def main() -> None:
  """Runs the setting and prints the JSON line."""
  args = parse_args()
  config = make_config(args)
  params = decoder.init_params(config, jax.random.key(0))
  generator = np.random.default_rng(0)
  prompts = generator.integers(
    0, args.vocab, (args.prompts, args.prompt_len), dtype=np.int32
  )
  times = time_programs(args, config, params, prompts[0])
  secs = time_rollouts(args, config, params, prompts.tolist())
  pairs = list(zip(secs["jetstream"], secs["inline"]))
  ratio, cpu_ratio = (
    statistics.median(inline[clock] / driver[clock] for driver, inline in pairs)
    for clock in (0, 1)
  )
  num_tokens = args.prompts * args.group_size * args.response_len
  per_sec = {
    name: num_tokens / statistics.median(clock for clock, _ in values)
    for name, values in secs.items()
  }
  setting = {
    name: getattr(args, name)
    for name in ("prompts", "group_size", "prompt_len", "response_len", "slots")
  }
  print(
    json.dumps(
      {
        **setting,
        "driver_tokens_per_sec": round(per_sec["jetstream"], 1),
        "inline_tokens_per_sec": round(per_sec["inline"], 1),
        "driver_over_inline": round(ratio, 3),
        "driver_over_inline_cpu": round(cpu_ratio, 3),
        **times,
      }
    )
  )


if __name__ == "__main__":
  main()
