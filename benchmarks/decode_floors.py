"""Times the decode step against what the machine allows.

    taskset -c 1 uv run python benchmarks/decode_floors.py

A random Qwen2 of 100 million parameters in float32 decodes 1, 4 and 8 rows
through the engine's `generate`, sampling and the host's records included. Beside it, alternately in
the same process, run two floors:

- streaming: one pass over all weights. A dot product of each matrix with
  itself through NumPy's BLAS: it reads every byte once, writes nothing and is
  bound by memory. A plain sum would be the same bytes through a slower loop.
- products: the matrix products of one step, of the same shapes and factors, in
  one jitted program, nothing between them.

The last line is a JSON object. A ratio is floor seconds over our seconds of
one iteration (1 is the floor itself), the median of the paired repeats;
`spread` is the lowest and highest of them. The clock is CPU seconds of the
process, which others on the core disturb less; pin it to one core.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from toolrl_jax.model import decoder, presets
from toolrl_jax.rollout import engine as engine_lib
from toolrl_jax.rollout import inline, request


def parse_args() -> argparse.Namespace:
  """Reads the setting from the command line."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  for name, default in (
    ("layers", 12),
    ("width", 768),
    ("ffn", 2048),
    ("vocab", 32000),
    ("prompt_len", 64),
    ("response_len", 64),
    ("decode_chunk", 16),
    ("repeats", 7),
  ):
    parser.add_argument(f"--{name}", type=int, default=default)
  parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 8])
  return parser.parse_args()


def make_config(args: argparse.Namespace) -> presets.DecoderConfig:
  """Returns the decoder: heads of 64, a third of them key heads."""
  num_heads = args.width // 64
  return presets.DecoderConfig(
    family="qwen2",
    vocab_size=args.vocab,
    width=args.width,
    num_layers=args.layers,
    num_heads=num_heads,
    num_kv_heads=max(1, num_heads // 3),
    head_dim=64,
    ffn_width=args.ffn,
    has_qkv_bias=True,
    is_tied=True,
  )


def matrices(params, config: presets.DecoderConfig) -> list[jax.Array]:
  """Returns each matrix of one decode step as an array of its own.

  The output head comes last; an embedding that is not the head is read for a
  few tokens only and left out.
  """
  layers = params["layers"]
  kernels = [
    module["kernel"][index]
    for index in range(config.num_layers)
    for module in layers.values()
    if "kernel" in module
  ]
  return [*kernels, decoder.head_table(params)]


def make_streaming(weights: list[jax.Array]):
  """Returns a call that reads every weight once."""
  flat = [np.asarray(w).reshape(-1) for w in weights]

  def stream() -> float:
    return sum(float(np.dot(w, w)) for w in flat)

  return stream


def make_products(weights: list[jax.Array], num_rows: int):
  """Returns a call that runs the matrix products of one step."""

  @jax.jit
  def products(inputs, weights):
    outs = [inputs[w.shape[0]] @ w for w in weights[:-1]]
    head = weights[-1]
    return [*outs, jnp.einsum("rd,vd->rv", inputs[head.shape[1]], head)]

  widths = {w.shape[0] for w in weights[:-1]} | {weights[-1].shape[1]}
  inputs = {
    width: jax.random.normal(jax.random.key(width), (num_rows, width))
    for width in widths
  }
  return lambda: jax.block_until_ready(products(inputs, weights))


def make_decode(args, config, params, num_rows: int):
  """Returns a call that decodes all rows and gives seconds an iteration."""
  engine = engine_lib.RolloutEngine(
    config,
    params,
    slots=num_rows,
    group_size=num_rows,
    decode_chunk=args.decode_chunk,
  )
  loop = inline.InlineLoop(engine)
  engine.reserve(
    prompt_size=args.prompt_len,
    completion_size=args.response_len,
    group_size=num_rows,
  )
  secs = [0.0]
  generate = engine.generate

  def timed(*call_args):
    start = time.process_time()
    result = generate(*call_args)
    secs[0] += time.process_time() - start
    return result

  engine.generate = timed
  prompt_ids = np.arange(1, args.prompt_len + 1, dtype=np.int32)

  def decode() -> float:
    secs[0], before = 0.0, engine.ledger.stats.num_iterations
    loop.run(
      [
        request.Group(
          prompt_ids, args.prompt_len, step=0, sample_indices=range(num_rows),
          limit=args.response_len, temperature=1.0,
        )
      ]
    )  # fmt: skip
    return secs[0] / (engine.ledger.stats.num_iterations - before)

  return decode


def seconds(call) -> float:
  """Returns the CPU seconds of a call."""
  start = time.process_time()
  call()
  return time.process_time() - start


def measure(args, config, params, weights, num_rows: int) -> dict:
  """Returns the ratios of one number of rows."""
  stream = make_streaming(weights)
  products = make_products(weights, num_rows)
  decode = make_decode(args, config, params, num_rows)
  rows = []
  for _ in range(args.repeats + 1):
    rows.append(
      (
        decode(),
        statistics.median(seconds(stream) for _ in range(3)),
        statistics.median(seconds(products) for _ in range(5)),
      )
    )
  rows = rows[1:]  # the first one compiles
  ours, streaming, bare = (statistics.median(x) for x in zip(*rows))
  by_streaming = [row[1] / row[0] for row in rows]
  by_products = [row[2] / row[0] for row in rows]
  spread = lambda x: [round(min(x), 3), round(max(x), 3)]
  return {
    "slots": num_rows,
    "tokens_per_sec": round(num_rows / ours, 1),
    "iteration_ms": round(1e3 * ours, 2),
    "streaming_ms": round(1e3 * streaming, 2),
    "products_ms": round(1e3 * bare, 2),
    "of_streaming_floor": round(statistics.median(by_streaming), 3),
    "of_streaming_floor_spread": spread(by_streaming),
    "of_products_floor": round(statistics.median(by_products), 3),
    "of_products_floor_spread": spread(by_products),
  }


def main() -> None:
  """Runs the setting and prints the JSON line."""
  args = parse_args()
  config = make_config(args)
  params = decoder.init_params(config, jax.random.key(0))
  weights = [jnp.array(w) for w in matrices(params, config)]
  num_weights = sum(leaf.size for leaf in jax.tree.leaves(params))
  print(
    json.dumps(
      {
        "million_weights": round(num_weights / 1e6, 1),
        "prompt_len": args.prompt_len,
        "decode_chunk": args.decode_chunk,
        "rows": [
          measure(args, config, params, weights, num_rows)
          for num_rows in args.slots
        ],
      }
    )
  )


if __name__ == "__main__":
  main()
