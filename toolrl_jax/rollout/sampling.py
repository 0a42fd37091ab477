"""From logits to one token a row: temperature, truncation, inverse CDF.

Everything is row by row, so a row's token depends on its own logits, key and
count only. The key of a row is made of (seed, step, prompt, sample index) and
folded with the number of tokens generated so far: a sample does not depend on
when, where or beside whom it is decoded.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

_BLOCK = 128


class SamplingOptions(NamedTuple):
  """What is fixed for an engine; hashable, so a static jit argument.

  Attributes:
    top_p: Keep the smallest set of tokens with this probability; 1 is off.
    top_k: Keep the k most probable tokens; 0 is off.
    stop_ids: Tokens that end a completion; they belong to it.
  """

  top_p: float = 1.0
  top_k: int = 0
  stop_ids: tuple[int, ...] = ()

  @property
  def is_truncated(self) -> bool:
    """Whether top-p or top-k is on."""
    return self.top_p < 1.0 or self.top_k > 0


class Sample(NamedTuple):
  """One token a row.

  Attributes:
    token_ids: The tokens, int32 [R].
    logprobs: Log-probabilities in nats under the full distribution.
    truncated_logprobs: The same under the truncated distribution.
  """

  token_ids: Int[Array, " R"]
  logprobs: Float[Array, " R"]
  truncated_logprobs: Float[Array, " R"]


def make_options(
  *,
  top_p: float,
  top_k: int,
  stop_ids: Sequence[int],
  vocab_size: int,
) -> SamplingOptions:
  """Checks and packs sampling options.

  Args:
    top_p: In (0, 1]; 1 is off.
    top_k: At least 0; 0 is off.
    stop_ids: Token ids below the vocabulary size.
    vocab_size: Of the decoder.

  Returns:
    The options.

  Raises:
    ValueError: One of them is out of its range.
  """
  if not 0 < top_p <= 1:
    raise ValueError(
      f"top_p must be in (0, 1], got {top_p}; set config.rollout.top_p."
    )
  if top_k < 0:
    raise ValueError(
      f"top_k must be at least 0, got {top_k}; set config.rollout.top_k."
    )
  outside = [x for x in stop_ids if not 0 <= x < vocab_size]
  if outside:
    raise ValueError(
      f"stop tokens must be below the vocabulary size {vocab_size}, got "
      f"{outside}; use the end tokens of the checkpoint's tokenizer."
    )
  ids = tuple(int(stop_id) for stop_id in stop_ids)
  return SamplingOptions(float(top_p), int(top_k), ids)


def request_key(
  seed: UInt32[Array | np.ndarray, ""] | int,
  words: UInt32[Array | np.ndarray, " W"],
) -> UInt32[Array, " 2"]:
  """Folds a request's words into the seed's key, one after the other."""
  # The generator is named so that no global setting changes the samples.
  key = jax.random.key(seed, impl="threefry2x32")
  for index in range(words.shape[0]):
    key = jax.random.fold_in(key, words[index])
  return jax.random.key_data(key)


def uniforms(
  keys: UInt32[Array, "R 2"], num_generated: Int[Array, " R"]
) -> Float[Array, " R"]:
  """Draws each row's number in [0, 1) for its next token."""

  def draw(data, count):
    key = jax.random.wrap_key_data(data, impl="threefry2x32")
    return jax.random.uniform(jax.random.fold_in(key, count), dtype=jnp.float32)

  return jax.vmap(draw)(keys, num_generated)


def _ordered(x: Float[Array, "R V"]) -> UInt32[Array, "R V"]:
  """Maps float32 to unsigned integers of the same order."""
  # 0.0 and -0.0 are one value.
  x = jnp.where(x == 0, 0.0, x).astype(jnp.float32)
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  sign = jnp.uint32(1 << 31)
  return jnp.where(bits & sign, ~bits, bits | sign)


def _threshold(order: UInt32[Array, "R V"], is_enough) -> UInt32[Array, "R 1"]:
  """Finds the largest t for which `is_enough(order >= t)`, bit by bit."""

  def body(index, threshold):
    bit = jax.lax.shift_right_logical(
      jnp.uint32(1 << 31), index.astype(jnp.uint32)
    )
    raised = threshold | bit
    return jnp.where(is_enough(order >= raised), raised, threshold)

  start = jnp.zeros((order.shape[0], 1), jnp.uint32)
  return jax.lax.fori_loop(0, 32, body, start)


def kept(
  logits: Float[Array, "R V"], *, top_p: float, top_k: int
) -> Bool[Array, "R V"]:
  """Marks the tokens that top-k and then top-p leave in the distribution.

  Top-k keeps the k largest logits. Top-p then keeps the smallest set of most
  probable tokens whose share of what top-k left is at least `top_p`. Tokens
  that tie with the last one kept are all kept, by both rules, so the set does
  not depend on the order of the vocabulary. Without a sort: the last kept
  value is found bit by bit in 32 passes.

  Args:
    logits: Logits over the temperature.
    top_p: In (0, 1]; 1 is off.
    top_k: At least 0; 0 is off.

  Returns:
    True for kept tokens; the most probable one always is.
  """
  order = _ordered(logits)
  is_kept = jnp.ones(logits.shape, bool)
  if 0 < top_k < logits.shape[-1]:
    enough = lambda is_in: is_in.sum(-1, keepdims=True) >= top_k
    is_kept = order >= _threshold(order, enough)
  if top_p < 1.0:
    weights = jnp.exp(logits - logits.max(-1, keepdims=True)) * is_kept
    target = top_p * weights.sum(-1, keepdims=True)
    # At least one token, also where rounding makes the target 0.
    enough = lambda is_in: (
      (jnp.where(is_in, weights, 0.0).sum(-1, keepdims=True) >= target)
      & is_in.any(-1, keepdims=True)
    )
    is_kept &= order >= _threshold(order, enough)
  return is_kept


def _blocks(weights: Float[Array, "R V"]) -> Float[Array, "R K W"]:
  """Cuts rows into blocks of 128, the last one padded with 0."""
  padding = -weights.shape[-1] % _BLOCK
  padded = jnp.pad(weights, ((0, 0), (0, padding)))
  return padded.reshape(weights.shape[0], -1, _BLOCK)


def pick(
  weights: Float[Array, "R V"],
  uniform: Float[Array, " R"],
  fallback: Int[Array, " R"],
) -> Int[Array, " R"]:
  """Inverts the cumulative sum of unnormalised weights, in two levels.

      token = min { i : w_0 + ... + w_i > u * sum(w) }

  First the block of 128 is found in the cumulative sum of block sums, then
  the token inside it: one number and no vocabulary-wide cumulative sum a row.

  Args:
    weights: Not negative, with a positive sum.
    uniform: In [0, 1).
    fallback: Token of positive weight, taken when rounding at the edge of a
      block leads to a token of weight 0.

  Returns:
    The picked tokens, all of positive weight.
  """
  rows = jnp.arange(weights.shape[0])
  blocks = _blocks(weights)
  ends = jnp.cumsum(blocks.sum(-1), axis=-1)  # [R, K]
  target = uniform.astype(weights.dtype) * ends[:, -1]
  block = (ends <= target[:, None]).sum(-1)
  block = jnp.minimum(block, ends.shape[-1] - 1)
  start = jnp.where(block > 0, ends[rows, block - 1], 0.0)
  inside = jnp.cumsum(blocks[rows, block], axis=-1)
  offset = (inside <= (target - start)[:, None]).sum(-1)
  token = block * _BLOCK + jnp.minimum(offset, _BLOCK - 1)
  token = jnp.minimum(token, weights.shape[-1] - 1)
  return jnp.where(weights[rows, token] > 0, token, fallback).astype(jnp.int32)


def sample(
  logits: Float[Array, "R V"],
  keys: UInt32[Array, "R 2"],
  num_generated: Int[Array, " R"],
  temperature: Float[Array, " R"],
  *,
  options: SamplingOptions,
) -> Sample:
  """Samples one token a row and says how probable it was.

  Args:
    logits: Of each row's next token.
    keys: Key data of each row; see `request_key`.
    num_generated: Tokens the row has generated before.
    temperature: At least 0. With 0 the first largest logit is taken, and its
      log-probability is that of temperature 1.
    options: Truncation; applied after the temperature.

  Returns:
    Tokens with their log-probabilities under the full distribution at the
    row's temperature and under the truncated one.
  """
  rows = jnp.arange(logits.shape[0])
  is_greedy = temperature <= 0
  scaled = logits / jnp.where(is_greedy, 1.0, temperature)[:, None]
  peak = scaled.max(-1)
  greedy = scaled.argmax(-1).astype(jnp.int32)
  weights = jnp.exp(scaled - peak[:, None])
  log_total = peak + jnp.log(_blocks(weights).sum(-1).sum(-1))
  log_kept = log_total
  if options.is_truncated:
    is_kept = kept(scaled, top_p=options.top_p, top_k=options.top_k)
    weights = jnp.where(is_kept, weights, 0.0)
    log_kept = peak + jnp.log(weights.sum(-1))
  drawn = pick(weights, uniforms(keys, num_generated), greedy)
  token_ids = jnp.where(is_greedy, greedy, drawn)
  chosen = scaled[rows, token_ids]
  return Sample(token_ids, chosen - log_total, chosen - log_kept)
