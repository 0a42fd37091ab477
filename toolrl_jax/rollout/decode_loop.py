"""The engine's device programs: fill a bank and a row, decode a chunk.

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
from toolrl_jax.rollout import placement, prompts, sampling


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


class RowCache(NamedTuple):
  """Keys and values of one row.

  Attributes:
    prefix_k: Keys of its prompt, [L, P, N, H].
    prefix_v: Values of its prompt.
    k: Keys of its decoded tokens, [L, T, N, H].
    v: Values of its decoded tokens.
  """

  prefix_k: Float[Array | np.ndarray, "L P N H"]
  prefix_v: Float[Array | np.ndarray, "L P N H"]
  k: Float[Array | np.ndarray, "L T N H"]
  v: Float[Array | np.ndarray, "L T N H"]


class Programs(NamedTuple):
  """Compiled programs; those that return a state consume the one they take."""

  init_state: Callable[..., DecodeState]
  prefill: Callable[..., prompts.Prefix]
  extend: Callable[..., prompts.Prefix]
  write_bank: Callable[..., DecodeState]
  start_row: Callable[..., DecodeState]
  stop_rows: Callable[..., DecodeState]
  decode_chunk: Callable[..., tuple[DecodeState, Chunk]]
  read_row: Callable[..., RowCache]


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


def write_bank(
  state: DecodeState,
  k: Float[Array, "L B P N H"],
  v: Float[Array, "L B P N H"],
  prefix_row: Int[Array, ""],
  prompt_length: Int[Array, ""],
  bank: Int[Array, ""],
) -> DecodeState:
  """Copies one of some prompts' keys and values into a bank."""
  cache = state.cache
  start = (0, bank, 0, 0, 0)
  one = lambda x: jax.lax.dynamic_slice_in_dim(x, prefix_row, 1, axis=1)
  cache = cache._replace(
    prefix_k=jax.lax.dynamic_update_slice(cache.prefix_k, one(k), start),
    prefix_v=jax.lax.dynamic_update_slice(cache.prefix_v, one(v), start),
    prefix_length=cache.prefix_length.at[bank].set(prompt_length),
  )
  return state._replace(cache=cache)


def start_row(
  state: DecodeState,
  row: Int[Array, ""],
  bank: Int[Array, ""],
  logits: Float[Array, "B V"],
  prefix_row: Int[Array, ""],
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
    logits=state.logits.at[row].set(logits[prefix_row]),
    num_generated=state.num_generated.at[row].set(0),
    limit=state.limit.at[row].set(limit),
    temperature=state.temperature.at[row].set(temperature),
    is_done=state.is_done.at[row].set(False),
    keys=state.keys.at[row].set(sampling.request_key(seed, words)),
  )


def stop_rows(
  state: DecodeState, is_stopped: Bool[Array | np.ndarray, " R"]
) -> DecodeState:
  """Idles rows whose requests are over before their end."""
  return state._replace(is_done=state.is_done | is_stopped)


def read_row(
  state: DecodeState, row: Int[Array, ""], bank: Int[Array, ""]
) -> RowCache:
  """Reads the keys and values that a row sees: its bank's and its own."""
  cache = state.cache
  return RowCache(
    cache.prefix_k[:, bank], cache.prefix_v[:, bank],
    cache.k[:, row], cache.v[:, row],
  )  # fmt: skip


def real_tokens(
  cache: RowCache, prompt_length: int, num_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns keys and values of a row's prompt and completion, on the host.

  The last token of a completion was run as well, so the cache holds it.

  Args:
    cache: From `read_row`.
    prompt_length: Real tokens of the prompt.
    num_tokens: Tokens of the completion.
  """
  host = jax.device_get(cache)
  joined = lambda prompt, own: np.concatenate(
    [prompt[:, :prompt_length], own[:, :num_tokens]], axis=1
  )
  return joined(host.prefix_k, host.k), joined(host.prefix_v, host.v)


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
    params: Parameter pytree, as it is or from `decoder.unstack_layers`.
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


def _shardings(placed: placement.Placement) -> dict[str, Any]:
  """Returns the sharding of what each program gives."""
  cache: Any
  rest: Any
  cache, rest = placed
  banks = decoder.DecodeCache(cache, cache, rest, rest, cache, cache, rest)
  state = DecodeState(banks, *[rest] * (len(DecodeState._fields) - 1))
  prefix = prompts.Prefix(rest, cache, cache)
  return {
    "init_state": state,
    "prefill": prefix,
    "extend": prefix,
    "write_bank": state,
    "start_row": state,
    "stop_rows": state,
    "decode_chunk": (state, rest),
    "read_row": rest,
  }


@functools.lru_cache(maxsize=16)
def make_programs(
  config: DecoderConfig,
  options: sampling.SamplingOptions,
  *,
  num_steps: int,
  compute_dtype: Any,
  placed: placement.Placement,
) -> Programs:
  """Compiles the programs of an engine; engines of one shape share them.

  Args:
    config: Shape of the decoder.
    options: Truncation, stop tokens.
    num_steps: Most iterations of a chunk (K).
    compute_dtype: Dtype of the matrix products and of the cache.
    placed: Where the results lie. A state then looks the same whichever
      program made it, so none compiles twice.
  """
  fixed = {"config": config, "compute_dtype": compute_dtype}
  chunk = functools.partial(
    decode_chunk, options=options, num_steps=num_steps, **fixed
  )
  shardings = _shardings(placed)

  def compiled(name, function, **kwargs):
    return jax.jit(function, out_shardings=shardings[name], **kwargs)

  return Programs(
    init_state=compiled(
      "init_state",
      functools.partial(init_state, **fixed),
      static_argnames=(
        "slots", "num_banks", "prompt_size", "completion_size",
      ),
    ),
    prefill=compiled("prefill", functools.partial(prompts.prefill, **fixed)),
    extend=compiled("extend", functools.partial(prompts.extend, **fixed)),
    write_bank=compiled("write_bank", write_bank, donate_argnums=0),
    start_row=compiled("start_row", start_row, donate_argnums=0),
    stop_rows=compiled("stop_rows", stop_rows, donate_argnums=0),
    decode_chunk=compiled("decode_chunk", chunk, donate_argnums=1),
    read_row=compiled("read_row", read_row),
  )  # fmt: skip
