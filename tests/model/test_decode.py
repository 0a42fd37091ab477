import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.model import decoder, presets


def _config(num_layers):
  return presets.DecoderConfig(
    family="qwen3", vocab_size=50, width=16, num_layers=num_layers,
    num_heads=4, num_kv_heads=2, head_dim=4, ffn_width=24, has_qk_norm=True,
  )  # fmt: skip


def _decode_all(config, params, prompts, lengths, banks, completion_ids):
  """Returns logits [R, T, V] of a row by row decode from the given banks."""
  _, k, v = decoder.prefill(params, prompts, lengths, config=config)
  num_rows, size = completion_ids.shape
  shape = (config.num_layers, num_rows, size, *k.shape[3:])
  cache = decoder.DecodeCache(
    k, v, lengths, banks, jnp.zeros(shape), jnp.zeros(shape),
    jnp.zeros(num_rows, jnp.int32),
  )  # fmt: skip

  @jax.jit
  def run(params, cache):
    params = decoder.unstack_layers(params, config)

    def step(cache, ids):
      is_live = jnp.ones(num_rows, bool)
      logits, cache = decoder.decode(
        params, ids, cache, is_live, jnp.int32(k.shape[1]), config=config
      )
      return cache, logits

    return jax.lax.scan(step, cache, completion_ids.T)[1].swapaxes(0, 1)

  return np.asarray(run(params, cache))


@pytest.mark.parametrize(
  ("num_layers", "num_banks"), [(2, 3), (2, 4), (9, 3), (9, 4)]
)
def test_decode_equals_the_group_forward(num_layers, num_banks):
  # Two layers are taken apart, nine are scanned; four banks for four rows
  # are one a row, three are shared.
  config = _config(num_layers)
  params = decoder.init_params(config, jax.random.key(0))
  generator = np.random.default_rng(0)
  prompts = generator.integers(0, 50, (num_banks, 7), dtype=np.int32)
  lengths = np.array([7, 3, 5, 1][:num_banks], np.int32)
  banks = np.array([0, 1, 2, 3] if num_banks == 4 else [2, 0, 0, 1], np.int32)
  completion_ids = generator.integers(0, 50, (4, 5), dtype=np.int32)
  got = _decode_all(
    config, params, jnp.array(prompts), jnp.array(lengths), jnp.array(banks),
    jnp.array(completion_ids),
  )  # fmt: skip
  hidden = decoder.group_hidden(
    params,
    jnp.array(prompts[banks]),
    jnp.array(lengths[banks]),
    jnp.array(completion_ids[:, None]),
    config=config,
  )
  expected = np.asarray(decoder.logits(params, hidden))[:, 0]
  # Decoding token t predicts token t + 1.
  np.testing.assert_allclose(got[:, :-1], expected[:, 1:], atol=2e-5)


def test_unstack_layers_leaves_deep_stacks_whole():
  shallow, deep = _config(8), _config(9)
  params = decoder.init_params(shallow, jax.random.key(0))
  layers = decoder.unstack_layers(params, shallow)["layers"]
  assert len(layers) == 8
  np.testing.assert_array_equal(
    layers[3]["q_proj"]["kernel"], params["layers"]["q_proj"]["kernel"][3]
  )
  assert decoder.unstack_layers(params, deep) is params
