"""What a step must take at least on a slice, from shapes alone.

From a decoder's shape, the sizes of a step and a chip's peak figures to FLOPs,
bytes and seconds that no program can beat, and to those at a share of the peak
that real programs reach. Knows neither configurations nor compilers.
"""

import math
from typing import NamedTuple

from toolrl_jax.lowering import Sizes
from toolrl_jax.model import flops
from toolrl_jax.model.presets import DecoderConfig

# A product's two gradients are as large as itself.
_FORWARD_SHARE = 1 / 3


class Chip(NamedTuple):
  """Peak figures of a chip, as its maker states them.

  Attributes:
    memory_gib: High-bandwidth memory, in GiB.
    flops_per_sec: Matrix products in bfloat16.
    bytes_per_sec: From and to that memory.
  """

  memory_gib: int
  flops_per_sec: float
  bytes_per_sec: float


CHIPS = {
  "v5e": Chip(16, 197e12, 819e9),
  "v5p": Chip(95, 459e12, 2765e9),
  "v6e": Chip(32, 918e12, 1640e9),
}


class StepBound(NamedTuple):
  """The least that one step of a run costs.

  Attributes:
    generated_tokens: Completion tokens, all full.
    updated_tokens: Tokens that the update computes.
    rollout_flops: Of all prefills and all decoding.
    update_flops: Of all updates, nothing recomputed.
    decode_bytes: That one chip reads while decoding: its part of weights and
      cache, once an iteration.
    rollout_secs: At the chip's peak.
    update_secs: At the chip's peak.
    utilisation: Share of the peak that is assumed.
    assumed_secs: Rollout and update at that share.
  """

  generated_tokens: int
  updated_tokens: int
  rollout_flops: float
  update_flops: float
  decode_bytes: float
  rollout_secs: float
  update_secs: float
  utilisation: float
  assumed_secs: float


def step_bound(
  config: DecoderConfig,
  sizes: Sizes,
  *,
  groups_per_step: int,
  epochs_per_batch: int,
  layouts: tuple[flops.Layout, flops.Layout],
  chip: Chip,
  num_chips: int,
  num_engines: int,
  engine_bytes: int,
  utilisation: float,
) -> StepBound:
  """Bounds a step from below.

      t = max(F_rollout / (E peak), I bytes / bandwidth) + F_update / (C peak)

  with C chips, E of them working on different rows, and I decode iterations
  of an engine, rounds of full slots.

  Args:
    config: Shape of the decoder.
    sizes: Sizes of the step; every prompt and completion is taken as full.
    groups_per_step: Prompts of a step.
    epochs_per_batch: Passes of the update over a batch.
    layouts: Of the rollout and of the update.
    chip: Peak figures.
    num_chips: Chips of the slice.
    num_engines: Rollout engines, one a host; the chips of one share its rows'
      work over the tensor axis only.
    engine_bytes: Of one chip: served weights and decode rows.
    utilisation: Share of the peak to assume, in (0, 1].

  Returns:
    The bound.
  """
  count = lambda num_kept, layout: (
    flops.group_update(
      config,
      prompt_tokens=sizes.prompt,
      completion_tokens=sizes.completion,
      num_kept=num_kept,
      layout=layout,
    ).total
  )
  rollout_layout, update_layout = layouts
  rollout_flops = (
    groups_per_step * count(sizes.group_size, rollout_layout) * _FORWARD_SHARE
  )
  update_flops = (
    float(groups_per_step)
    * epochs_per_batch
    * count(sizes.num_kept, update_layout)
  )
  rows = math.ceil(groups_per_step / num_engines) * sizes.group_size
  iterations = math.ceil(rows / sizes.slots) * sizes.completion
  decode_bytes = float(iterations) * engine_bytes
  rollout_secs = max(
    rollout_flops / (num_engines * chip.flops_per_sec),
    decode_bytes / chip.bytes_per_sec,
  )
  update_secs = update_flops / (num_chips * chip.flops_per_sec)
  prompts = 1 if update_layout == "shared" else sizes.num_kept
  updated = prompts * sizes.prompt + sizes.num_kept * sizes.completion
  return StepBound(
    generated_tokens=groups_per_step * sizes.group_size * sizes.completion,
    updated_tokens=groups_per_step * epochs_per_batch * updated,
    rollout_flops=rollout_flops,
    update_flops=update_flops,
    decode_bytes=decode_bytes,
    rollout_secs=rollout_secs,
    update_secs=update_secs,
    utilisation=utilisation,
    assumed_secs=(rollout_secs + update_secs) / utilisation,
  )
