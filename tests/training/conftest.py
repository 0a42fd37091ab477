"""Random groups and a tiny decoder that the update's tests share."""

import jax
import numpy as np
import pytest

from toolrl_jax.model import decoder, presets
from toolrl_jax.types import UpdateBatch

_CONFIG = presets.DecoderConfig(
  family="qwen3",
  vocab_size=32,
  width=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  ffn_width=24,
  has_qk_norm=True,
)


def _random_batch(
  seed=0, *, batch=4, kept=3, prompt=7, size=5, dtype=np.float32
) -> UpdateBatch:
  """Draws groups with padding, old log-probabilities and weights of 1."""
  rng = np.random.default_rng(seed)
  prompt_length = rng.integers(2, prompt + 1, batch).astype(np.int32)
  is_prompt = np.arange(prompt) < prompt_length[:, None]
  length = rng.integers(1, size + 1, (batch, kept))
  mask = np.arange(size) < length[..., None]
  ids = lambda shape: rng.integers(1, _CONFIG.vocab_size, shape).astype(
    np.int32
  )
  near = lambda: (
    np.where(mask, -3.5 + 0.1 * rng.normal(size=mask.shape), 0.0)
  ).astype(dtype)
  return UpdateBatch(
    prompt_ids=ids((batch, prompt)) * is_prompt,
    prompt_length=prompt_length,
    completion_ids=ids(mask.shape) * mask,
    completion_mask=mask,
    old_logprobs=near(),
    rollout_logprobs=near(),
    reference_logprobs=near(),
    advantage=rng.normal(size=(batch, kept)).astype(dtype),
    weight=np.ones((batch, kept), dtype),
  )


@pytest.fixture(scope="session")
def tiny_config():
  """Shape of a decoder that compiles quickly."""
  return _CONFIG


@pytest.fixture(scope="session")
def tiny_params(tiny_config):
  """Its parameters on the host, safe from donation."""
  rng = np.random.default_rng(0)

  def draw(path, shape):
    if path[-1].key == "scale":
      return np.ones(shape.shape, np.float32)
    return rng.normal(0, 0.25, shape.shape).astype(np.float32)

  # Also traces the decoder's graph, which it keeps, in float32.
  shapes = decoder.param_shapes(tiny_config)
  return jax.tree_util.tree_map_with_path(draw, shapes)


@pytest.fixture(scope="session")
def random_batch():
  """The function that draws groups."""
  return _random_batch


@pytest.fixture(scope="module")
def quick_compile():
  """Compiles with few optimisations: half the seconds, the same results."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)
