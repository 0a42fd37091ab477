"""Attention over a prompt that a group's completions share.

Three forms of the same softmax: a prompt over itself, the completions of a
group over [prompt | own past], and one decoded token over [prompt | own past].
Queries come already rotated and scaled by head_dim ** -0.5. Scores and their
softmax are kept in float32 (or float64 where the inputs are).

Heads stand in front of tokens in the products, and every product has one
dimension of rows and sums over one: XLA's CPU backend copies whole factors
transposed for other forms, in the gradient most of all.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Below it a prompt is one block; above, blocks skip the upper triangle.
_MIN_BLOCK = 256
_MAX_BLOCKS = 8
_MASKED = -1e30


def _score_dtype(x: Array) -> jnp.dtype:
  return jnp.promote_types(x.dtype, jnp.float32)


def _group_heads(
  q: Float[Array, "*rows H D"], num_kv_heads: int
) -> Float[Array, "*rows N J D"]:
  """Splits query heads by the key head they share: H = N x J."""
  return q.reshape(*q.shape[:-2], num_kv_heads, -1, q.shape[-1])


def _peak(scores: Float[Array, "*rows P"]) -> Float[Array, "*rows 1"]:
  """Returns the largest score of each row, without gradient.

  A softmax does not depend on what is subtracted.
  """
  return jax.lax.stop_gradient(scores.max(-1, keepdims=True))


def causal_bounds(length: int) -> list[int]:
  """Returns where the query blocks of a prompt start, and its end.

  Args:
    length: Prompt tokens with padding (P), at least 1.
  """
  num_blocks = max(1, min(_MAX_BLOCKS, length // _MIN_BLOCK))
  return [length * i // num_blocks for i in range(num_blocks + 1)]


def causal(
  q: Float[Array, "B P H D"],
  k: Float[Array, "B P N D"],
  v: Float[Array, "B P N D"],
) -> Float[Array, "B P H D"]:
  """Attends each prompt token to itself and what stands before it.

  Padding stands on the right, so real tokens never see it. Query blocks read
  only the keys up to their own end: about half of the dense product.

  Args:
    q: Queries, rotated and scaled.
    k: Keys, rotated.
    v: Values.

  Returns:
    Weighted values, in v's dtype.
  """
  batch, length, num_heads, head_dim = q.shape
  num_kv_heads = k.shape[2]
  bounds = causal_bounds(length)
  heads_q = jnp.einsum("bqnjd->bnjqd", _group_heads(q, num_kv_heads))
  heads_k, heads_v = k.swapaxes(1, 2), v.swapaxes(1, 2)
  outputs = []
  for start, end in zip(bounds[:-1], bounds[1:]):
    block = heads_q[:, :, :, start:end]
    scores = jnp.einsum(
      "bnqd,bnpd->bnqp",
      block.reshape(batch, num_kv_heads, -1, head_dim),
      heads_k[:, :, :end],
      preferred_element_type=_score_dtype(q),
    )
    place = jnp.tile(jnp.arange(start, end), num_heads // num_kv_heads)
    scores = jnp.where(place[:, None] >= jnp.arange(end), scores, _MASKED)
    weights = jnp.exp(scores - _peak(scores))
    out = jnp.einsum(
      "bnqp,bnpd->bnqd", weights.astype(v.dtype), heads_v[:, :, :end]
    )
    # Divided after the product: head_dim numbers a row instead of `end`.
    out = out / weights.sum(-1, keepdims=True).astype(out.dtype)
    outputs.append(out.reshape(block.shape))
  out = jnp.concatenate(outputs, axis=3)
  return jnp.einsum("bnjqd->bqnjd", out).reshape(q.shape)


def extension(
  q: Float[Array, "B S H D"],
  k: Float[Array, "B P N D"],
  v: Float[Array, "B P N D"],
  positions: Int[Array, "B S"],
) -> Float[Array, "B S H D"]:
  """Attends the later tokens of a prompt to all that stands before them.

  Args:
    q: Queries of the later tokens, rotated and scaled.
    k: Keys of the whole prompt, rotated.
    v: Values of the whole prompt.
    positions: Place of each query in the prompt; keys beyond it are not seen.

  Returns:
    Weighted values, in v's dtype.
  """
  grouped = _group_heads(q, k.shape[2])
  scores = jnp.einsum(
    "bsnjd,bpnd->bnjsp", grouped, k, preferred_element_type=_score_dtype(q)
  )
  is_seen = jnp.arange(k.shape[1]) <= positions[..., None]
  scores = jnp.where(is_seen[:, None, None], scores, _MASKED)
  weights = jnp.exp(scores - _peak(scores))
  out = jnp.einsum("bnjsp,bpnd->bnjsd", weights.astype(v.dtype), v)
  out = out / weights.sum(-1, keepdims=True).astype(out.dtype)
  return jnp.einsum("bnjsd->bsnjd", out).reshape(q.shape)


def completions(
  q: Float[Array, "B S T H D"],
  k: Float[Array, "B S T N D"],
  v: Float[Array, "B S T N D"],
  prompt_k: Float[Array, "B P N D"],
  prompt_v: Float[Array, "B P N D"],
  prompt_length: Int[Array, " B"],
) -> Float[Array, "B S T H D"]:
  """Attends completion tokens to their prompt and their own past.

  Siblings are never scored against each other: the cost is
  S * T * (P + T), and no [P + S * T] square mask exists.

  Args:
    q: Queries of the completions, rotated and scaled.
    k: Their keys, rotated.
    v: Their values.
    prompt_k: Keys of the prompt, computed once.
    prompt_v: Values of the prompt.
    prompt_length: Real prompt tokens; keys beyond are padding.

  Returns:
    Weighted values, in v's dtype.
  """
  batch, _, size, _, head_dim = q.shape
  num_kv_heads = k.shape[3]
  dtype = _score_dtype(q)
  heads_q = jnp.einsum("bstnjd->bnsjtd", _group_heads(q, num_kv_heads))
  # A row is one query of one head; those of one completion stand together.
  by_completion = (*heads_q.shape[:3], -1)
  by_prompt = (batch, num_kv_heads, -1)
  heads_k, heads_v = (jnp.moveaxis(x, 3, 1) for x in (k, v))
  to_prompt = jnp.einsum(
    "bnqd,bnpd->bnqp",
    heads_q.reshape(*by_prompt, head_dim),
    prompt_k.swapaxes(1, 2),
    preferred_element_type=dtype,
  )
  to_own = jnp.einsum(
    "bnsqd,bnsud->bnsqu",
    heads_q.reshape(*by_completion, head_dim),
    heads_k,
    preferred_element_type=dtype,
  )
  is_prompt = jnp.arange(prompt_k.shape[1]) < prompt_length[:, None]
  to_prompt = jnp.where(is_prompt[:, None, None], to_prompt, _MASKED)
  steps = jnp.arange(size)
  step = jnp.tile(steps, q.shape[3] // num_kv_heads)
  to_own = jnp.where(step[:, None] >= steps, to_own, _MASKED)
  to_own = to_own.reshape(*by_prompt, size)
  # One softmax over both parts without joining them in memory.
  peak = jnp.maximum(_peak(to_prompt), _peak(to_own))
  prompt_exp = jnp.exp(to_prompt - peak)
  own_exp = jnp.exp(to_own - peak)
  total = prompt_exp.sum(-1, keepdims=True) + own_exp.sum(-1, keepdims=True)
  from_own = jnp.einsum(
    "bnsqu,bnsud->bnsqd",
    own_exp.astype(v.dtype).reshape(*by_completion, size),
    heads_v,
  )
  out = from_own.reshape(*by_prompt, head_dim) + jnp.einsum(
    "bnqp,bnpd->bnqd", prompt_exp.astype(v.dtype), prompt_v.swapaxes(1, 2)
  )
  out = (out / total.astype(out.dtype)).reshape(heads_q.shape)
  return jnp.einsum("bnsjtd->bstnjd", out).reshape(q.shape)


def shared_prompt(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N K D"],
  v: Float[Array, "B N K D"],
  prompt_length: Int[Array, " B"],
  *,
  prompt_size: int,
  num_kept: int,
) -> Float[Array, "B N H D"]:
  """Attends the tokens of whole groups, N = P + S * T places each.

  The prompt stands first, then its completions, each padded on the right:
  `causal` for the one, `completions` for the others.

  Args:
    q: Queries, rotated and scaled.
    k: Keys, rotated.
    v: Values.
    prompt_length: Real prompt tokens.
    prompt_size: Places of the prompt (P).
    num_kept: Completions (S).

  Returns:
    Weighted values, in v's dtype; anything at padded places.
  """
  kept = lambda x: x[:, prompt_size:].reshape(
    x.shape[0], num_kept, -1, *x.shape[2:]
  )
  prompt_k, prompt_v = k[:, :prompt_size], v[:, :prompt_size]
  prompt_out = causal(q[:, :prompt_size], prompt_k, prompt_v)
  out = completions(
    kept(q), kept(k), kept(v), prompt_k, prompt_v, prompt_length
  )
  out = out.reshape(out.shape[0], -1, *out.shape[3:])
  return jnp.concatenate([prompt_out, out], axis=1)


def decode(
  q: Float[Array, "R H D"],
  k: Float[Array, "R N D"],
  v: Float[Array, "R N D"],
  own_k: Float[Array, "L R T N D"],
  own_v: Float[Array, "L R T N D"],
  own_length: Int[Array, " R"],
  prefix_k: Float[Array, "L A P N D"],
  prefix_v: Float[Array, "L A P N D"],
  prefix_length: Int[Array, " A"],
  bank: Int[Array, " R"],
  num_banks: Int[Array, ""],
  layer: Int[Array, ""] | int,
) -> Float[Array, "R H D"]:
  """Attends one new token a row to its prefix bank, its past and itself.

  A bank holds the keys and values of one prompt; the rows of a group name the
  same bank, so a prompt is stored and read once however many rows decode from
  it. A row's bits do not depend on which bank holds its prompt: each bank is
  one product of the same shape, and a row takes its own bank's numbers.

  Args:
    q: Queries of the new tokens, rotated and scaled.
    k: Keys of the new tokens.
    v: Values of the new tokens.
    own_k: Keys of the tokens decoded before, of all layers.
    own_v: Values of the tokens decoded before.
    own_length: How many of them each row has.
    prefix_k: Keys of the A banks, of all layers.
    prefix_v: Values of the A banks.
    prefix_length: Real tokens in each bank.
    bank: Bank of each row, in [0, A).
    num_banks: Banks in use are below it; when A equals R, row r owns bank r
      and it is not read.
    layer: Which layer of the caches to read. They come whole, because a slice
      of all banks would be copied for every token.

  Returns:
    Weighted values, in v's dtype.
  """
  dtype = _score_dtype(q)
  grouped = _group_heads(q, k.shape[1])
  own_k, own_v = own_k[layer], own_v[layer]
  is_row_banked = prefix_k.shape[1] == q.shape[0]
  if is_row_banked:
    to_prefix = jnp.einsum(
      "rnjd,rpnd->rnjp", grouped, prefix_k[layer], preferred_element_type=dtype
    )
  else:
    to_prefix = _scores_by_bank(grouped, prefix_k, bank, num_banks, layer)
  is_prefix = jnp.arange(prefix_k.shape[2]) < prefix_length[bank][:, None]
  to_prefix = jnp.where(is_prefix[:, None, None, :], to_prefix, _MASKED)
  to_own = jnp.einsum(
    "rnjd,rtnd->rnjt", grouped, own_k, preferred_element_type=dtype
  )
  is_own = jnp.arange(own_k.shape[1]) < own_length[:, None]
  to_own = jnp.where(is_own[:, None, None, :], to_own, _MASKED)
  to_self = jnp.einsum(
    "rnjd,rnd->rnj", grouped, k, preferred_element_type=dtype
  )
  peak = jnp.maximum(jnp.maximum(to_prefix.max(-1), to_own.max(-1)), to_self)
  prefix_exp = jnp.exp(to_prefix - peak[..., None])
  own_exp = jnp.exp(to_own - peak[..., None])
  self_exp = jnp.exp(to_self - peak)
  total = prefix_exp.sum(-1) + own_exp.sum(-1) + self_exp
  weights = prefix_exp.astype(v.dtype)
  if is_row_banked:
    out = jnp.einsum("rnjp,rpnd->rnjd", weights, prefix_v[layer])
  else:
    out = _values_by_bank(weights, prefix_v, bank, num_banks, layer)
  out += jnp.einsum("rnjt,rtnd->rnjd", own_exp.astype(v.dtype), own_v)
  out += self_exp[..., None].astype(v.dtype) * v[:, :, None, :]
  return (out / total[..., None].astype(out.dtype)).reshape(q.shape)


def _read_bank(
  prefix: Float[Array, "L A P N D"],
  layer: Int[Array, ""] | int,
  index: Int[Array, ""],
) -> Float[Array, "P N D"]:
  """Reads one layer of one bank."""
  start = (layer, index, 0, 0, 0)
  bank = jax.lax.dynamic_slice(prefix, start, (1, 1, *prefix.shape[2:]))
  return bank[0, 0]


def _scores_by_bank(
  q: Float[Array, "R N J D"],
  prefix_k: Float[Array, "L A P N D"],
  bank: Int[Array, " R"],
  num_banks: Int[Array, ""],
  layer: Int[Array, ""] | int,
) -> Float[Array, "R N J P"]:
  """Scores every row against each used bank and keeps its own bank's."""
  shape = (*q.shape[:3], prefix_k.shape[2])

  def body(index, scores):
    here = jnp.einsum(
      "rnjd,pnd->rnjp",
      q,
      _read_bank(prefix_k, layer, index),
      preferred_element_type=scores.dtype,
    )
    return jnp.where((bank == index)[:, None, None, None], here, scores)

  return jax.lax.fori_loop(
    0, num_banks, body, jnp.zeros(shape, _score_dtype(q))
  )


def _values_by_bank(
  weights: Float[Array, "R N J P"],
  prefix_v: Float[Array, "L A P N D"],
  bank: Int[Array, " R"],
  num_banks: Int[Array, ""],
  layer: Int[Array, ""] | int,
) -> Float[Array, "R N J D"]:
  """Weighs each used bank's values and keeps each row's own bank's."""
  shape = (*weights.shape[:3], prefix_v.shape[4])

  def body(index, out):
    values = _read_bank(prefix_v, layer, index)
    # One product a head: a batched one copies the values head by head first.
    here = jnp.stack(
      [
        jnp.einsum("rjp,pd->rjd", weights[:, head], values[:, head])
        for head in range(values.shape[1])
      ],
      axis=1,
    )
    return jnp.where((bank == index)[:, None, None, None], here, out)

  return jax.lax.fori_loop(0, num_banks, body, jnp.zeros(shape, weights.dtype))
