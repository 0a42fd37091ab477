"""Where each parameter stands in a checkpoint, and how to read it shard-wise.

From a way to read part of a named matrix to the decoder's parameter pytree.
Names follow Hugging Face or GGUF; both store a projection as [out, in], the
decoder as [in, out], and both store layers apart, the decoder stacked. Knows
nothing of file formats.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from toolrl_jax.model import decoder, presets, source

Params = Any
Index = tuple[slice, ...]


class Tensor(NamedTuple):
  """One stored tensor: a parameter, or one layer of it.

  Attributes:
    path: Keys of the parameter in the pytree.
    layer: Layer of a stacked parameter, or None.
    hf_name: Its name in Hugging Face files.
    gguf_name: Its name in GGUF files.
    shape: Its stored shape; [out, in] for a projection.
  """

  path: tuple[str, ...]
  layer: int | None
  hf_name: str
  gguf_name: str
  shape: tuple[int, ...]

  @property
  def is_kernel(self) -> bool:
    """Whether the decoder holds the transpose of what is stored."""
    return self.path[-1] == "kernel"


# Reads `index` of a stored tensor, in the file's dtype and orientation.
Reader = Callable[[Tensor, Index], np.ndarray]

# Module in the pytree: (Hugging Face name, GGUF name).
_MODULES = {
  "embed": ("model.embed_tokens", "token_embd"),
  "final_norm": ("model.norm", "output_norm"),
  "head": ("lm_head", "output"),
  "attention_norm": ("input_layernorm", "attn_norm"),
  "q_proj": ("self_attn.q_proj", "attn_q"),
  "k_proj": ("self_attn.k_proj", "attn_k"),
  "v_proj": ("self_attn.v_proj", "attn_v"),
  "o_proj": ("self_attn.o_proj", "attn_output"),
  "q_norm": ("self_attn.q_norm", "attn_q_norm"),
  "k_norm": ("self_attn.k_norm", "attn_k_norm"),
  "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
  "gate_proj": ("mlp.gate_proj", "ffn_gate"),
  "up_proj": ("mlp.up_proj", "ffn_up"),
  "down_proj": ("mlp.down_proj", "ffn_down"),
}


def leaves(
  config: presets.DecoderConfig,
) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
  """Returns the path and shape of every parameter, in pytree order."""
  flat, _ = jax.tree.flatten_with_path(decoder.param_shapes(config))
  return [(tuple(key.key for key in path), leaf.shape) for path, leaf in flat]


def stored(config: presets.DecoderConfig) -> Iterator[Tensor]:
  """Yields every tensor of a checkpoint of this shape."""
  for path, shape in leaves(config):
    yield from stored_of(path, shape)


def stored_of(
  path: tuple[str, ...], shape: tuple[int, ...]
) -> Iterator[Tensor]:
  """Yields the stored tensors of one parameter, in layer order."""
  hf_module, gguf_module = _MODULES[path[-2]]
  suffix = "bias" if path[-1] == "bias" else "weight"
  if path[0] != "layers":
    hf_name, gguf_name = f"{hf_module}.{suffix}", f"{gguf_module}.{suffix}"
    yield Tensor(path, None, hf_name, gguf_name, shape)
    return
  flipped = shape[:0:-1] if path[-1] == "kernel" else shape[1:]
  for layer in range(shape[0]):
    yield Tensor(
      path,
      layer,
      f"model.layers.{layer}.{hf_module}.{suffix}",
      f"blk.{layer}.{gguf_module}.{suffix}",
      flipped,
    )


def assemble(
  config: presets.DecoderConfig,
  read: Reader,
  *,
  dtype: jax.typing.DTypeLike,
  shardings: Params | None = None,
) -> Params:
  """Builds the parameters, each shard read and placed on its own.

  Host memory holds the shards of one parameter at a time, never the model.

  Args:
    config: Shape of the decoder.
    read: Reads part of a stored tensor.
    dtype: Dtype of every parameter.
    shardings: A pytree of `jax.sharding.Sharding` like the parameters. None:
      everything on the first device.

  Returns:
    The parameter pytree.
  """
  single = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  shapes = decoder.param_shapes(config)
  if shardings is None:
    shardings = jax.tree.map(lambda _: single, shapes)
  dtype = np.dtype(dtype)
  placed = []
  with source.progress("loading", num_params(config) * dtype.itemsize) as bar:
    for (path, shape), sharding in zip(
      leaves(config), jax.tree.leaves(shardings), strict=True
    ):
      placed.append(_place(path, shape, read, dtype, sharding))
      bar.update(math.prod(shape) * dtype.itemsize)
  return jax.tree.unflatten(jax.tree.structure(shapes), placed)


def _place(
  path: tuple[str, ...],
  shape: tuple[int, ...],
  read: Reader,
  dtype: np.dtype,
  sharding: jax.sharding.Sharding,
) -> jax.Array:
  """Reads one parameter onto its devices."""
  tensors = list(stored_of(path, shape))
  # Replicas of a shard share one host array.
  seen: dict[tuple, np.ndarray] = {}

  def fill(index: Index | None) -> np.ndarray:
    index = (slice(None),) * len(shape) if index is None else index
    key = tuple(part.indices(size) for part, size in zip(index, shape))
    if key not in seen:
      seen[key] = _read_shard(tensors, index, read, dtype)
    return seen[key]

  array = jax.make_array_from_callback(shape, sharding, fill, dtype=dtype)
  return jax.block_until_ready(array)


def _read_shard(
  tensors: list[Tensor], index: Index, read: Reader, dtype: np.dtype
) -> np.ndarray:
  """Reads `index` of a parameter, stacking the layers it covers."""
  if tensors[0].layer is None:
    return np.asarray(read(tensors[0], index)).astype(dtype, copy=False)
  inner = index[:0:-1] if tensors[0].is_kernel else index[1:]
  parts = tensors[index[0]]
  sizes = [
    len(range(*part.indices(size)))
    for part, size in zip(inner, tensors[0].shape, strict=True)
  ]
  is_kernel = tensors[0].is_kernel
  out = np.empty((len(parts), *(sizes[::-1] if is_kernel else sizes)), dtype)
  for row, tensor in zip(out, parts, strict=True):
    piece = read(tensor, inner)
    row[...] = piece.T if is_kernel else piece
  return out


def num_params(config: presets.DecoderConfig) -> int:
  """Returns the number of parameters; a tied head counts once."""
  return sum(math.prod(shape) for _, shape in leaves(config))
