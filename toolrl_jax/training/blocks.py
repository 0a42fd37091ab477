"""A batch of groups to blocks that devices compute, with little padding.

A block is what one device computes at one time: whole groups, whose tokens
stand one after another ("packed") wherever tokens do not look at each other.
Only attention sees them padded, group by group. From an `UpdateBatch` on the
host to `Block`s; the module does not know the model, the loss or devices.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from toolrl_jax.types import Packing, UpdateBatch

# Capacities are an eighth of an octave apart, but not less than this: every
# one that occurs is compiled.
_LEAST_STEP = 512
_STEPS_PER_OCTAVE = 8
# Packing moves rows around; below this saving it is not worth it.
_LEAST_SAVING = 0.1


class Block(NamedTuple):
  """R blocks that are computed at one time, one a device.

  Attributes:
    groups: The groups; every leaf has two leading axes, blocks and groups of a
      block. Short blocks are filled up with groups of weight 0.
    packing: Where their tokens stand, or None when they stay padded.
    idle_divisor: What the groups that are not computed add to the divisor of
      the loss, float32 [R].
  """

  groups: UpdateBatch
  packing: Packing | None
  idle_divisor: Float[Array | np.ndarray, " R"]


class Arrangement(NamedTuple):
  """A batch as blocks, in the order in which they are computed.

  Attributes:
    blocks: Blocks of one shape.
    rows: Group of the batch at each place of each block, int [R, g]; -1 where
      a block is filled up.
    num_tokens: Real tokens that one pass over the blocks computes.
    num_computed: Tokens that it computes, padding included.
  """

  blocks: list[Block]
  rows: list[np.ndarray]
  num_tokens: int
  num_computed: int


def arrange(
  batch: UpdateBatch,
  *,
  num_shards: int,
  layout: str,
  micro_groups: int = 0,
  is_packed: bool = True,
  is_computed: np.ndarray | None = None,
  idle_divisor: float = 0.0,
) -> Arrangement:
  """Distributes whole groups over blocks of about equal numbers of tokens.

  The shapes depend on the batch alone, so that a resumed run computes the
  same.

  Args:
    batch: Groups (B).
    num_shards: Blocks that are computed at one time (R), one a device.
    layout: "shared" has a group's prompt once, "repeated" once a completion.
    micro_groups: Most groups of a block; 0 puts all groups into R blocks.
    is_packed: Whether blocks may be packed.
    is_computed: Groups that are computed at all, bool [B]; None is all. Where
      none is, a block is filled with nothing.
    idle_divisor: What the others add to the divisor of the loss.

  Returns:
    The blocks.
  """
  if is_computed is None:
    is_computed = np.ones(len(batch.prompt_length), bool)
  chosen = np.flatnonzero(is_computed)
  sizes = _group_tokens(batch, layout)
  # A power of two: places without a group cost attention only.
  num_groups = max(len(chosen), 1)
  block_groups = 1 << (-(-num_groups // num_shards) - 1).bit_length()
  if micro_groups:
    block_groups = min(block_groups, micro_groups)
  num_rounds = -(-num_groups // (num_shards * block_groups))
  rows = _balance(
    chosen, sizes, num_blocks=num_rounds * num_shards, capacity=block_groups
  ).reshape(num_rounds, num_shards, block_groups)
  grouped = [_take(batch, round_rows) for round_rows in rows]
  packings: list[Packing | None] = [None] * num_rounds
  places = _num_places(batch, layout) * block_groups
  num_computed = places
  if is_packed:
    packed = _pack(grouped, layout, most=int((1 - _LEAST_SAVING) * places))
    if packed is not None:
      packings, num_computed = [*packed], packed[0].token_ids.shape[1]
  idle = np.zeros((num_rounds, num_shards), np.float32)
  idle[0, 0] = idle_divisor
  return Arrangement(
    [Block(*parts) for parts in zip(grouped, packings, idle, strict=True)],
    [*rows],
    num_tokens=int(sizes[chosen].sum()),
    num_computed=num_computed * num_rounds * num_shards,
  )


def whole(batch: UpdateBatch) -> Block:
  """Returns all groups as one padded block, in their order."""
  groups = UpdateBatch(*(x[None] for x in batch))
  return Block(groups, None, np.zeros(1, np.float32))


def capacity(num_tokens: int, *, steps_per_octave: int) -> int:
  """Rounds a number of tokens up, so that few shapes are compiled.

  Args:
    num_tokens: What has to fit, at least 0.
    steps_per_octave: Sizes between two powers of two, a power of two.

  Returns:
    The next multiple of 2^k / steps_per_octave, 2^k being the largest power of
    two that is no larger than `num_tokens`; of 512 where that is more.
  """
  octave = 1 << (max(num_tokens, 1).bit_length() - 1)
  step = max(octave // steps_per_octave, _LEAST_STEP)
  return step * max(1, math.ceil(num_tokens / step))


def _num_places(batch: UpdateBatch, layout: str) -> int:
  """Counts the padded places of a group."""
  _, kept, size = batch.completion_ids.shape
  prompt = batch.prompt_ids.shape[1]
  return (kept * prompt if layout == "repeated" else prompt) + kept * size


def _group_tokens(batch: UpdateBatch, layout: str) -> np.ndarray:
  """Counts the real tokens of each group, 0 where it has no completion."""
  lengths = np.asarray(batch.completion_mask).sum(axis=2)
  copies = lengths.shape[1] if layout == "repeated" else 1
  tokens = copies * np.asarray(batch.prompt_length) + lengths.sum(axis=1)
  return np.where(lengths.any(axis=1), tokens, 0)


def _balance(
  chosen: np.ndarray, sizes: np.ndarray, *, num_blocks: int, capacity: int
) -> np.ndarray:
  """Gives each group, largest first, to the lightest block with room.

  Returns:
    Groups of each block in the order of the batch, -1 behind them,
    [num_blocks, capacity].
  """
  members: list[list[int]] = [[] for _ in range(num_blocks)]
  loads = [0] * num_blocks
  # The most even counts: else a block of few long groups, one of many short.
  room = [
    len(chosen) // num_blocks + (i < len(chosen) % num_blocks)
    for i in range(num_blocks)
  ]
  for group in sorted(chosen, key=lambda i: (-sizes[i], i)):
    block = min(
      (i for i in range(num_blocks) if len(members[i]) < room[i]),
      key=lambda i: (loads[i], i),
    )
    members[block].append(int(group))
    loads[block] += int(sizes[group])
  rows = np.full((num_blocks, capacity), -1)
  for row, groups in zip(rows, members):
    row[: len(groups)] = sorted(groups)
  return rows


def _take(batch: UpdateBatch, rows: np.ndarray) -> UpdateBatch:
  """Takes groups [R, g] of a batch; those of index -1 hold nothing."""
  is_real = rows >= 0

  def take(x):
    taken = np.asarray(x)[np.maximum(rows, 0)]
    return np.where(is_real.reshape(*rows.shape, *[1] * (x.ndim - 1)), taken, 0)

  taken = UpdateBatch(*(take(np.asarray(x)).astype(x.dtype) for x in batch))
  # A prompt has at least one token, also where nobody reads it.
  return taken._replace(prompt_length=np.maximum(taken.prompt_length, 1))


def _pack(
  grouped: list[UpdateBatch], layout: str, *, most: int
) -> list[Packing] | None:
  """Packs all blocks into one shape; None when it exceeds `most` tokens."""
  laid = [_lay_out(groups, layout) for groups in grouped]
  num_tokens = capacity(
    max(int(one.is_token.sum(axis=1).max()) for one in laid),
    steps_per_octave=_STEPS_PER_OCTAVE,
  )
  if num_tokens > most:
    return None
  # Scores are a small part of the work: fewer sizes, fewer compilations.
  num_scored = capacity(
    max(int(one.is_scored.sum(axis=1).max()) for one in laid),
    steps_per_octave=_STEPS_PER_OCTAVE // 4,
  )
  return [_packing(one, num_tokens, num_scored) for one in laid]


class _Layout(NamedTuple):
  """What stands at each padded place of a block, [R, G]."""

  ids: np.ndarray
  positions: np.ndarray
  is_token: np.ndarray
  is_completion: np.ndarray
  predictor: np.ndarray

  @property
  def is_scored(self) -> np.ndarray:
    return self.is_completion & self.is_token


def _lay_out(groups: UpdateBatch, layout: str) -> _Layout:
  """Lists the places of blocks, group by group: prompt, then completions."""
  prompt_ids, prompt_length = groups.prompt_ids, groups.prompt_length
  completion_ids, mask = groups.completion_ids, groups.completion_mask
  if layout == "repeated":
    kept = completion_ids.shape[2]
    prompt_ids = np.repeat(prompt_ids, kept, axis=1)
    prompt_length = np.repeat(prompt_length, kept, axis=1)
    apart = lambda x: x.reshape(x.shape[0], -1, 1, x.shape[3])
    completion_ids, mask = apart(completion_ids), apart(mask)
  num_blocks, num_groups, prompt_size = prompt_ids.shape
  kept, size = completion_ids.shape[2:]
  flat = lambda x: x.reshape(num_blocks, num_groups, -1)
  join = lambda a, b: np.concatenate([a, flat(b)], axis=2)
  starts = prompt_length[..., None]
  steps = np.broadcast_to(np.arange(size), completion_ids.shape)
  places = np.arange(prompt_size)
  # A group without completions fills the block up and holds no token.
  is_real = mask.any(axis=(2, 3))[..., None]
  first_place = np.arange(num_groups)[:, None] * (prompt_size + kept * size)
  own_place = first_place + prompt_size + np.arange(kept * size)
  own_place = own_place.reshape(num_groups, kept, size)
  last_of_prompt = first_place + starts - 1
  before = np.where(steps == 0, last_of_prompt[..., None], own_place - 1)
  nothing = np.zeros_like(prompt_ids)
  merge = lambda x: x.reshape(num_blocks, -1)
  return _Layout(
    ids=merge(join(prompt_ids, completion_ids)),
    positions=merge(join(nothing + places, starts[..., None] + steps)),
    is_token=merge(join((places < starts) & is_real, mask)),
    is_completion=merge(join(nothing, np.ones_like(mask))).astype(bool),
    predictor=merge(join(nothing, before)),
  )


def _packing(laid: _Layout, num_tokens: int, num_scored: int) -> Packing:
  """Numbers the tokens of each block from the left."""
  num_blocks, num_places = laid.ids.shape
  to_padded = _numbers(laid.is_token, fill=num_tokens)
  scores = _numbers(laid.is_scored, fill=num_scored)
  # Whether a place is a completion's is the same in every block.
  to_scores = scores[:, laid.is_completion[0]]
  to_packed = _places(laid.is_token, num_tokens, fill=num_places)
  scored = _places(laid.is_scored, num_scored, fill=0)
  blocks = np.arange(num_blocks)[:, None]
  at = np.minimum(to_packed, num_places - 1)
  is_filled = to_packed < num_places
  predictor = to_padded[blocks, laid.predictor[blocks, scored]]
  return Packing(
    token_ids=np.where(is_filled, laid.ids[blocks, at], 0).astype(np.int32),
    positions=np.where(is_filled, laid.positions[blocks, at], 0).astype(
      np.int32
    ),
    to_padded=to_padded,
    to_packed=to_packed,
    scored_ids=laid.ids[blocks, scored].astype(np.int32),
    predictor=np.minimum(predictor, num_tokens - 1),
    to_scores=to_scores,
  )


def _numbers(is_there: np.ndarray, *, fill: int) -> np.ndarray:
  """Numbers the places of each row that hold something, int32 [R, G]."""
  numbers = np.cumsum(is_there, axis=1) - 1
  return np.where(is_there, numbers, fill).astype(np.int32)


def _places(is_there: np.ndarray, count: int, *, fill: int) -> np.ndarray:
  """Lists the places of each row that hold something, int32 [R, count]."""
  places = np.full((len(is_there), count), fill, np.int32)
  for row, flags in zip(places, is_there):
    found = np.flatnonzero(flags)
    row[: len(found)] = found
  return places
