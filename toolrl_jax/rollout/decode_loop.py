"""The engine's device programs: prefill a prompt, fill a row, decode a chunk.

From parameters and a `DecodeState` to the next state and the chunk's tokens.
Plain functions; `make_programs` alone compiles them. They know neither
requests nor JetStream.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from toolrl_jax.model import decoder
from toolrl_jax.model.presets import DecoderConfig
from toolrl_jax.rollout import sampling


class DecodeState(NamedTuple):
  """All rows of a decode batch.

  Attributes:
    cache: Keys and values of prompts and decoded tokens.
    logits: Of each row's next token, float32 or wider [R, V].
    num_generated: Tokens each row has generated.
    limit: Most tokens a row may generate.
    temperature: Of each row; 0 is greedy.
    is_done: Rows that have nothing to do: ended or never started.
    keys: Key data of each row's request.
  """

  cache: decoder.DecodeCache
  logits: Float[Array, "R V"]
  num_generated: Int[Array, " R"]
  limit: Int[Array, " R"]
  temperature: Float[Array, " R"]
  is_done: Bool[Array, " R"]
  keys: UInt32[Array, "R 2"]


class Prefix(NamedTuple):
  """A prompt that was run.

  Attributes:
    logits: Of the token after the prompt, [V].
    k: Keys of all layers, [L, 1, P, N, H].
    v: Values of all layers.
  """

  logits: Float[Array, " V"]
  k: Float[Array, "L 1 P N H"]
  v: Float[Array, "L 1 P N H"]


class Chunk(NamedTuple):
  """What one call of `decode_chunk` generated; row r has `num_tokens[r]`.

  Attributes:
    token_ids: int32 [R, K], from the left.
    logprobs: Under the full distribution.
    truncated_logprobs: Under the truncated distribution.
    num_tokens: Tokens of each row in this chunk.
    num_iterations: Loop iterations that ran, at most K.
  """

  token_ids: Int[Array | np.ndarray, "R K"]
  logprobs: Float[Array | np.ndarray, "R K"]
  truncated_logprobs: Float[Array | np.ndarray, "R K"]
  num_tokens: Int[Array | np.ndarray, " R"]
  num_iterations: Int[Array | np.ndarray, ""]


class Programs(NamedTuple):
  """Compiled programs; those that take a state consume it."""

  prefill: Callable[..., Prefix]
  write_bank: Callable[..., DecodeState]
  start_row: Callable[..., DecodeState]
  decode_chunk: Callable[..., tuple[DecodeState, Chunk]]


def init_state(
  config: DecoderConfig,
  *,
  slots: int,
  num_banks: int,
  prompt_size: int,
  completion_size: int,
  compute_dtype: Any,
) -> DecodeState:
  """Returns a state of `slots` idle rows."""
  heads = (config.num_kv_heads, config.head_dim)
  banks = (config.num_layers, num_banks, prompt_size, *heads)
  rows = (config.num_layers, slots, completion_size, *heads)
  # Every leaf is its own buffer: the state is donated, and a buffer can be
  # donated only once.
  ints = lambda size: jnp.zeros(size, jnp.int32)
  wide = jnp.promote_types(compute_dtype, jnp.float32)
  cache = decoder.DecodeCache(
    prefix_k=jnp.zeros(banks, compute_dtype),
    prefix_v=jnp.zeros(banks, compute_dtype),
    prefix_length=ints(num_banks),
    bank=ints(slots),
    k=jnp.zeros(rows, compute_dtype),
    v=jnp.zeros(rows, compute_dtype),
    length=ints(slots),
  )
  return DecodeState(
    cache=cache,
    logits=jnp.zeros((slots, config.vocab_size), wide),
    num_generated=ints(slots),
    limit=ints(slots),
    temperature=jnp.zeros(slots, jnp.float32),
    is_done=jnp.ones(slots, bool),
    keys=jnp.zeros((slots, 2), jnp.uint32),
  )


def prefill(
  params: decoder.Params,
  prompt_ids: Int[Array, "1 P"],
  prompt_length: Int[Array, " 1"],
  *,
  config: DecoderConfig,
  compute_dtype: Any,
) -> Prefix:
  """Runs one prompt."""
  logits, k, v = decoder.prefill(
    params, prompt_ids, prompt_length, config=config,
    compute_dtype=compute_dtype,
  )  # fmt: skip
  return Prefix(logits[0], k, v)


def write_bank(
  state: DecodeState,
  k: Float[Array, "L 1 P N H"],
  v: Float[Array, "L 1 P N H"],
  prompt_length: Int[Array, ""],
  bank: Int[Array, ""],
) -> DecodeState:
  """Copies a prompt's keys and values into a bank of the same width."""
  cache = state.cache
  start = (0, bank, 0, 0, 0)
  cache = cache._replace(
    prefix_k=jax.lax.dynamic_update_slice(cache.prefix_k, k, start),
    prefix_v=jax.lax.dynamic_update_slice(cache.prefix_v, v, start),
    prefix_length=cache.prefix_length.at[bank].set(prompt_length),
  )
  return state._replace(cache=cache)


def start_row(
  state: DecodeState,
  row: Int[Array, ""],
  bank: Int[Array, ""],
  logits: Float[Array, " V"],
  limit: Int[Array, ""],
  temperature: Float[Array, ""],
  seed: UInt32[Array, ""],
  words: UInt32[Array, " 4"],
) -> DecodeState:
  """Starts a request on a row whose prompt stands in a bank."""
  cache = state.cache
  cache = cache._replace(
    bank=cache.bank.at[row].set(bank), length=cache.length.at[row].set(0)
  )
  return DecodeState(
    cache=cache,
    logits=state.logits.at[row].set(logits),
    num_generated=state.num_generated.at[row].set(0),
    limit=state.limit.at[row].set(limit),
    temperature=state.temperature.at[row].set(temperature),
    is_done=state.is_done.at[row].set(False),
    keys=state.keys.at[row].set(sampling.request_key(seed, words)),
  )


def _step(
  params: decoder.Params,
  state: DecodeState,
  num_banks: Int[Array, ""],
  *,
  config: DecoderConfig,
  options: sampling.SamplingOptions,
  compute_dtype: Any,
) -> tuple[DecodeState, sampling.Sample]:
  """Samples a token of every row from its logits and runs it."""
  sample = sampling.sample(
    state.logits, state.keys, state.num_generated, state.temperature,
    options=options,
  )  # fmt: skip
  is_live = ~state.is_done
  token_ids = jnp.where(is_live, sample.token_ids, 0)
  num_generated = state.num_generated + is_live
  is_end = num_generated >= state.limit
  for stop_id in options.stop_ids:
    is_end |= token_ids == stop_id
  # The token that ends a row is run as well: leaving rows out would change
  # the shape of the product.
  logits, cache = decoder.decode(
    params, token_ids, state.cache, is_live, num_banks, config=config,
    compute_dtype=compute_dtype,
  )  # fmt: skip
  state = state._replace(
    cache=cache,
    logits=logits,
    num_generated=num_generated,
    is_done=state.is_done | is_end,
  )
  return state, sample._replace(token_ids=token_ids)


def decode_chunk(
  params: decoder.Params,
  state: DecodeState,
  num_banks: Int[Array, ""],
  refill: Int[Array, ""],
  *,
  config: DecoderConfig,
  options: sampling.SamplingOptions,
  num_steps: int,
  compute_dtype: Any,
) -> tuple[DecodeState, Chunk]:
  """Decodes up to `num_steps` tokens of every live row in one loop.

  Args:
    params: Parameter pytree.
    state: Rows; at least one is live.
    num_banks: Banks in use are below it.
    refill: The loop ends when this many rows have ended in it.
    config: Shape of the decoder.
    options: Truncation, stop tokens.
    num_steps: Most iterations (K).
    compute_dtype: Dtype of the matrix products.

  Returns:
    The state after the chunk, and the chunk.
  """
  params = decoder.unstack_layers(params, config)
  was_done, num_before = state.is_done, state.num_generated
  # The banks stay outside the loop: nothing in it changes them.
  banks = {
    name: getattr(state.cache, name)
    for name in ("prefix_k", "prefix_v", "prefix_length", "bank")
  }
  without = lambda state: state._replace(
    cache=state.cache._replace(**dict.fromkeys(banks))
  )
  within = lambda state: state._replace(cache=state.cache._replace(**banks))

  def is_going(carry):
    index, state, _ = carry
    num_freed = (state.is_done & ~was_done).sum()
    return (index < num_steps) & ~state.is_done.all() & (num_freed < refill)

  def body(carry):
    index, state, columns = carry
    state, sample = _step(
      params, within(state), num_banks, config=config, options=options,
      compute_dtype=compute_dtype,
    )  # fmt: skip
    columns = jax.tree.map(
      lambda column, new: column.at[:, index].set(new.astype(column.dtype)),
      columns, sample,
    )  # fmt: skip
    return index + 1, without(state), columns

  shape = (state.is_done.shape[0], num_steps)
  columns = sampling.Sample(
    jnp.zeros(shape, jnp.int32), jnp.zeros(shape), jnp.zeros(shape)
  )
  num_iterations, state, columns = jax.lax.while_loop(
    is_going, body, (jnp.int32(0), without(state), columns)
  )
  state = within(state)
  num_tokens = state.num_generated - num_before
  return state, Chunk(*columns, num_tokens, num_iterations)


@functools.lru_cache(maxsize=16)
def make_programs(
  config: DecoderConfig,
  options: sampling.SamplingOptions,
  *,
  num_steps: int,
  compute_dtype: Any,
) -> Programs:
  """Compiles the programs of an engine; engines of one shape share them."""
  fixed = {"config": config, "compute_dtype": compute_dtype}
  chunk = functools.partial(
    decode_chunk, options=options, num_steps=num_steps, **fixed
  )
  return Programs(
    prefill=jax.jit(functools.partial(prefill, **fixed)),
    write_bank=jax.jit(write_bank, donate_argnums=0),
    start_row=jax.jit(start_row, donate_argnums=0),
    decode_chunk=jax.jit(chunk, donate_argnums=1),
  )
