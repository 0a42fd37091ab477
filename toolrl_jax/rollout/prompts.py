"""Prompts to keys and values: whole, or the rest of a stored beginning.

From padded token ids and parameters to a `Prefix`, several prompts a call,
and the choice of which prompts run together. The device functions are plain;
`decode_loop.make_programs` compiles them. They know nothing of rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from toolrl_jax.model import decoder
from toolrl_jax.model.presets import DecoderConfig
from toolrl_jax.rollout.request import Group

_SMALLEST_EXTENSION = 16


class Prefix(NamedTuple):
  """Prompts that were run in one call.

  Attributes:
    logits: Of the token after each prompt, [B, V].
    k: Keys of all layers, [L, B, P, N, H].
    v: Values of all layers.
  """

  logits: Float[Array, "B V"]
  k: Float[Array, "L B P N H"] | None
  v: Float[Array, "L B P N H"] | None


def prefill(
  params: decoder.Params,
  prompt_ids: Int[Array, "B P"],
  prompt_length: Int[Array, " B"],
  *,
  config: DecoderConfig,
  compute_dtype: Any,
) -> Prefix:
  """Runs prompts."""
  return Prefix(
    *decoder.prefill(
      params, prompt_ids, prompt_length, config=config,
      compute_dtype=compute_dtype,
    )
  )  # fmt: skip


def extend(
  params: decoder.Params,
  new_ids: Int[Array, "1 S"],
  num_new: Int[Array, " 1"],
  stored_k: Float[Array, "L 1 P N H"],
  stored_v: Float[Array, "L 1 P N H"],
  num_stored: Int[Array, " 1"],
  *,
  config: DecoderConfig,
  compute_dtype: Any,
) -> Prefix:
  """Runs what follows the stored tokens of one prompt."""
  return Prefix(
    *decoder.extend(
      params, new_ids, num_new, stored_k, stored_v, num_stored, config=config,
      compute_dtype=compute_dtype,
    )
  )  # fmt: skip


def extension_size(num_new: int) -> int:
  """Returns the bucket of so many tokens: a power of two from 16."""
  return max(_SMALLEST_EXTENSION, 1 << (num_new - 1).bit_length())


def run_together(groups: Sequence[Group], num_rows: int) -> None:
  """Notes for each group which groups share its prefill call.

  `num_rows` at a time in the order of submission, those that continue a
  stored prefix left out: the choice depends on nothing that happens later, so
  neither do the bits of a prompt.

  Args:
    groups: All groups of one rollout, in order.
    num_rows: Prompts a call, at least 1.
  """
  whole = [group for group in groups if group.stored is None]
  for start in range(0, len(whole), num_rows):
    members = whole[start : start + num_rows]
    for row, group in enumerate(members):
      group.mates, group.prefix_row = members, row


def prompt_rows(
  groups: Sequence[Group], num_rows: int
) -> tuple[Int[np.ndarray, "B P"], Int[np.ndarray, " B"]]:
  """Stacks prompts, filled up with rows of one token to a fixed number."""
  ids = np.zeros((num_rows, len(groups[0].prompt_ids)), np.int32)
  lengths = np.ones(num_rows, np.int32)
  for row, group in enumerate(groups):
    ids[row], lengths[row] = group.prompt_ids, group.prompt_length
  return ids, lengths


def extension_arguments(
  group: Group,
) -> tuple[np.ndarray, ...]:
  """Returns the arguments of `extend` after the parameters, for one group."""
  stored = group.stored
  new = group.prompt_ids[stored.num_tokens : group.prompt_length]
  ids = np.zeros((1, extension_size(len(new))), np.int32)
  ids[0, : len(new)] = new
  room = len(group.prompt_ids)
  count = stored.num_tokens
  padded = []
  for cache in (stored.k, stored.v):
    layers, _, *heads = cache.shape
    whole = np.zeros((layers, 1, room, *heads), cache.dtype)
    whole[:, 0, :count] = cache[:, :count]
    padded.append(whole)
  return (
    ids,
    np.array([len(new)], np.int32),
    *padded,
    np.array([count], np.int32),
  )
