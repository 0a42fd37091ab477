"""Log-probabilities of completion tokens: hidden states to nats.

Logits exist for completion positions only, and for `chunk_tokens` of them at
one time. The module does not know rewards, losses or devices.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def token_logprobs(
  hidden: Float[Array, "B S T D"],
  table: Float[Array, "V D"],
  ids: Int[Array, "B S T"],
  *,
  temperature: float,
  chunk_tokens: int,
  has_entropy: bool = False,
  place: Callable[[Array], Array] = lambda x: x,
) -> tuple[Float[Array, "B S T"], Float[Array, "B S T"] | None]:
  """Scores each token under the softmax of its logits over the temperature.

      z = h W^T / temperature
      log p(id) = z_id - logsumexp(z)
      H = logsumexp(z) - sum_v p_v z_v

  With more tokens than `chunk_tokens` the chunks run one after another and
  the backward pass computes each chunk's logits again, so that memory holds
  one chunk of logits whatever the lengths; a single chunk keeps its logits.

  Args:
    hidden: State that predicts each token.
    table: Output head.
    ids: Tokens to score, in [0, V); padding is scored like any other token.
    temperature: Sampling temperature, above 0.
    chunk_tokens: Most tokens whose logits exist at one time, at least 1.
    has_entropy: Whether the entropy is computed.
    place: Keeps an array that leads with B where its rows lie.

  Returns:
    Log-probabilities in nats and, when asked for, entropies in nats, else
    None; float32, or float64 where `hidden` is.

  Raises:
    ValueError: When the temperature or the chunk is out of range.
  """
  if temperature <= 0:
    raise ValueError(
      f"temperature must be above 0 to score tokens, got {temperature}; score "
      "greedy rollouts at temperature 1."
    )
  if chunk_tokens < 1:
    raise ValueError(
      f"chunk_tokens must be at least 1, got {chunk_tokens}; set "
      "config.loss.logprob_chunk_tokens."
    )

  def score(chunk):
    # Without it a compiler may split the width instead of the tokens.
    chunk = jax.tree.map(place, chunk)
    return _score(*chunk, table, temperature, has_entropy)

  num_rows = hidden.shape[0]
  rows = (hidden.reshape(num_rows, -1, hidden.shape[-1]), _by_row(ids))
  num_tokens = rows[1].shape[1]
  num_chunks = -(-num_tokens // max(1, chunk_tokens // num_rows))
  if num_chunks <= 1:
    logprobs, entropy = score(rows)
  else:
    chunks = tuple(_to_chunks(x, num_chunks) for x in rows)
    scored = jax.lax.map(jax.checkpoint(score, prevent_cse=False), chunks)
    logprobs, entropy = jax.tree.map(
      lambda x: x.swapaxes(0, 1).reshape(num_rows, -1)[:, :num_tokens], scored
    )
  return jax.tree.map(lambda x: x.reshape(ids.shape), (logprobs, entropy))


def _score(
  hidden: Float[Array, "B C D"],
  ids: Int[Array, "B C"],
  table: Float[Array, "V D"],
  temperature: float,
  has_entropy: bool,
) -> tuple[Float[Array, "B C"], Float[Array, "B C"] | None]:
  """Scores one chunk of tokens."""
  wide = jnp.promote_types(hidden.dtype, jnp.float32)
  # Cast inside the chunk: its gradient is then summed over chunks in the
  # table's own dtype, not in the narrow one.
  logits = jnp.einsum(
    "bcd,vd->bcv",
    hidden,
    table.astype(hidden.dtype),
    preferred_element_type=wide,
  )
  logits = logits / temperature
  total = jax.nn.logsumexp(logits, axis=-1)
  # A masked sum, not a gather: it stays local where V lies on several devices.
  is_id = jnp.arange(table.shape[0]) == ids[..., None]
  logprobs = jnp.sum(jnp.where(is_id, logits, 0.0), axis=-1) - total
  if not has_entropy:
    return logprobs, None
  probabilities = jnp.exp(logits - total[..., None])
  return logprobs, total - jnp.sum(probabilities * logits, axis=-1)


def _by_row(x: Array) -> Array:
  return x.reshape(x.shape[0], -1)


def _to_chunks(x: Array, num_chunks: int) -> Array:
  """Splits the second axis: [B, N, ...] to [num_chunks, B, size, ...].

  Every chunk holds the same share of every row, so devices that hold rows
  work side by side.
  """
  size = -(-x.shape[1] // num_chunks)
  padding = [(0, 0), (0, size * num_chunks - x.shape[1])]
  padded = jnp.pad(x, padding + [(0, 0)] * (x.ndim - 2))
  return padded.reshape(x.shape[0], num_chunks, size, *x.shape[2:]).swapaxes(
    0, 1
  )
