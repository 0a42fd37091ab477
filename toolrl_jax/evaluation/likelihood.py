"""Scores given continuations with the policy, each context computed once.

From token ids to the log-probability of their last part, as
lm-evaluation-harness asks for it: the endings of one question are one group
over one prompt, the layout of the update. Knows neither text nor tasks.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from toolrl_jax.model import decoder
from toolrl_jax.model.presets import DecoderConfig

_LEAST_CONTEXT, _LEAST_CONTINUATION = 16, 4
# Tokens whose logits exist at one time.
_CHUNK_TOKENS = 256


class LikelihoodScorer:
  """Scores sequences with one set of parameters."""

  def __init__(
    self,
    params: decoder.Params,
    config: DecoderConfig,
    *,
    compute_dtype: Any = jnp.float32,
  ):
    """Prepares; nothing is compiled yet.

    Args:
      params: Parameter pytree, on devices.
      config: Shape of the decoder.
      compute_dtype: Dtype of the matrix products.
    """
    self._params = params
    self._run = jax.jit(
      functools.partial(_score, config=config, compute_dtype=compute_dtype)
    )

  def __call__(
    self, sequences: Sequence[Sequence[int]], num_context: Sequence[int]
  ) -> list[tuple[float, bool]]:
    """Scores the end of each sequence.

    Neighbours with the same context share its computation.

    Args:
      sequences: Token ids.
      num_context: How many of each are context, at least 1.

    Returns:
      Of each sequence the sum of the log-probabilities of the other tokens in
      nats, and whether each of them is the most probable one.

    Raises:
      ValueError: A sequence has no context.
    """
    if min(num_context, default=1) < 1:
      raise ValueError(
        "a sequence must have at least one token of context, got one without; "
        "begin it with the begin or end token."
      )
    pairs = [
      (tuple(ids[:count]), list(ids[count:]))
      for ids, count in zip(sequences, num_context, strict=True)
    ]
    marks: list[tuple[float, bool]] = []
    for context, members in itertools.groupby(pairs, key=lambda pair: pair[0]):
      marks += self._score_group(context, [ending for _, ending in members])
    return marks

  def _score_group(
    self, context: Sequence[int], endings: Sequence[Sequence[int]]
  ) -> list[tuple[float, bool]]:
    size = _bucket(max(map(len, endings)), _LEAST_CONTINUATION)
    prompt_ids = np.zeros((1, _bucket(len(context), _LEAST_CONTEXT)), np.int32)
    prompt_ids[0, : len(context)] = context
    ids = np.zeros((1, _bucket(len(endings), 1), size), np.int32)
    for row, ending in zip(ids[0], endings):
      row[: len(ending)] = ending
    logprobs, is_top = jax.device_get(
      self._run(
        self._params, prompt_ids, np.array([len(context)], np.int32), ids
      )
    )
    return [
      (
        float(logprobs[row, : len(ending)].sum(dtype=np.float64)),
        bool(is_top[row, : len(ending)].all()),
      )
      for row, ending in enumerate(endings)
    ]


def _bucket(length: int, least: int) -> int:
  """Returns the next power of two."""
  return max(least, 1 << (length - 1).bit_length() if length else 0)


def _score(
  params: decoder.Params,
  prompt_ids: Int[Array, "1 P"],
  prompt_length: Int[Array, " 1"],
  completion_ids: Int[Array, "1 S T"],
  *,
  config: DecoderConfig,
  compute_dtype: Any,
) -> tuple[Float[Array, "S T"], Bool[Array, "S T"]]:
  """Returns log-probabilities and whether each token is the most probable."""
  hidden = decoder.group_hidden(
    params,
    prompt_ids,
    prompt_length,
    completion_ids,
    config=config,
    compute_dtype=compute_dtype,
  )[0]
  table = decoder.head_table(params)
  rows = hidden.reshape(-1, hidden.shape[-1])
  flat = completion_ids.reshape(-1)

  def score(row):
    state, token = row
    logits = jnp.einsum(
      "d,vd->v",
      state,
      table.astype(state.dtype),
      preferred_element_type=jnp.float32,
    )
    logprob = logits[token] - jax.nn.logsumexp(logits)
    return logprob, jnp.argmax(logits) == token

  logprobs, is_top = jax.lax.map(score, (rows, flat), batch_size=_CHUNK_TOKENS)
  shape = completion_ids.shape[1:]
  return logprobs.reshape(shape), is_top.reshape(shape)
