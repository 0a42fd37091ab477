"""The bare floor: one GRPO step in plain JAX, with nothing around it.

Started by `benchmarks/step_time.py` in our environment, but without anything
of toolrl_jax:

    python benchmarks/peers/floor_step.py --core=1 ...

Reads one line from standard input for each step to run and answers with one
line of JSON on standard output. One prompt, completions of one exact length,
the prompt computed once in rollout and update; attention of the completions
split into scores over the prompt and over themselves, without a mask over
both. No stop tokens, driver, text, reward, metrics or checks: what is left is
what the arithmetic costs on this core.

With A drawn and r the ratio of the policy to itself before the update, the
loss is -mean(min(r A, clip(r, 0.8, 1.2) A)) over all completion tokens; AdamW
follows, without decay. Read it for that; it is no design to follow.
"""

import argparse
import functools
import json
import os
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_FLAGS = (
  "layers", "width", "ffn", "vocab", "heads", "kv_heads", "head_dim",
  "prompt_len", "max_prompt_len", "response_len", "group_size", "core",
)  # fmt: skip
# Rows of the prompt whose scores are made at a time: keys after them are left
# out, so that little of the upper triangle is computed.
_BLOCK_ROWS = 256
_ROPE_BASE = 1e6
_NORM_EPS = 1e-6
_LEARNING_RATE, _B1, _B2, _ADAM_EPS = 1e-6, 0.9, 0.999, 1e-8


class Sizes(NamedTuple):
  """Static sizes, named as the flags."""

  layers: int
  width: int
  ffn: int
  vocab: int
  heads: int
  kv_heads: int
  head_dim: int
  prompt_len: int
  response_len: int
  group_size: int


# ----- the decoder -----


def init_params(sizes, key):
  """Draws the parameters; those of the layers are stacked."""
  inner, outer = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
  shapes = {
    "q": (sizes.width, inner),
    "k": (sizes.width, outer),
    "v": (sizes.width, outer),
    "o": (inner, sizes.width),
    "gate": (sizes.width, sizes.ffn),
    "up": (sizes.width, sizes.ffn),
    "down": (sizes.ffn, sizes.width),
  }
  draw = lambda key, shape: 0.02 * jax.random.normal(key, shape)
  keys = jax.random.split(key, len(shapes) + 1)
  layers = {
    name: draw(keys[i], (sizes.layers, *shape))
    for i, (name, shape) in enumerate(shapes.items())
  }
  for name, size in (("q", inner), ("k", outer), ("v", outer)):
    layers[f"{name}_bias"] = jnp.zeros((sizes.layers, size))
  for name in ("attention_norm", "ffn_norm"):
    layers[name] = jnp.ones((sizes.layers, sizes.width))
  return {
    "embedding": draw(keys[-1], (sizes.vocab, sizes.width)),
    "layers": layers,
    "norm": jnp.ones(sizes.width),
  }


def rms_norm(x, scale):
  """Divides by the root mean square and scales."""
  mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(mean_square + _NORM_EPS) * scale


def rotate(x, positions):
  """Turns the halves of each head by the angles of its position."""
  half = x.shape[-1] // 2
  angles = positions[:, None, None] * _ROPE_BASE ** (-jnp.arange(half) / half)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  low, high = x[..., :half], x[..., half:]
  return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def project(sizes, x, layer, positions):
  """Makes queries, keys and values of rows [N, width]."""
  normed = rms_norm(x, layer["attention_norm"])
  linear = lambda name, heads: (
    normed @ layer[name] + layer[f"{name}_bias"]
  ).reshape(-1, heads, sizes.head_dim)
  return (
    rotate(linear("q", sizes.heads), positions) * sizes.head_dim**-0.5,
    rotate(linear("k", sizes.kv_heads), positions),
    linear("v", sizes.kv_heads),
  )


def attend_prompt(sizes, q, k, v):
  """Causal attention inside the prompt, a block of rows at a time."""
  length = q.shape[0]
  q = q.reshape(length, sizes.kv_heads, -1, sizes.head_dim)
  blocks = []
  for begin in range(0, length, _BLOCK_ROWS):
    end = min(begin + _BLOCK_ROWS, length)
    scores = jnp.einsum("qkgd,tkd->kgqt", q[begin:end], k[:end])
    is_seen = jnp.arange(end) <= jnp.arange(begin, end)[:, None]
    weights = jax.nn.softmax(jnp.where(is_seen, scores, -jnp.inf))
    blocks.append(jnp.einsum("kgqt,tkd->qkgd", weights, v[:end]))
  return jnp.concatenate(blocks).reshape(length, -1)


def attend_completions(sizes, q, prompt_kv, own_kv, is_seen):
  """Attention of completions [n, T] over the prompt and over themselves."""
  (prompt_k, prompt_v), (own_k, own_v) = prompt_kv, own_kv
  length = prompt_k.shape[0]
  q = q.reshape(*q.shape[:2], sizes.kv_heads, -1, sizes.head_dim)
  own = jnp.einsum("nqkgd,ntkd->nkgqt", q, own_k)
  scores = jnp.concatenate(
    [
      jnp.einsum("nqkgd,tkd->nkgqt", q, prompt_k),
      jnp.where(is_seen, own, -jnp.inf),
    ],
    axis=-1,
  )
  weights = jax.nn.softmax(scores)
  mixed = jnp.einsum("nkgqt,tkd->nqkgd", weights[..., :length], prompt_v)
  mixed += jnp.einsum("nkgqt,ntkd->nqkgd", weights[..., length:], own_v)
  return mixed.reshape(-1, sizes.heads * sizes.head_dim)


def finish_layer(x, mixed, layer):
  """Adds attention's output, then the feed-forward block."""
  x = x + mixed @ layer["o"]
  normed = rms_norm(x, layer["ffn_norm"])
  gated = jax.nn.silu(normed @ layer["gate"]) * (normed @ layer["up"])
  return x + gated @ layer["down"]


# ----- rollout -----


def prefill(sizes, params, prompt_ids):
  """Returns the last logits, and keys and values of every layer."""
  positions = jnp.arange(sizes.prompt_len, dtype=jnp.float32)

  def run_layer(x, layer):
    q, k, v = project(sizes, x, layer, positions)
    return finish_layer(x, attend_prompt(sizes, q, k, v), layer), (k, v)

  x = params["embedding"][prompt_ids]
  x, cache = jax.lax.scan(run_layer, x, params["layers"])
  return logits(params, x[-1:]), cache


def logits(params, x):
  """Scores of all tokens, with the tied embedding."""
  return rms_norm(x, params["norm"]) @ params["embedding"].T


def sample(token_logits, key):
  """Draws a token of every row by its cumulative probability."""
  logprobs = jax.nn.log_softmax(token_logits)
  cumulative = jnp.cumsum(jnp.exp(logprobs), axis=-1)
  drawn = jax.random.uniform(key, (len(token_logits), 1))
  tokens = jnp.sum(cumulative <= drawn, axis=-1)
  tokens = jnp.minimum(tokens, token_logits.shape[-1] - 1)
  return tokens, jnp.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]


@functools.partial(jax.jit, static_argnums=0)
def rollout(sizes, params, prompt_ids, key):
  """Samples the completions; returns ids and log-probabilities, [n, T]."""
  first, prompt_cache = prefill(sizes, params, prompt_ids)
  size = sizes.group_size
  shape = (sizes.layers, size, sizes.response_len, sizes.kv_heads)
  own = jnp.zeros((*shape, sizes.head_dim))

  def run_layer(x, scanned, time_index):
    layer, prompt_kv, own_k, own_v = scanned
    positions = jnp.full(size, sizes.prompt_len + time_index, jnp.float32)
    q, k, v = project(sizes, x, layer, positions)
    own_k, own_v = (
      own_k.at[:, time_index].set(k),
      own_v.at[:, time_index].set(v),
    )
    mixed = attend_completions(
      sizes, q[:, None], prompt_kv, (own_k, own_v),
      jnp.arange(sizes.response_len) <= time_index,
    )  # fmt: skip
    return finish_layer(x, mixed, layer), (own_k, own_v)

  def decode(carry, time_index):
    token_logits, own_k, own_v = carry
    tokens, logprobs = sample(token_logits, jax.random.fold_in(key, time_index))
    x, (own_k, own_v) = jax.lax.scan(
      functools.partial(run_layer, time_index=time_index),
      params["embedding"][tokens],
      (params["layers"], prompt_cache, own_k, own_v),
    )
    return (logits(params, x), own_k, own_v), (tokens, logprobs)

  start = (jnp.broadcast_to(first, (size, sizes.vocab)), own, own)
  times = jnp.arange(sizes.response_len)
  _, (tokens, logprobs) = jax.lax.scan(decode, start, times)
  return tokens.T, logprobs.T


# ----- update -----


def completion_logprobs(sizes, params, prompt_ids, tokens):
  """Scores the completions with one copy of the prompt, [n, T]."""
  length, (size, steps) = sizes.prompt_len, tokens.shape
  later = jnp.tile(jnp.arange(length, length + steps), size)
  positions = jnp.concatenate([jnp.arange(length), later]).astype(jnp.float32)
  is_seen = jnp.tril(jnp.ones((steps, steps), bool))
  grouped = lambda x: x[length:].reshape(size, steps, *x.shape[1:])

  def run_layer(x, layer):
    q, k, v = project(sizes, x, layer, positions)
    mixed = jnp.concatenate(
      [
        attend_prompt(sizes, q[:length], k[:length], v[:length]),
        attend_completions(
          sizes, grouped(q), (k[:length], v[:length]),
          (grouped(k), grouped(v)), is_seen,
        ),
      ]
    )  # fmt: skip
    return finish_layer(x, mixed, layer), None

  x = params["embedding"][jnp.concatenate([prompt_ids, tokens.ravel()])]
  x, _ = jax.lax.scan(run_layer, x, params["layers"])
  # A token is told by the row before it; the first one by the prompt's last.
  last = jnp.broadcast_to(x[length - 1], (size, 1, sizes.width))
  before = jnp.concatenate([last, grouped(x)[:, :-1]], axis=1)
  scores = jax.nn.log_softmax(logits(params, before))
  return jnp.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def update(sizes, state, prompt_ids, tokens, old_logprobs, advantage):
  """Takes one AdamW step."""

  def loss(params):
    logprobs = completion_logprobs(sizes, params, prompt_ids, tokens)
    ratio = jnp.exp(logprobs - old_logprobs)
    gain = ratio * advantage[:, None]
    clipped = jnp.clip(ratio, 0.8, 1.2) * advantage[:, None]
    return -jnp.mean(jnp.minimum(gain, clipped))

  params, mean, square, count = state
  value, gradient = jax.value_and_grad(loss)(params)
  count = count + 1
  mean = jax.tree.map(lambda m, g: _B1 * m + (1 - _B1) * g, mean, gradient)
  square = jax.tree.map(
    lambda s, g: _B2 * s + (1 - _B2) * g * g, square, gradient
  )
  unbias_mean, unbias_square = 1 - _B1**count, 1 - _B2**count
  params = jax.tree.map(
    lambda p, m, s: (
      p
      - _LEARNING_RATE
      * (m / unbias_mean)
      / (jnp.sqrt(s / unbias_square) + _ADAM_EPS)
    ),
    params,
    mean,
    square,
  )
  return (params, mean, square, count), value


# ----- steps -----


def take_step(sizes, state, prompt_ids, key):
  """Takes a step; returns the state and the seconds."""
  start, cpu_start = time.perf_counter(), time.process_time()
  tokens, logprobs = jax.block_until_ready(
    rollout(sizes, state[0], prompt_ids, key)
  )
  rollout_end = time.perf_counter()
  # Seven different rewards, centred and scaled, for any size of group.
  reward = np.arange(sizes.group_size, dtype=np.float32) % 7
  advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
  state, value = update(sizes, state, prompt_ids, tokens, logprobs, advantage)
  jax.block_until_ready(state)
  end = time.perf_counter()
  if not np.isfinite(float(value)):
    raise ValueError(f"the loss must be finite, got {value}.")
  return state, {
    "step_secs": end - start,
    "rollout_secs": rollout_end - start,
    "update_secs": end - rollout_end,
    "cpu_secs": time.process_time() - cpu_start,
  }


def main():
  """Takes a step for each line that comes in."""
  parser = argparse.ArgumentParser()
  for name in _FLAGS:
    parser.add_argument(f"--{name}", type=int, required=True)
  options = parser.parse_args()
  for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {options.core})
  sizes = Sizes(**{name: getattr(options, name) for name in Sizes._fields})
  params = init_params(sizes, jax.random.key(0))
  zeros = jax.tree.map(jnp.zeros_like, params)
  state = (params, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros(()))
  random = np.random.default_rng(0)
  number = 0
  while sys.stdin.readline():
    number += 1
    prompt_ids = random.integers(sizes.vocab, size=sizes.prompt_len)
    state, record = take_step(
      sizes, state, prompt_ids.astype(np.int32), jax.random.key(number)
    )
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
  main()
