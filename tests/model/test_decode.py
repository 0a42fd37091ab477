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


def _decode_all(
  config, params, prompts, lengths, banks, completion_ids, is_unstacked
):
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
    if is_unstacked:
      params = decoder.unstack_layers(params, config, dtype=jnp.float32)

    def step(cache, ids):
      is_live = jnp.ones(num_rows, bool)
      logits, cache = decoder.decode(
        params, ids, cache, is_live, jnp.int32(k.shape[1]), config=config
      )
      return cache, logits

    return jax.lax.scan(step, cache, completion_ids.T)[1].swapaxes(0, 1)

  return np.asarray(run(params, cache))


@pytest.mark.parametrize(
  ("is_unstacked", "num_banks"),
  [(True, 3), (True, 4), (False, 3), (False, 4)],
)
def test_decode_equals_the_group_forward(is_unstacked, num_banks):
  # Layers are taken apart or scanned; four banks for four rows are one a row,
  # three are shared.
  config = _config(3)
  params = decoder.init_params(config, jax.random.key(0))
  generator = np.random.default_rng(0)
  prompts = generator.integers(0, 50, (num_banks, 7), dtype=np.int32)
  lengths = np.array([7, 3, 5, 1][:num_banks], np.int32)
  banks = np.array([0, 1, 2, 3] if num_banks == 4 else [2, 0, 0, 1], np.int32)
  completion_ids = generator.integers(0, 50, (4, 5), dtype=np.int32)
  got = _decode_all(
    config, params, jnp.array(prompts), jnp.array(lengths), jnp.array(banks),
    jnp.array(completion_ids), is_unstacked,
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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_unstack_layers_takes_layers_apart_in_the_compute_dtype(dtype):
  config = _config(9)
  params = decoder.init_params(config, jax.random.key(0))
  copy = decoder.unstack_layers(params, config, dtype=dtype)
  assert len(copy["layers"]) == 9
  assert {leaf.dtype for leaf in jax.tree.leaves(copy)} == {jnp.dtype(dtype)}
  np.testing.assert_array_equal(
    copy["layers"][3]["q_proj"]["kernel"],
    params["layers"]["q_proj"]["kernel"][3].astype(dtype),
  )


@pytest.mark.parametrize("num_stored", [1, 4, 8])
def test_extend_equals_the_prefill_of_the_whole_prompt(num_stored):
  config = _config(3)
  params = decoder.init_params(config, jax.random.key(0))
  ids = np.random.default_rng(0).integers(0, 50, (1, 12), dtype=np.int32)
  length = np.array([9], np.int32)
  expected, k, v = decoder.prefill(
    params, jnp.array(ids), jnp.array(length), config=config
  )
  # Places behind the stored tokens hold anything: they are written or unseen.
  is_stored = (np.arange(12) < num_stored)[:, None, None]
  new = np.zeros((1, 8), np.int32)
  new[0, : 9 - num_stored] = ids[0, num_stored:9]
  logits, new_k, new_v = decoder.extend(
    params, jnp.array(new), jnp.array(length - num_stored),
    jnp.where(is_stored, k, 7.0), jnp.where(is_stored, v, 7.0),
    jnp.array([num_stored], jnp.int32), config=config,
  )  # fmt: skip
  np.testing.assert_allclose(logits, expected, atol=2e-5)
  np.testing.assert_allclose(new_k[:, :, :9], k[:, :, :9], atol=1e-5)
  np.testing.assert_allclose(new_v[:, :, :9], v[:, :, :9], atol=1e-5)
