import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.model import decoder
from toolrl_jax.training import blocks, state, step

pytestmark = pytest.mark.usefixtures("quick_compile")

OPTIONS = step.UpdateOptions(
  remat="none", chunk_tokens=16, max_tokens=5, has_entropy=False, minibatches=2
)


@functools.lru_cache
def _grads_fn(config, options):
  def grads(params, batch):
    block = blocks.whole(batch)
    return step.loss_and_grads(
      step.block_sums(params, block, config=config, options=options)
    )

  return jax.jit(grads)


@functools.lru_cache
def _score_fn(config, options):
  def score(params, batch):
    block = blocks.whole(batch)
    return step.masked_logprobs(params, block, config=config, options=options)

  return jax.jit(score)


def test_loss_and_grads_shared_equals_repeated_in_float64(
  tiny_config, tiny_params, random_batch
):
  options = OPTIONS._replace(
    compute_dtype="float64", kl_coef=0.1, entropy_coef=0.01
  )
  with jax.enable_x64(True):
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tiny_params)
    batch = random_batch(batch=2, dtype=np.float64)
    # Recomputation and another chunking are exact too.
    shared, repeated = (
      _grads_fn(tiny_config, options._replace(**changes))(params, batch)
      for changes in (
        {"layout": "shared", "remat": "layer"},
        {"layout": "repeated", "chunk_tokens": 7},
      )
    )
    np.testing.assert_allclose(shared[0], repeated[0], rtol=1e-9)
    assert repeated[0].dtype == jnp.float64
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(
        a, b, rtol=1e-9, atol=1e-9 * float(np.abs(b).max())
      ),
      shared[1],
      repeated[1],
    )


def test_loss_and_grads_shared_equals_repeated_in_float32(
  tiny_config, tiny_params, random_batch
):
  shared, repeated = (
    _grads_fn(tiny_config, OPTIONS._replace(layout=layout))(
      tiny_params, random_batch(batch=2)
    )
    for layout in ("shared", "repeated")
  )
  size = lambda x: float(np.sqrt((np.asarray(x, np.float64) ** 2).sum()))
  norm = np.sqrt(sum(size(g) ** 2 for g in jax.tree.leaves(repeated[1])))
  errors = jax.tree.map(lambda a, b: size(a - b), shared[1], repeated[1])
  assert max(jax.tree.leaves(errors)) <= 1e-5 * norm


def test_score_block_equals_a_plain_forward(
  tiny_config, tiny_params, random_batch
):
  batch = random_batch(batch=2)
  score = _score_fn(tiny_config, OPTIONS._replace(temperature=0.5))
  scored = np.asarray(score(tiny_params, batch))
  forward = jax.jit(functools.partial(decoder.prefill, config=tiny_config))
  for b, s in ((0, 0), (0, 2), (1, 1)):
    prompt = batch.prompt_ids[b, : batch.prompt_length[b]]
    tokens = batch.completion_ids[b, s, : batch.completion_mask[b, s].sum()]
    for t, token in enumerate(tokens):
      ids = np.concatenate([prompt, tokens[:t]])
      # Padded to one length, so that the forward compiles once.
      padded = np.zeros((1, 12), np.int32)
      padded[0, : len(ids)] = ids
      logits = forward(tiny_params, padded, np.array([len(ids)], np.int32))[0]
      expected = np.asarray(jax.nn.log_softmax(logits[0] / 0.5))[token]
      np.testing.assert_allclose(scored[b, s, t], expected, atol=2e-5)
  assert np.all(scored[~batch.completion_mask] == 0)


def test_take_step_leaves_the_state_when_not_finite_or_nobody_takes_part(
  tiny_config, tiny_params, random_batch
):
  batch = random_batch(batch=2)
  optimizer = state.make_optimizer(0.1)
  params = jax.tree.map(jnp.asarray, tiny_params)
  first = state.init_state(params, optimizer)
  take = jax.jit(
    functools.partial(
      step.take_step, optimizer=optimizer, config=tiny_config, options=OPTIONS
    )
  )
  moved, metrics = take(first, blocks.whole(batch))
  assert metrics["update/is_finite"] and moved.step == 1
  broken = batch._replace(advantage=batch.advantage * np.float32(np.inf))
  empty = batch._replace(weight=batch.weight * 0)
  for other, is_finite in ((broken, False), (empty, True)):
    same, metrics = take(first, blocks.whole(other))
    assert bool(metrics["update/is_finite"]) == is_finite
    jax.tree.map(np.testing.assert_array_equal, same, first)


def test_block_loss_own_old_equals_given_old(
  tiny_config, tiny_params, random_batch
):
  batch = random_batch(batch=2)
  single = OPTIONS._replace(minibatches=1)
  old = np.asarray(_score_fn(tiny_config, OPTIONS)(tiny_params, batch))
  own = _grads_fn(tiny_config, single)(tiny_params, batch)
  given = _grads_fn(tiny_config, OPTIONS)(
    tiny_params, batch._replace(old_logprobs=old)
  )
  np.testing.assert_allclose(own[0], given[0], rtol=1e-5, atol=1e-6)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), own[1], given[1]
  )
  assert own[2].token_sums["ratio_mean"] == own[2].num_tokens
  assert single.is_own_old
  assert not single._replace(epochs_per_batch=2).is_own_old


def test_sft_loss_is_the_mean_over_target_tokens(
  tiny_config, tiny_params, random_batch
):
  batch = random_batch(batch=2)
  scored = np.asarray(_score_fn(tiny_config, OPTIONS)(tiny_params, batch))
  options = OPTIONS._replace(objective="sft")
  loss, _, parts = _grads_fn(tiny_config, options)(tiny_params, batch)
  num_tokens = batch.completion_mask.sum()
  np.testing.assert_allclose(loss, -scored.sum() / num_tokens, rtol=1e-6)
  assert parts.num_tokens == num_tokens


def test_loss_and_grads_memory_does_not_grow_with_vocabulary_times_prompt(
  tiny_config, random_batch
):
  vocab, short, long = 32_768, 16, 128
  config = tiny_config._replace(vocab_size=vocab)
  options = OPTIONS._replace(chunk_tokens=8, remat="layer")

  def temp_bytes(prompt):
    batch = random_batch(batch=1, kept=2, prompt=prompt, size=8)
    lowered = _grads_fn(config, options).lower(
      decoder.param_shapes(config), batch
    )
    return lowered.compile().memory_analysis().temp_size_in_bytes

  growth = temp_bytes(long) - temp_bytes(short)
  # Logits of the longer prompt alone would add 14.7 MB, its attention adds less than 1 MB.
  assert growth < 0.1 * (long - short) * vocab * 4


def test_check_options_rejects_what_cannot_run():
  for changes, message in (
    ({"minibatches": 0}, "minibatches and epochs_per_batch"),
    ({"temperature": 0.0}, "temperature must be above 0"),
    ({"layout": "both"}, "layout must be"),
    ({"objective": "ppo"}, "objective must be"),
  ):
    with pytest.raises(ValueError, match=message):
      step.check_options(OPTIONS._replace(**changes))
