"""Scored continuations against a plain forward pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.evaluation import likelihood
from toolrl_jax.model import decoder, presets

_CONFIG = presets.DecoderConfig(
  family="qwen2",
  vocab_size=64,
  width=16,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  ffn_width=16,
  max_positions=256,
)


@pytest.fixture(scope="module")
def params():
  return decoder.init_params(_CONFIG, jax.random.key(0))


@pytest.fixture(scope="module")
def scorer(params):
  return likelihood.LikelihoodScorer(params, _CONFIG)


def _logits(params, ids):
  """Logits of the token after `ids`, all in one shape."""
  padded = jnp.array([ids + [0] * (32 - len(ids))])
  return _prefill(params, padded, jnp.array([len(ids)]))[0][0]


_prefill = jax.jit(functools.partial(decoder.prefill, config=_CONFIG))


def _plain(params, ids, num_context):
  """Runs the whole beginning again for every token."""
  total, is_greedy = 0.0, True
  for place in range(num_context, len(ids)):
    logits = np.asarray(_logits(params, ids[:place]), np.float64)
    total += logits[ids[place]] - np.log(np.exp(logits).sum())
    is_greedy &= int(logits.argmax()) == ids[place]
  return total, is_greedy


def test_scores_equal_a_plain_forward_pass(params, scorer):
  generator = np.random.default_rng(0)
  context = generator.integers(0, 64, 19).tolist()
  sequences = [
    context + generator.integers(0, 64, size).tolist() for size in (1, 5, 3)
  ]
  other = generator.integers(0, 64, 12).tolist()
  sequences.append(other)
  num_context = [19, 19, 19, 1]
  marks = scorer(sequences, num_context)
  for ids, count, (total, is_greedy) in zip(sequences, num_context, marks):
    expected, was_greedy = _plain(params, ids, count)
    assert total == pytest.approx(expected, abs=1e-4)
    assert is_greedy == was_greedy


def test_the_most_probable_continuation_is_greedy(params, scorer):
  ids = [5, 6, 7]
  for _ in range(3):
    ids.append(int(_logits(params, ids).argmax()))
  ((_, is_greedy),) = scorer([ids], [3])
  assert is_greedy
  ids[-1] = (ids[-1] + 1) % 64
  ((_, is_greedy),) = scorer([ids], [3])
  assert not is_greedy


def test_one_context_is_computed_once(scorer, monkeypatch):
  calls = []
  run = scorer._run
  monkeypatch.setattr(
    scorer, "_run", lambda *args: calls.append(args[3].shape) or run(*args)
  )
  scorer([[1, 2, 3], [1, 2, 4], [1, 2, 5, 6], [9, 2, 3]], [2, 2, 2, 2])
  assert calls == [(1, 4, 4), (1, 1, 4)]


def test_a_sequence_needs_context(scorer):
  with pytest.raises(ValueError, match="at least one token of context"):
    scorer([[1, 2]], [0])
