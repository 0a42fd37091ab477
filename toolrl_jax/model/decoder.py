"""One decoder for Qwen2.5, Qwen3 (dense) and Llama 3: token ids to logits.

Layers are Flax NNX modules, stacked on a leading axis and scanned. Every
public function takes the parameters as a plain pytree of arrays (`params`) and
the static `config`, so that callers jit, shard and differentiate plain
functions; `nnx.merge` happens while tracing and costs nothing at run time.

    params["embed"]["table"]                    [V, D]
    params["layers"][projection]["kernel"]      [L, in, out]   ("bias" [L, out])
    params["layers"][norm]["scale"]             [L, D] or [L, head_dim]
    params["final_norm"]["scale"]               [D]
    params["head"]["table"]                     [V, D], untied heads only

The decoder knows nothing of text, sampling, rewards or groups' rewards.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from toolrl_jax.model import attention
from toolrl_jax.model.presets import DecoderConfig, RopeScaling
from toolrl_jax.types import Packing

Params = Any
# Signature of attention.shared_prompt.
Attend = Callable[..., Array]
# Keeps an array that leads with blocks or groups where they lie.
Place = Callable[[Array], Array]
Remat = Literal["none", "layer", "dots"]

# Small stacks are unrolled for training.
_MAX_UNROLLED_LAYERS = 8


class DecodeCache(NamedTuple):
  """Keys and values of the rows that decode.

  Attributes:
    prefix_k: Keys of the prompts, one a bank, [L, A, P, N, head_dim].
    prefix_v: Values of the prompts.
    prefix_length: Real tokens of each bank, int32 [A].
    bank: Bank of each row, int32 [R].
    k: Keys of the decoded tokens, [L, R, T, N, head_dim].
    v: Values of the decoded tokens.
    length: Decoded tokens of each row that are in the cache, int32 [R].
  """

  prefix_k: Float[Array, "L A P N H"]
  prefix_v: Float[Array, "L A P N H"]
  prefix_length: Int[Array, " A"]
  bank: Int[Array, " R"]
  k: Float[Array, "L R T N H"]
  v: Float[Array, "L R T N H"]
  length: Int[Array, " R"]


@jax.custom_vjp
def _matmul(
  x: Float[Array, "*rows I"], kernel: Float[Array, "I O"]
) -> Float[Array, "*rows O"]:
  """Multiplies rows with a kernel; x @ kernel in every respect but speed.

  JAX's own gradient of the kernel takes the output's gradient as the left
  factor, which XLA's CPU backend then transposes inside the element-wise code
  before it: half the time of a step. With x as the left factor the numbers are
  the same and x, which is narrow, is transposed.
  """
  return x @ kernel


def _matmul_forward(x, kernel):
  return x @ kernel, (x, kernel)


def _matmul_backward(saved, gradient):
  x, kernel = saved
  return (
    gradient @ kernel.T,
    jnp.einsum("...i,...o->io", x, gradient),
  )


_matmul.defvjp(_matmul_forward, _matmul_backward)


class Linear(nnx.Module):
  """A matrix product with an optional bias."""

  def __init__(self, in_width: int, out_width: int, has_bias: bool, rngs):
    scale = in_width**-0.5
    kernel = jax.random.normal(rngs.params(), (in_width, out_width)) * scale
    self.kernel = nnx.Param(kernel)
    self.bias = nnx.Param(jnp.zeros(out_width)) if has_bias else None

  def __call__(self, x: Float[Array, "*rows I"]) -> Float[Array, "*rows O"]:
    """Returns x @ kernel + bias in x's dtype."""
    out = _matmul(x, self.kernel[...].astype(x.dtype))
    return out if self.bias is None else out + self.bias[...].astype(x.dtype)


class RMSNorm(nnx.Module):
  """Scales by the reciprocal root mean square, in float32 or wider."""

  def __init__(self, width: int, eps: float):
    self.scale = nnx.Param(jnp.ones(width))
    self.eps = eps

  def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
    """Returns scale * x / sqrt(mean(x ** 2) + eps) in x's dtype."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normed = (wide * jax.lax.rsqrt(mean_square + self.eps)).astype(x.dtype)
    return normed * self.scale[...].astype(x.dtype)


class Layer(nnx.Module):
  """Pre-norm attention and gated feed-forward block."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    width, head_dim = config.width, config.head_dim
    q_width = config.num_heads * head_dim
    kv_width = config.num_kv_heads * head_dim
    bias = config.has_qkv_bias
    self.attention_norm = RMSNorm(width, config.norm_eps)
    self.q_proj = Linear(width, q_width, bias, rngs)
    self.k_proj = Linear(width, kv_width, bias, rngs)
    self.v_proj = Linear(width, kv_width, bias, rngs)
    self.o_proj = Linear(q_width, width, False, rngs)
    if config.has_qk_norm:
      self.q_norm = RMSNorm(head_dim, config.norm_eps)
      self.k_norm = RMSNorm(head_dim, config.norm_eps)
    self.mlp_norm = RMSNorm(width, config.norm_eps)
    self.gate_proj = Linear(width, config.ffn_width, False, rngs)
    self.up_proj = Linear(width, config.ffn_width, False, rngs)
    self.down_proj = Linear(config.ffn_width, width, False, rngs)
    self.config = config

  def qkv(
    self, x: Float[Array, "*rows D"], positions: Int[Array, "*rows"]
  ) -> tuple[Array, Array, Array]:
    """Returns rotated and scaled queries, rotated keys, and values."""
    config = self.config
    normed = self.attention_norm(x)
    shape = (*x.shape[:-1], -1, config.head_dim)
    q = self.q_proj(normed).reshape(shape)
    k = self.k_proj(normed).reshape(shape)
    v = self.v_proj(normed).reshape(shape)
    if config.has_qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    cos, sin = rope_angles(positions, config, x.dtype)
    return rotate(q, cos, sin) * config.head_dim**-0.5, rotate(k, cos, sin), v

  def finish(
    self, x: Float[Array, "*rows D"], attended: Float[Array, "*rows H E"]
  ) -> Float[Array, "*rows D"]:
    """Adds the attention output and the feed-forward block to the stream."""
    x = x + self.o_proj(attended.reshape(*x.shape[:-1], -1))
    normed = self.mlp_norm(x)
    gated = jax.nn.silu(self.gate_proj(normed)) * self.up_proj(normed)
    return x + self.down_proj(gated)


class Embedding(nnx.Module):
  """A [V, D] table, read as an embedding or as the output head."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    shape = (config.vocab_size, config.width)
    table = jax.random.normal(rngs.params(), shape) * config.width**-0.5
    self.table = nnx.Param(table)


class Decoder(nnx.Module):
  """Embedding, stacked layers, final norm and head."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    @nnx.vmap(in_axes=0, out_axes=0)
    def make_layers(keys):
      return Layer(config, nnx.Rngs(params=keys))

    self.embed = Embedding(config, rngs)
    self.layers = make_layers(
      jax.random.split(rngs.params(), config.num_layers)
    )
    self.final_norm = RMSNorm(config.width, config.norm_eps)
    if not config.is_tied:
      self.head = Embedding(config, rngs)


@functools.lru_cache(maxsize=32)
def _graph(config: DecoderConfig):
  """Returns the module graphs of the whole decoder and of one layer."""
  model = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0)))
  layer = nnx.eval_shape(lambda: Layer(config, nnx.Rngs(0)))
  return nnx.split(model), nnx.split(layer)[0]


def param_shapes(config: DecoderConfig) -> Params:
  """Returns the parameter pytree as float32 `jax.ShapeDtypeStruct`s."""
  # Whatever precision was on when the graph was first traced.
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32),
    nnx.to_pure_dict(_graph(config)[0][1]),
  )


def init_params(
  config: DecoderConfig, key: Array, *, dtype: DTypeLike = jnp.float32
) -> Params:
  """Draws random parameters: normal with std fan_in ** -0.5, zero biases.

  Args:
    config: Shape of the decoder.
    key: A `jax.random.key`.
    dtype: Dtype of every leaf.

  Returns:
    The parameter pytree of the module docstring.
  """
  state = nnx.state(Decoder(config, nnx.Rngs(params=key)))
  return jax.tree.map(lambda x: x.astype(dtype), nnx.to_pure_dict(state))


def _layer(config: DecoderConfig, weights: Params) -> Layer:
  return nnx.merge(_graph(config)[1], weights)


def unstack_layers(
  params: Params, config: DecoderConfig, *, dtype: DTypeLike
) -> Params:
  """Takes the stack of layers apart and casts weights, for `decode`.

  A scan copies each layer's weights out of the stack for every token, and a
  cast reads the wide weights every time; here both are done once. The copy
  takes the memory of the layers in the given dtype.

  Args:
    params: Parameter pytree.
    config: Shape of the decoder.
    dtype: The compute dtype of the calls of `decode`; the numbers are those
      of a cast inside.

  Returns:
    The pytree with a tuple of layers, all leaves of the dtype.
  """
  params = jax.tree.map(lambda x: x.astype(dtype), params)
  layers = tuple(
    jax.tree.map(operator.itemgetter(index), params["layers"])
    for index in range(config.num_layers)
  )
  return {**params, "layers": layers}


def rope_frequencies(
  head_dim: int, theta: float, scaling: RopeScaling | None
) -> np.ndarray:
  """Returns the rotary frequencies in radians a token, float64 [head_dim/2].

  theta_i = base ** (-2i / head_dim); Llama 3 divides the low frequencies by
  `factor` and blends those between the two wavelength limits.
  """
  frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
  if scaling is None:
    return frequencies
  wavelengths = 2 * np.pi / frequencies
  low, high = scaling.low_freq_factor, scaling.high_freq_factor
  turns = scaling.original_max_positions / wavelengths
  blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
  return frequencies * (blend + (1.0 - blend) / scaling.factor)


def rope_angles(
  positions: Int[Array, "*rows"], config: DecoderConfig, dtype: DTypeLike
) -> tuple[Float[Array, "*rows E"], Float[Array, "*rows E"]]:
  """Returns cosines and sines of the rotary angles, [..., head_dim / 2]."""
  wide = jnp.promote_types(dtype, jnp.float32)
  frequencies = rope_frequencies(
    config.head_dim, config.rope_theta, config.rope_scaling
  )
  # Rounded to float32 first, as the released weights were trained with.
  rounded = jnp.asarray(frequencies, jnp.float32).astype(wide)
  angles = positions[..., None].astype(wide) * rounded
  return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)


def rotate(
  x: Float[Array, "*rows H E"],
  cos: Float[Array, "*rows F"],
  sin: Float[Array, "*rows F"],
) -> Float[Array, "*rows H E"]:
  """Rotates the pairs (i, i + head_dim / 2) of every head."""
  first, second = jnp.split(x, 2, axis=-1)
  cos, sin = cos[..., None, :], sin[..., None, :]
  return jnp.concatenate(
    [first * cos - second * sin, second * cos + first * sin], axis=-1
  )


def embed(
  params: Params, ids: Int[Array, "*rows"], dtype: DTypeLike
) -> Float[Array, "*rows D"]:
  """Looks token ids up in the embedding."""
  return params["embed"]["table"][ids].astype(dtype)


def head_table(params: Params) -> Float[Array, "V D"]:
  """Returns the output head: the embedding when tied."""
  return params["head" if "head" in params else "embed"]["table"]


def final_norm(
  params: Params, config: DecoderConfig, x: Float[Array, "*rows D"]
) -> Float[Array, "*rows D"]:
  """Normalises the last layer's output."""
  graph = nnx.split(
    nnx.eval_shape(lambda: RMSNorm(config.width, config.norm_eps))
  )[0]
  return nnx.merge(graph, params["final_norm"])(x)


def logits(
  params: Params, hidden: Float[Array, "*rows D"]
) -> Float[Array, "*rows V"]:
  """Multiplies hidden states with the head; float32 or wider."""
  table = head_table(params).astype(hidden.dtype)
  wide = jnp.promote_types(hidden.dtype, jnp.float32)
  return jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=wide)


def prefill(
  params: Params,
  prompt_ids: Int[Array, "B P"],
  prompt_length: Int[Array, " B"],
  *,
  config: DecoderConfig,
  compute_dtype: DTypeLike = jnp.float32,
) -> tuple[
  Float[Array, "B V"], Float[Array, "L B P N H"], Float[Array, "L B P N H"]
]:
  """Runs prompts and keeps their keys and values.

  Args:
    params: Parameter pytree.
    prompt_ids: Prompts, padded on the right.
    prompt_length: Real tokens of each, at least 1.
    config: Shape of the decoder.
    compute_dtype: Dtype of the matrix products.

  Returns:
    Logits of the token after each prompt, and keys and values of all layers.
  """
  positions = jnp.broadcast_to(
    jnp.arange(prompt_ids.shape[1]), prompt_ids.shape
  )

  def body(x, weights):
    layer = _layer(config, weights)
    q, k, v = layer.qkv(x, positions)
    return layer.finish(x, attention.causal(q, k, v)), (k, v)

  x = embed(params, prompt_ids, compute_dtype)
  x, (k, v) = jax.lax.scan(body, x, params["layers"])
  last = jnp.take_along_axis(x, (prompt_length - 1)[:, None, None], axis=1)
  return logits(params, final_norm(params, config, last[:, 0])), k, v


def extend(
  params: Params,
  new_ids: Int[Array, "B S"],
  num_new: Int[Array, " B"],
  stored_k: Float[Array, "L B P N H"],
  stored_v: Float[Array, "L B P N H"],
  num_stored: Int[Array, " B"],
  *,
  config: DecoderConfig,
  compute_dtype: DTypeLike = jnp.float32,
) -> tuple[
  Float[Array, "B V"], Float[Array, "L B P N H"], Float[Array, "L B P N H"]
]:
  """Runs the rest of prompts whose first tokens have keys and values.

  Equals `prefill` of the whole prompts up to rounding; costs their new tokens
  only.

  Args:
    params: Parameter pytree.
    new_ids: The tokens after the stored ones, padded on the right.
    num_new: Real tokens of them, at least 1.
    stored_k: Keys of the stored tokens, with room for the new ones.
    stored_v: Values of the stored tokens.
    num_stored: Real tokens of each; what stands behind them is not read.
    config: Shape of the decoder.
    compute_dtype: Dtype of the matrix products.

  Returns:
    Logits of the token after each prompt, and keys and values of all layers.
  """
  positions = num_stored[:, None] + jnp.arange(new_ids.shape[1])
  rows = jnp.arange(new_ids.shape[0])[:, None]

  def body(x, weights_and_stored):
    weights, k, v = weights_and_stored
    layer = _layer(config, weights)
    q, new_k, new_v = layer.qkv(x, positions)
    # Padding that reaches past the end is dropped.
    k = k.at[rows, positions].set(new_k, mode="drop")
    v = v.at[rows, positions].set(new_v, mode="drop")
    return layer.finish(x, attention.extension(q, k, v, positions)), (k, v)

  x = embed(params, new_ids, compute_dtype)
  x, (k, v) = jax.lax.scan(body, x, (params["layers"], stored_k, stored_v))
  last = jnp.take_along_axis(x, (num_new - 1)[:, None, None], axis=1)
  return logits(params, final_norm(params, config, last[:, 0])), k, v


def decode(
  params: Params,
  token_ids: Int[Array, " R"],
  cache: DecodeCache,
  is_live: Array,
  num_banks: Int[Array, ""],
  *,
  config: DecoderConfig,
  compute_dtype: DTypeLike = jnp.float32,
) -> tuple[Float[Array, "R V"], DecodeCache]:
  """Runs one token of every row and appends its keys and values.

  Args:
    params: Parameter pytree, as it is or from `unstack_layers`.
    token_ids: The newest token of each row.
    cache: Keys and values of what stands before it.
    is_live: Rows that take part, bool [R]; the length of others stays.
    num_banks: Banks in use are below it, int32 scalar.
    config: Shape of the decoder.
    compute_dtype: Dtype of the matrix products.

  Returns:
    Logits of each row's next token, and the cache with the token added.
  """
  positions = cache.prefix_length[cache.bank] + cache.length

  def body(x, weights_and_index):
    weights, index = weights_and_index
    layer = _layer(config, weights)
    q, k, v = layer.qkv(x, positions)
    attended = attention.decode(
      q, k, v, cache.k, cache.v, cache.length, cache.prefix_k, cache.prefix_v,
      cache.prefix_length, cache.bank, num_banks, index,
    )  # fmt: skip
    return layer.finish(x, attended), (k, v)

  x = embed(params, token_ids, compute_dtype)
  layers = params["layers"]
  if isinstance(layers, tuple):
    new = []
    for index, weights in enumerate(layers):
      x, key_and_value = body(x, (weights, index))
      new.append(key_and_value)
    k, v = (jnp.stack(y) for y in zip(*new))
  else:
    indices = jnp.arange(config.num_layers)
    x, (k, v) = jax.lax.scan(body, x, (layers, indices))
  rows = jnp.arange(token_ids.shape[0])
  # A full row writes past the end, which is dropped.
  cache = cache._replace(
    k=cache.k.at[:, rows, cache.length].set(k, mode="drop"),
    v=cache.v.at[:, rows, cache.length].set(v, mode="drop"),
    length=cache.length + is_live,
  )
  return logits(params, final_norm(params, config, x)), cache


def group_hidden(
  params: Params,
  prompt_ids: Int[Array, "B P"],
  prompt_length: Int[Array, " B"],
  completion_ids: Int[Array, "B S T"],
  *,
  config: DecoderConfig,
  compute_dtype: DTypeLike = jnp.float32,
  remat: Remat = "none",
  attend: Attend = attention.shared_prompt,
  place: Place = lambda x: x,
) -> Float[Array, "B S T D"]:
  """Returns the hidden state that predicts each completion token.

  A group's prompt runs once, and its S completions read its keys and values:
  P + S * T tokens instead of S * (P + T). Positions of every completion
  restart at the prompt's true length, and the first completion token is
  predicted by the prompt's last position.

  Args:
    params: Parameter pytree.
    prompt_ids: One prompt a group, padded on the right.
    prompt_length: Real tokens of each prompt, at least 1.
    completion_ids: Completions, padded on the right.
    config: Shape of the decoder.
    compute_dtype: Dtype of the matrix products.
    remat: What the backward pass recomputes.
    attend: Attention over the places of whole groups.
    place: Keeps an array that leads with groups where they lie.

  Returns:
    Normalised hidden states; [..., t, :] predicts `completion_ids[..., t]`.
  """
  batch, prompt_size = prompt_ids.shape
  _, num_kept, size = completion_ids.shape
  steps = prompt_length[:, None, None] + jnp.arange(size)
  positions = jnp.concatenate(
    [
      jnp.broadcast_to(jnp.arange(prompt_size), prompt_ids.shape),
      jnp.broadcast_to(steps, completion_ids.shape).reshape(batch, -1),
    ],
    axis=1,
  )
  ids = jnp.concatenate([prompt_ids, completion_ids.reshape(batch, -1)], axis=1)

  x = _run_layers(
    params,
    embed(params, ids, compute_dtype),
    positions,
    functools.partial(
      attend,
      prompt_length=prompt_length,
      prompt_size=prompt_size,
      num_kept=num_kept,
    ),
    config=config,
    remat=remat,
    place=place,
  )
  last = jnp.take_along_axis(x, (prompt_length - 1)[:, None, None], axis=1)
  hidden = x[:, prompt_size:].reshape(batch, num_kept, size, -1)
  first = jnp.broadcast_to(last[:, None], (batch, num_kept, 1, x.shape[-1]))
  hidden = jnp.concatenate([first, hidden[:, :, :-1]], axis=2)
  return final_norm(params, config, hidden)


def packed_hidden(
  params: Params,
  packing: Packing,
  prompt_length: Int[Array, " B"],
  *,
  prompt_size: int,
  num_kept: int,
  config: DecoderConfig,
  compute_dtype: DTypeLike = jnp.float32,
  remat: Remat = "none",
  attend: Attend = attention.shared_prompt,
  place: Place = lambda x: x,
) -> Float[Array, "R M D"]:
  """Returns what `group_hidden` does, for packed groups.

  All but attention runs on the packed tokens; attention moves its rows to
  their padded places and back.

  Args:
    params: Parameter pytree.
    packing: Where the tokens of R blocks of B / R groups stand.
    prompt_length: Real tokens of each group's prompt, at least 1.
    prompt_size: Places of a prompt (P).
    num_kept: Completions of a group (S).
    config: Shape of the decoder.
    compute_dtype: Dtype of the matrix products.
    remat: What the backward pass recomputes.
    attend: Attention over the places of whole groups.
    place: Keeps an array that leads with groups where they lie.

  Returns:
    Normalised hidden states; [..., m, :] predicts `packing.scored_ids[..., m]`.
  """
  num_groups = prompt_length.shape[0]
  where: Any = jax.tree.map(jnp.asarray, packing)

  def attend_packed(q, k, v):
    to_places = lambda x: _move_rows(
      x, where.to_padded, where.to_packed
    ).reshape(num_groups, -1, *x.shape[2:])
    out = attend(
      to_places(q), to_places(k), to_places(v), prompt_length=prompt_length,
      prompt_size=prompt_size, num_kept=num_kept,
    )  # fmt: skip
    out = out.reshape(where.to_padded.shape + q.shape[2:])
    return _move_rows(out, where.to_packed, where.to_padded)

  x = _run_layers(
    params,
    embed(params, where.token_ids, compute_dtype),
    where.positions,
    attend_packed,
    config=config,
    remat=remat,
    place=place,
  )
  # The last of a prompt predicts the first token of each completion.
  hidden = jnp.take_along_axis(x, where.predictor[..., None], axis=1)
  return final_norm(params, config, hidden)


@jax.custom_vjp
def _move_rows(
  x: Float[Array, "R A *rest"],
  source: Int[Array, "R B"],
  target: Int[Array, "R A"],
) -> Float[Array, "R B *rest"]:
  """Moves rows to other places, 0 where nothing comes from.

  Args:
    x: Rows.
    source: Row that comes to each place; A for none.
    target: Place that each row goes to; B for none. It says again what
      `source` does, so that the gradient is no scatter.

  Returns:
    The rows in their places.
  """
  del target
  return _take_rows(x, source)


def _take_rows(x: Array, rows: Array) -> Array:
  take = lambda x, rows: x.at[rows].get(mode="fill", fill_value=0)
  return jax.vmap(take)(x, rows)


_move_rows.defvjp(
  lambda x, source, target: (_take_rows(x, source), target),
  lambda target, gradient: (_take_rows(gradient, target), None, None),
)


def _run_layers(
  params: Params,
  x: Float[Array, "*rows D"],
  positions: Int[Array, "*rows"],
  attend: Attend,
  *,
  config: DecoderConfig,
  remat: Remat,
  place: Place,
) -> Float[Array, "*rows D"]:
  """Runs all layers for training."""

  def body(x, weights):
    layer = _layer(config, weights)
    # Weights split over the devices that split the groups: without it a
    # compiler may gather the groups instead of the weights.
    x = place(x)
    return place(layer.finish(x, attend(*layer.qkv(x, positions)))), None

  x, _ = jax.lax.scan(
    _with_remat(body, remat),
    x,
    params["layers"],
    # The backward pass of a scan stacks and slices what it saved.
    unroll=config.num_layers <= _MAX_UNROLLED_LAYERS,
  )
  return x


def _with_remat(body, remat: Remat):
  """Wraps a scan body so that its backward pass recomputes what is named."""
  if remat == "none":
    return body
  if remat == "layer":
    return jax.checkpoint(body, prevent_cse=False)
  if remat == "dots":
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return jax.checkpoint(body, policy=policy, prevent_cse=False)
  raise ValueError(
    f'remat must be "none", "layer" or "dots", got {remat!r}; '
    "set config.model.remat."
  )
