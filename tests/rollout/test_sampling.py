import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl_jax.rollout import sampling

_sample = jax.jit(sampling.sample, static_argnames="options")
_pick = jax.jit(sampling.pick)


def _words(*words):
  return jnp.array(words, jnp.uint32)


def _keys(count, seed=0):
  return jnp.stack(
    [sampling.request_key(seed, _words(0, 0, 0, i)) for i in range(count)]
  )


def _log_softmax(x):
  x = np.asarray(x, np.float64)
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_pick_inverts_the_cumulative_sum_by_hand():
  # Weights 1, 0, 3: the first token owns [0, 1/4), the third [1/4, 1).
  uniform = jnp.array([0.0, 0.2499, 0.25, 0.999999])
  weights = jnp.tile(jnp.array([1.0, 0.0, 3.0]), (4, 1))
  got = sampling.pick(weights, uniform, jnp.zeros(4, jnp.int32))
  assert got.tolist() == [0, 0, 2, 2]


def test_pick_gives_each_token_its_share_of_the_unit_interval():
  # 300 tokens are three blocks, the last one short. On an even grid of N
  # points a token of probability p is picked N p times, up to its two edges.
  count = 20_000
  weights = np.random.default_rng(0).exponential(size=300).astype(np.float32)
  weights[100:140] = 0
  rows = jnp.tile(weights, (count, 1))
  grid = (jnp.arange(count) + 0.5) / count
  picked = np.asarray(_pick(rows, grid, jnp.zeros(count, jnp.int32)))
  counts = np.bincount(picked, minlength=300)
  expected = count * weights / weights.sum()
  assert np.abs(counts - expected).max() <= 1.5
  assert (counts[100:140] == 0).all()
  assert (np.diff(picked) >= 0).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 299), st.floats(0, 1 - 2**-23, width=32))
def test_pick_never_leaves_the_only_weighted_token(token, uniform):
  weights = np.zeros((1, 300), np.float32)
  weights[0, token] = 1e-30
  got = _pick(weights, jnp.array([uniform]), jnp.array([token], jnp.int32))
  assert got.tolist() == [token]


def test_pick_falls_back_where_rounding_meets_a_weightless_token():
  # The residual inside block 1 is far below the rounding of block 0's sum.
  weights = np.zeros((1, 256), np.float32)
  weights[0, :128] = 1.0
  weights[0, 200] = 1e-9
  got = _pick(weights, jnp.array([0.9999999]), jnp.array([5], jnp.int32))
  assert weights[0, got[0]] > 0


def test_request_key_differs_in_each_word_and_in_the_seed():
  base = (4, 1, 2, 3)
  keys = [sampling.request_key(0, _words(*base)).tolist()]
  for index in range(4):
    changed = [word + (i == index) for i, word in enumerate(base)]
    keys.append(sampling.request_key(0, _words(*changed)).tolist())
  keys.append(sampling.request_key(1, _words(*base)).tolist())
  assert len({tuple(key) for key in keys}) == 6


def test_uniforms_stay_as_they_were():
  # Written down once: a resumed run must draw what the first one drew.
  key = sampling.request_key(7, _words(3, 11, 12, 1))[None]
  drawn = [
    float(sampling.uniforms(key, jnp.array([n], jnp.int32))[0])
    for n in range(3)
  ]
  assert drawn == [
    0.4611506462097168,
    0.2412424087524414,
    0.44832122325897217,
  ]


def test_uniforms_fill_the_unit_interval():
  drawn = np.asarray(
    sampling.uniforms(_keys(4).repeat(500, 0), jnp.arange(2000) % 500)
  )
  assert drawn.min() >= 0 and drawn.max() < 1
  assert len(np.unique(drawn)) > 1990
  counts = np.histogram(drawn, bins=10, range=(0, 1))[0]
  assert np.abs(counts - 200).max() < 60  # four sigma are 54


@pytest.mark.parametrize(
  ("top_p", "top_k", "expected"),
  [
    (1.0, 0, [1, 1, 1, 1, 1]),
    (1.0, 1, [0, 1, 0, 0, 0]),
    (1.0, 2, [0, 1, 1, 1, 0]),  # the second and third largest tie
    (1.0, 9, [1, 1, 1, 1, 1]),
    (0.5, 0, [0, 1, 0, 0, 0]),
    (0.51, 0, [0, 1, 1, 1, 0]),
    (0.91, 0, [1, 1, 1, 1, 0]),
    (1e-9, 0, [0, 1, 0, 0, 0]),
    # Of what top-k left (8 + 3 + 3 of 16) the largest has 8 / 14 = 0.571.
    (0.57, 2, [0, 1, 0, 0, 0]),
    (0.58, 2, [0, 1, 1, 1, 0]),
  ],
)
def test_kept_equals_a_hand_worked_set(top_p, top_k, expected):
  # Probabilities 1.5, 8, 3, 3, 0.5 of 16.
  logits = jnp.log(jnp.array([[1.5, 8.0, 3.0, 3.0, 0.5]]))
  got = sampling.kept(logits, top_p=top_p, top_k=top_k)
  assert got[0].tolist() == [bool(x) for x in expected]


@settings(max_examples=8, deadline=None)
@given(
  st.integers(0, 10_000),
  st.floats(0.01, 1.0),
  st.integers(0, 12),
  st.booleans(),
)
def test_kept_equals_brute_force(seed, top_p, top_k, has_ties):
  logits = np.random.default_rng(seed).normal(size=(40, 12)) * 2
  logits = (np.round(logits) if has_ties else logits).astype(np.float32)
  got = np.asarray(sampling.kept(jnp.array(logits), top_p=top_p, top_k=top_k))
  for values, chosen in zip(logits.astype(np.float64), got):
    order = np.sort(values)[::-1]
    is_left = values >= order[top_k - 1] if top_k else np.ones(12, bool)
    weights = np.exp(values) * is_left
    # An upper set of what top-k left, whose share suffices, and without its
    # last value does not: both up to the rounding of float32.
    last = values[chosen].min()
    assert (chosen == (is_left & (values >= last))).all()
    if top_p == 1:
      assert (chosen == is_left).all()
      continue
    share = lambda kept, w=weights: w[kept].sum() / w.sum()
    assert share(chosen) >= top_p - 1e-6
    if (values[chosen] > last).any():
      assert share(chosen & (values > last)) < top_p + 1e-6


def test_sample_greedy_takes_the_first_largest_with_plain_logprob():
  logits = jnp.array([[0.0, 2.0, 2.0, -1.0]])
  got = _sample(
    logits, _keys(1), jnp.array([0]), jnp.zeros(1),
    options=sampling.SamplingOptions(),
  )  # fmt: skip
  assert got.token_ids.tolist() == [1]
  # -log(1 + 1 + e^-2 + e^-3)
  assert float(got.logprobs[0]) == pytest.approx(-0.781678, abs=1e-5)
  assert float(got.truncated_logprobs[0]) == float(got.logprobs[0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_sample_logprobs_are_of_the_full_and_the_kept_distribution(temperature):
  count = 64
  logits = np.random.default_rng(1).normal(size=(count, 200)) * 3
  options = sampling.SamplingOptions(top_p=0.8, top_k=20)
  got = _sample(
    jnp.array(logits, jnp.float32), _keys(count), jnp.zeros(count, jnp.int32),
    jnp.full(count, temperature), options=options,
  )  # fmt: skip
  scaled = (logits / temperature).astype(np.float32)
  is_kept = np.asarray(sampling.kept(jnp.array(scaled), top_p=0.8, top_k=20))
  token_ids, rows = np.asarray(got.token_ids), np.arange(count)
  assert is_kept[rows, token_ids].all()
  full = _log_softmax(scaled)[rows, token_ids]
  within = _log_softmax(np.where(is_kept, scaled, -np.inf))[rows, token_ids]
  np.testing.assert_allclose(got.logprobs, full, atol=1e-5)
  np.testing.assert_allclose(got.truncated_logprobs, within, atol=1e-5)


def test_sample_of_a_row_does_not_depend_on_its_place_or_neighbours():
  logits = jax.random.normal(jax.random.key(0), (8, 500))
  keys, counts = _keys(8), jnp.arange(8)
  temperature = jnp.array([1.0, 0.0, 0.5, 1.0, 2.0, 0.0, 1.0, 1.0])
  options = sampling.SamplingOptions(top_p=0.9)
  base = _sample(logits, keys, counts, temperature, options=options)
  order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
  moved = _sample(
    logits[order], keys[order], counts[order], temperature[order],
    options=options,
  )  # fmt: skip
  for a, b in zip(base, moved):
    np.testing.assert_array_equal(np.asarray(a)[order], b)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"top_p": 0.0}, "top_p must be in"),
    ({"top_p": 1.5}, "top_p must be in"),
    ({"top_k": -1}, "top_k must be at least 0"),
    ({"stop_ids": (5, 120)}, "stop tokens must be below"),
  ],
)
def test_make_options_refuses_values_out_of_range(change, message):
  valid = {
    "top_p": 1.0,
    "top_k": 0,
    "stop_ids": (1,),
    "vocab_size": 120,
  }
  with pytest.raises(ValueError, match=message):
    sampling.make_options(**{**valid, **change})
