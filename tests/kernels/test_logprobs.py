import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.kernels import logprobs


def _random(num_tokens=7, vocab=11, width=4, dtype=np.float32):
  rng = np.random.default_rng(0)
  hidden = rng.normal(size=(1, 1, num_tokens, width)).astype(dtype)
  table = rng.normal(size=(vocab, width)).astype(dtype)
  ids = rng.integers(0, vocab, (1, 1, num_tokens))
  return jnp.asarray(hidden), jnp.asarray(table), jnp.asarray(ids)


def test_token_logprobs_hand_value():
  # Logits (2 ln 3, 0) over temperature 2: (ln 3, 0), so p = (3/4, 1/4).
  hidden = jnp.array([[[[2 * np.log(3.0), 0.0]] * 2]], jnp.float32)
  table = jnp.eye(2)
  scored, entropy = logprobs.token_logprobs(
    hidden,
    table,
    jnp.array([[[0, 1]]]),
    temperature=2.0,
    chunk_tokens=8,
    has_entropy=True,
  )
  np.testing.assert_allclose(scored[0, 0], np.log([0.75, 0.25]), rtol=1e-6)
  # -(3/4 ln 3/4 + 1/4 ln 1/4)
  np.testing.assert_allclose(entropy[0, 0], 0.5623351, rtol=1e-6)


def test_token_logprobs_uniform_entropy_is_log_vocab():
  hidden, table, ids = _random()
  scored, entropy = logprobs.token_logprobs(
    hidden * 0, table, ids, temperature=1.0, chunk_tokens=3, has_entropy=True
  )
  np.testing.assert_allclose(scored, -np.log(11), rtol=1e-6)
  np.testing.assert_allclose(entropy, np.log(11), rtol=1e-6)


def test_token_logprobs_without_entropy_returns_none():
  assert (
    logprobs.token_logprobs(*_random(), temperature=1.0, chunk_tokens=9)[1]
    is None
  )


@pytest.mark.parametrize("chunk_tokens", [1, 3, 4])
def test_token_logprobs_chunks_equal_one_chunk(chunk_tokens):
  hidden, table, ids = _random()

  def total(hidden, table, chunk_tokens):
    scored, entropy = logprobs.token_logprobs(
      hidden,
      table,
      ids,
      temperature=0.7,
      chunk_tokens=chunk_tokens,
      has_entropy=True,
    )
    weights = jnp.arange(1.0, 8.0)
    return (scored * weights + 0.1 * entropy * weights).sum(), scored

  one, chunked = (
    jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(hidden, table, n)
    for n in (7, chunk_tokens)
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6),
    one,
    chunked,
  )


def test_token_logprobs_keeps_float64():
  with jax.enable_x64(True):
    hidden, table, ids = _random(dtype=np.float64)
    scored, _ = logprobs.token_logprobs(
      hidden, table, ids, temperature=1.0, chunk_tokens=3
    )
    logits = np.asarray(hidden[0, 0]) @ np.asarray(table).T
    expected = logits[np.arange(7), np.asarray(ids)[0, 0]] - np.log(
      np.exp(logits).sum(-1)
    )
    assert scored.dtype == jnp.float64
    np.testing.assert_allclose(scored[0, 0], expected, rtol=1e-13)


def test_token_logprobs_bfloat16_hidden_gives_float32():
  hidden, table, ids = _random()
  scored, _ = logprobs.token_logprobs(
    hidden.astype(jnp.bfloat16), table, ids, temperature=1.0, chunk_tokens=9
  )
  assert scored.dtype == jnp.float32


def test_token_logprobs_memory_is_one_chunk():
  num_tokens, vocab, width, chunk = 1024, 4096, 8, 64

  def total(hidden, table, ids, chunk_tokens):
    return logprobs.token_logprobs(
      hidden, table, ids, temperature=1.0, chunk_tokens=chunk_tokens
    )[0].sum()

  def temp_bytes(chunk_tokens):
    shapes = (
      jax.ShapeDtypeStruct((1, 1, num_tokens, width), jnp.float32),
      jax.ShapeDtypeStruct((vocab, width), jnp.float32),
      jax.ShapeDtypeStruct((1, 1, num_tokens), jnp.int32),
    )
    grad = jax.jit(jax.grad(total, argnums=(0, 1)), static_argnums=3)
    compiled = grad.lower(*shapes, chunk_tokens).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  all_logits = num_tokens * vocab * 4
  assert temp_bytes(num_tokens) >= all_logits
  # Three arrays of one chunk's logits, and the table's gradient twice.
  limit = 3 * all_logits * chunk // num_tokens + 4 * vocab * width * 4
  assert temp_bytes(chunk) <= limit


def test_token_logprobs_rejects_bad_arguments():
  arrays = _random()
  with pytest.raises(ValueError, match="temperature must be above 0"):
    logprobs.token_logprobs(*arrays, temperature=0.0, chunk_tokens=4)
  with pytest.raises(ValueError, match="chunk_tokens must be at least 1"):
    logprobs.token_logprobs(*arrays, temperature=1.0, chunk_tokens=0)
