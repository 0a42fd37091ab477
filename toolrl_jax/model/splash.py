"""Attention of a shared-prompt row by the TPU kernel that JAX ships.

From the rotated and scaled queries, keys and values of one row a group, laid
out [prompt | completion 0 | ... | completion S - 1], to the weighted values of
all its tokens in one call of splash attention. The module does not know
layers, rotations or losses; on other devices attention.shared_prompt computes
the same.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as kernels,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as masks,
)
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

# Tried from the largest: fewer grid steps and fuller matrix units. The kernel
# needs multiples of 128 lanes, whatever the head size.
_BLOCK_SIZES = (512, 256, 128)
# A block size may add at most this part of a row's tokens as padding.
_MAX_PADDING = 1 / 8
_INT32_BITS = 31


class SharedPromptMask(masks.Mask):
  """Which keys a query of a shared-prompt row sees.

  Key j is seen by query i when j <= i and j is of the prompt or of i's own
  completion. The kernel skips blocks without a seen key and computes the mask
  of the others from one integer a query; no [N, N] array exists. Tokens beyond
  the last completion count as further completions, which no real token sees.

  Attributes:
    q_sequence: What the kernel hands to mask_function for each query.
    mask_function: From such numbers and key places to the mask: itself.
  """

  def __init__(self, num_tokens: int, prompt_size: int, completion_size: int):
    """Makes the mask of a row.

    Args:
      num_tokens: Tokens of the row: prompt, completions and what fills the
        last block.
      prompt_size: Tokens of the prompt with its padding.
      completion_size: Tokens of each completion with its padding.

    Raises:
      ValueError: When place and completion of a token do not fit one int32.
    """
    self._num_tokens = num_tokens
    self._prompt_size = prompt_size
    self._completion_size = completion_size
    # Vector units have no integer division, so the completion of a query is
    # not worked out in the kernel: it is packed above the query's place.
    self._place_bits = num_tokens.bit_length()
    place = np.arange(num_tokens)
    completion = np.maximum(place - prompt_size, 0) // completion_size
    if int(completion[-1]).bit_length() + self._place_bits > _INT32_BITS:
      raise ValueError(
        "a row's tokens times its completions must stay below 2 ** 31, got "
        f"{num_tokens} x {completion[-1] + 1}; lower group_size or the lengths."
      )
    packed = place + (completion << self._place_bits)
    self.q_sequence = packed.astype(np.int32)
    # Itself, because jit compiles a kernel once for equal functions.
    self.mask_function = self

  @property
  def shape(self) -> tuple[int, int]:
    """Number of queries and of keys."""
    return (self._num_tokens, self._num_tokens)

  def __getitem__(self, idx: tuple[slice, slice]) -> Bool[np.ndarray, "Q K"]:
    """Returns the mask of a block; a uniform one is not worked out."""
    top, bottom, _ = idx[0].indices(self._num_tokens)
    left, right, _ = idx[1].indices(self._num_tokens)
    shape = (bottom - top, right - left)
    first, last = self._start(top), self._start(bottom - 1)
    is_of_siblings = self._prompt_size <= left and right <= first
    if left >= bottom or is_of_siblings:
      return np.zeros(shape, bool)
    if right <= top + 1 and (right <= self._prompt_size or left >= last):
      return np.ones(shape, bool)
    keys = np.arange(left, right, dtype=np.int32)
    return np.asarray(self(self.q_sequence[top:bottom, None], keys[None]))

  def __call__(
    self,
    query: Int[Array | np.ndarray, "*queries"],
    key: Int[Array | np.ndarray, "*keys"],
  ) -> Bool[Array | np.ndarray, "Q K"]:
    """Returns the mask of packed queries and key places, in the kernel too."""
    place = query & ((1 << self._place_bits) - 1)
    start = self._completion_size * (query >> self._place_bits)
    # Prompt keys are negative here; without the sign bit they come after all
    # completions, so one comparison lets them and the own completion pass.
    from_prompt = (key - self._prompt_size) & ((1 << _INT32_BITS) - 1)
    return (key <= place) & (from_prompt >= start)

  def __eq__(self, other: object) -> bool:
    """Returns whether both mask alike."""
    if not isinstance(other, SharedPromptMask):
      return NotImplemented
    return self._sizes() == other._sizes()

  def __hash__(self) -> int:
    """Returns a hash that agrees with equality."""
    return hash(self._sizes())

  def _sizes(self) -> tuple[int, int, int]:
    return self._num_tokens, self._prompt_size, self._completion_size

  def _start(self, place: int) -> int:
    """Returns where the completion of a token starts; P for the prompt."""
    completion = max(place - self._prompt_size, 0) // self._completion_size
    return self._prompt_size + completion * self._completion_size


def shared_prompt(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N K D"],
  v: Float[Array, "B N K D"],
  prompt_length: Int[Array, " B"],
  *,
  prompt_size: int,
  num_kept: int,
  mesh: Mesh | None = None,
  interpret: bool = False,
) -> Float[Array, "B N H D"]:
  """Attends a row's prompt and completions in one kernel call.

  A prompt token sees the prompt up to itself; a completion token sees the
  real prompt and its own past, nothing of its siblings. Blocks of keys that
  no query of a block sees are skipped. What padding tokens get is finite and
  without meaning.

  Args:
    q: Queries of N = P + S * T tokens, rotated and scaled.
    k: Keys, rotated, of K heads that H / K query heads share each.
    v: Values.
    prompt_length: Real prompt tokens, in [1, P]; the others stand right.
    prompt_size: Prompt tokens with padding: P.
    num_kept: Completions of the row: S, at least 1.
    mesh: Where q, k and v lie: rows over ("data", "fsdp"), heads over
      "tensor". Keys and values are repeated to the fewest heads that "tensor"
      divides; query heads that cannot be split so are computed on every
      "tensor" device. None for one device.
    interpret: Whether to emulate the kernel, on devices other than TPUs.

  Returns:
    Weighted values, in q's dtype.

  Raises:
    ValueError: When the completions do not divide the tokens after the
      prompt, or the mesh does not divide the rows.
  """
  completion_size, rest = divmod(q.shape[1] - prompt_size, num_kept)
  if rest or completion_size < 1:
    raise ValueError(
      "tokens after the prompt must be a positive multiple of num_kept, got "
      f"{q.shape[1] - prompt_size} for {num_kept}; pad the completions alike."
    )
  attend = functools.partial(
    _attend,
    prompt_size=prompt_size,
    completion_size=completion_size,
    interpret=interpret,
  )
  if mesh is None:
    return attend(q, k, v, prompt_length)
  num_shards = mesh.shape["data"] * mesh.shape["fsdp"]
  if q.shape[0] % num_shards:
    raise ValueError(
      f"rows must be a multiple of data x fsdp, got {q.shape[0]} for "
      f"{num_shards}; choose a batch that config.mesh divides."
    )
  rows = PartitionSpec(("data", "fsdp"))
  num_copies = _copies_of_kv_head(q.shape[2], k.shape[2], mesh.shape["tensor"])
  heads = PartitionSpec(
    ("data", "fsdp"), None, "tensor" if num_copies else None
  )
  k, v = (jnp.repeat(x, max(num_copies, 1), axis=2) for x in (k, v))
  # Kernels carry no record of which mesh axes their results vary over.
  return jax.shard_map(
    attend,
    mesh=mesh,
    in_specs=(heads, heads, heads, rows),
    out_specs=heads,
    check_vma=False,
  )(q, k, v, prompt_length)


def _copies_of_kv_head(num_heads: int, num_kv_heads: int, tensor: int) -> int:
  """Returns how often to repeat key heads to split them; 0 when impossible.

  The query heads of one shard must be all the sharers of its key heads.
  """
  num_copies = tensor // math.gcd(num_kv_heads, tensor)
  return 0 if num_heads % (num_kv_heads * num_copies) else num_copies


def _block_size(num_tokens: int) -> int:
  """Returns the largest block size that pads a row little enough."""
  for size in _BLOCK_SIZES[:-1]:
    if -num_tokens % size <= num_tokens * _MAX_PADDING:
      return size
  return _BLOCK_SIZES[-1]


def _attend(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N K D"],
  v: Float[Array, "B N K D"],
  prompt_length: Int[Array, " B"],
  *,
  prompt_size: int,
  completion_size: int,
  interpret: bool,
) -> Float[Array, "B N H D"]:
  """Runs the kernel on the rows and heads of one device."""
  num_tokens, num_heads = q.shape[1:3]
  size = _block_size(num_tokens)
  padding = -num_tokens % size
  heads_q, heads_k, heads_v = (
    jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, padding), (0, 0)))
    for x in (q, k, v)
  )
  mask = SharedPromptMask(num_tokens + padding, prompt_size, completion_size)
  kernel = kernels.make_splash_mha(
    masks.MultiHeadMask((mask,) * num_heads),
    block_sizes=kernels.BlockSizes(*(size,) * 8),
    head_shards=1,
    q_seq_shards=1,
    interpret=interpret,
  )
  # Padding of the prompt is a segment of its own: completions do not see it.
  place = jnp.arange(num_tokens + padding)
  is_padding = (place >= prompt_length[:, None]) & (place < prompt_size)
  segment = is_padding.astype(jnp.int32)
  out = jax.vmap(kernel)(
    heads_q, heads_k, heads_v, kernels.SegmentIds(segment, segment)
  )
  return out[:, :, :num_tokens].swapaxes(1, 2)
