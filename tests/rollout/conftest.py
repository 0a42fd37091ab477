"""A tiny decoder, prompts of mixed length, and ways to roll them out."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.model import decoder, presets
from toolrl_jax.rollout import collect, engine

STOP_IDS = (3, 7, 11)


@pytest.fixture(scope="session")
def config():
  return presets.DecoderConfig(
    family="qwen2",
    vocab_size=120,
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_width=48,
    has_qkv_bias=True,
    max_positions=256,
  )


@pytest.fixture(scope="session")
def params(config):
  return decoder.init_params(config, jax.random.key(0))


@pytest.fixture(scope="session")
def other_params(config):
  return decoder.init_params(config, jax.random.key(1))


@pytest.fixture(scope="session")
def batch():
  """Five prompts of 1 to 32 tokens."""
  generator = np.random.default_rng(0)
  lengths = np.array([9, 32, 1, 20, 27], np.int32)
  ids = generator.integers(0, 120, (5, 32), dtype=np.int32)
  ids[np.arange(32) >= lengths[:, None]] = 0
  return types.PromptBatch(ids, lengths, np.ones(5, bool))


@pytest.fixture(scope="session")
def rolling(config, params):
  """Makes engines and rollouts, of one shape unless told otherwise."""

  def make_engine(**overrides):
    settings = {
      "slots": 8,
      "group_size": 4,
      "decode_chunk": 4,
      "refill": 2,
      "stop_ids": STOP_IDS,
      "seed": 5,
    }
    weights = overrides.pop("params", params)
    return engine.RolloutEngine(config, weights, **{**settings, **overrides})

  def serve(server, batch, **overrides):
    return server.rollout(
      batch,
      **{
        "group_size": 4,
        "max_tokens": 18,
        "completion_buckets": (24,),
        "step": 2,
        **overrides,
      },
    )

  def rollout(batch, name="inline", settings=None, **overrides):
    with collect.start(make_engine(**(settings or {})), name) as server:
      return serve(server, batch, **overrides), server.stats

  return SimpleNamespace(engine=make_engine, serve=serve, rollout=rollout)


@pytest.fixture(scope="session")
def plain(rolling, batch):
  """What the inline server samples: the reference of the other tests."""
  return rolling.rollout(batch)


@pytest.fixture(scope="session")
def teacher_logits(config, params):
  """Logits that predict each completion token, of one full forward pass."""

  @jax.jit
  def forward(weights, prompt_ids, prompt_length, completion_ids):
    hidden = decoder.group_hidden(
      weights, prompt_ids, prompt_length, completion_ids, config=config
    )
    return decoder.logits(weights, hidden)

  def logits(batch, rollouts, weights=params):
    return np.asarray(
      forward(
        weights, batch.prompt_ids, batch.prompt_length, rollouts.completion_ids
      )
    )

  return logits


@pytest.fixture(scope="session")
def assert_same():
  """Asserts that two rollouts have the same bits."""

  def check(left, right):
    for name, a, b in zip(left._fields, left, right):
      np.testing.assert_array_equal(a, b, err_msg=name)

  return check
