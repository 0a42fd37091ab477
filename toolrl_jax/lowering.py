"""The programs of a run, lowered for devices that need not be there.

From a decoder's shape, sizes and a mesh to the update, prefill and decode
programs that a run compiles, over shapes and shardings alone: no array of
parameters exists. The module does not know configurations, topologies or
chips' memory.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from toolrl_jax.model import decoder, sharding
from toolrl_jax.model.presets import DecoderConfig
from toolrl_jax.rollout import decode_loop, engine, placement, sampling
from toolrl_jax.training import blocks, update
from toolrl_jax.training import step as step_lib
from toolrl_jax.training.state import TrainState
from toolrl_jax.training.step import UpdateOptions
from toolrl_jax.types import UpdateBatch


class Sizes(NamedTuple):
  """The padded sizes of a run's largest step.

  Attributes:
    num_groups: Groups of one optimizer step.
    prompt: Prompt bucket (P), in tokens.
    completion: Completion bucket (T), in tokens.
    num_kept: Rollouts of a group that are updated on (S).
    group_size: Rollouts of a prompt (G).
    slots: Decode rows (R).
  """

  num_groups: int
  prompt: int
  completion: int
  num_kept: int
  group_size: int
  slots: int


class Program(NamedTuple):
  """A program before compilation.

  Attributes:
    name: What a run does with it.
    lowered: The program.
    beside: Bytes a chip holds while it runs and that it does not take.
  """

  name: str
  lowered: jax.stages.Lowered
  beside: int


def bytes_per_device(tree: Any) -> int:
  """Returns the bytes of one device's part of described arrays."""
  total = 0
  for leaf in jax.tree.leaves(tree):
    where = leaf.sharding
    shape = leaf.shape if where is None else where.shard_shape(leaf.shape)
    total += math.prod(shape) * leaf.dtype.itemsize
  return total


def train_state(
  config: DecoderConfig,
  optimizer: optax.GradientTransformation,
  *,
  options: UpdateOptions,
  mesh: Mesh,
  param_dtype: Any,
) -> TrainState:
  """Describes the state of the optimisation: shapes, dtypes and shardings."""
  fns = update.make_update_fns(
    config, optimizer, options=options, strategy="sharded", mesh=mesh
  )
  return fns.template(
    jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, param_dtype),
      decoder.param_shapes(config),
    )
  )


def engine_params(state: TrainState, compute_dtype: Any) -> Any:
  """Describes the copy of the parameters that the engine serves."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, compute_dtype, sharding=x.sharding),
    state.params,
  )


def update_block(
  sizes: Sizes, *, options: UpdateOptions, mesh: Mesh
) -> tuple[blocks.Block, int]:
  """Describes what devices compute at one time, and how often in a step.

  Args:
    sizes: Sizes of the step; every prompt and completion is full.
    options: Layout, packing and groups of a block are read.
    mesh: Where the groups lie.

  Returns:
    The block as shapes and shardings, and the number of blocks of a step.
  """
  arranged = blocks.arrange(
    full_batch(sizes),
    num_shards=sharding.num_batch_shards(mesh),
    layout=options.layout,
    micro_groups=options.micro_groups,
    is_packed=options.is_packed,
  )
  where = sharding.batch_sharding(mesh)
  block = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
    arranged.blocks[0],
  )
  return block, len(arranged.blocks)


def full_batch(sizes: Sizes) -> UpdateBatch:
  """Makes a batch of the largest prompts and completions, on the host."""
  groups = (sizes.num_groups,)
  kept = (*groups, sizes.num_kept)
  tokens = (*kept, sizes.completion)
  return UpdateBatch(
    prompt_ids=np.zeros((*groups, sizes.prompt), np.int32),
    prompt_length=np.full(groups, sizes.prompt, np.int32),
    completion_ids=np.zeros(tokens, np.int32),
    completion_mask=np.ones(tokens, bool),
    old_logprobs=np.zeros(tokens, np.float32),
    rollout_logprobs=np.zeros(tokens, np.float32),
    reference_logprobs=np.zeros(tokens, np.float32),
    advantage=np.ones(kept, np.float32),
    weight=np.ones(kept, np.float32),
  )


def update_programs(
  config: DecoderConfig,
  optimizer: optax.GradientTransformation,
  sizes: Sizes,
  *,
  options: UpdateOptions,
  mesh: Mesh,
  state: TrainState,
  beside: int,
) -> list[Program]:
  """Lowers the update: one step, or a micro-step and its application.

  Args:
    config: Shape of the decoder.
    optimizer: From `state.make_optimizer`.
    sizes: Sizes of the step.
    options: Static choices of the update.
    mesh: Devices, here or described.
    state: From `train_state`.
    beside: Bytes a chip that the engine keeps meanwhile.

  Returns:
    "update" where all groups are computed at one time, else "update micro-step"
    and "update apply".
  """
  programs = update.mesh_programs(config, optimizer, options, mesh)
  block, num_blocks = update_block(sizes, options=options, mesh=mesh)
  if num_blocks == 1:
    return [Program("update", programs.step.lower(state, block), beside)]
  whole = sharding.replicated(mesh)
  sums = jax.eval_shape(programs.start, state.params, block)
  sums = step_lib.Sums(
    jax.tree.map(lambda x, p: _placed(x, p.sharding), sums.grads, state.params),
    jax.tree.map(lambda x: _placed(x, whole), sums.parts),
  )
  moments = bytes_per_device(state.opt_state)
  return [
    Program(
      "update micro-step",
      programs.add.lower(state.params, sums, block),
      beside + moments,
    ),
    Program(
      "update apply",
      programs.apply.lower(state, sums),
      beside + bytes_per_device(block),
    ),
  ]


def decode_rows(
  config: DecoderConfig,
  sizes: Sizes,
  *,
  params: Any,
  layout: str,
  compute_dtype: Any,
) -> decode_loop.DecodeState:
  """Describes the rows of an engine, which it keeps between rollouts.

  Args:
    config: Shape of the decoder.
    sizes: Sizes of the rollout.
    params: From `engine_params`; the rows lie with them.
    layout: "shared" keeps a prompt once a group, "repeated" once a row.
    compute_dtype: Dtype of the cache.
  """
  placed = placement.of_params(params, config)
  shapes = jax.eval_shape(
    functools.partial(
      decode_loop.init_state,
      config,
      slots=sizes.slots,
      num_banks=engine.num_banks(sizes.slots, sizes.group_size, layout),
      prompt_size=sizes.prompt,
      completion_size=sizes.completion,
      compute_dtype=compute_dtype,
    )
  )
  # Keys and values alone have five axes.
  return jax.tree.map(
    lambda x: _placed(x, placed.cache if x.ndim == 5 else placed.rest), shapes
  )


def rollout_programs(
  config: DecoderConfig,
  sizes: Sizes,
  *,
  params: Any,
  rows: decode_loop.DecodeState,
  options: sampling.SamplingOptions,
  decode_chunk: int,
  compute_dtype: Any,
  beside: int,
) -> list[Program]:
  """Lowers the prefill of one prompt and one chunk of decoding.

  Args:
    config: Shape of the decoder.
    sizes: Sizes of the rollout.
    params: From `engine_params`.
    rows: From `decode_rows`.
    options: Truncation and stop tokens.
    decode_chunk: Most tokens of a call.
    compute_dtype: Dtype of the matrix products and of the cache.
    beside: Bytes a chip of the train state, which stays.

  Returns:
    "prefill" and "decode", the latter over the stacked weights.
  """
  placed = placement.of_params(params, config)
  # Jitted functions, which their record calls callables.
  programs: Any = decode_loop.make_programs(
    config, options, num_steps=decode_chunk, compute_dtype=compute_dtype,
    placed=placed,
  )  # fmt: skip
  whole = lambda *shape: jax.ShapeDtypeStruct(
    shape, jnp.int32, sharding=placed.rest
  )
  prefill = programs.prefill.lower(params, whole(1, sizes.prompt), whole(1))
  decode = programs.decode_chunk.lower(params, rows, whole(), whole())
  return [
    Program("prefill", prefill, beside + bytes_per_device(rows)),
    Program("decode", decode, beside),
  ]


def _placed(x: jax.ShapeDtypeStruct, where: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)


def layer_flops(
  config: DecoderConfig, sizes: Sizes, *, options: UpdateOptions
) -> float:
  """Counts what the compiler sees in one layer of one group's update.

  A scan's body is counted once whatever its length, so the layers are
  unrolled, and the count of one layer is that of two less that of one.

  Args:
    config: Shape of the decoder.
    sizes: Lengths and kept rollouts are read.
    options: Layout is read; nothing is recomputed or packed.

  Returns:
    FLOPs forward and backward, element-wise operations included.
  """
  one, two = (_small_flops(config, sizes, options, n) for n in (1, 2))
  return two - one


def _small_flops(
  config: DecoderConfig, sizes: Sizes, options: UpdateOptions, num_layers: int
) -> float:
  """Counts the FLOPs of a decoder of few layers, on the host's device."""
  num_scored = sizes.num_kept * sizes.completion
  options = options._replace(
    remat="none", has_entropy=False, chunk_tokens=num_scored
  )
  small = config._replace(num_layers=num_layers)
  block = blocks.whole(full_batch(sizes._replace(num_groups=1)))
  lowered = jax.jit(
    functools.partial(step_lib.block_sums, config=small, options=options)
  ).lower(decoder.param_shapes(small), block)
  counted: Any = lowered.cost_analysis()
  return float(counted["flops"])
