"""Tests of toolrl_jax/kernels/selection.py."""

import collections
import functools
import itertools

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.kernels import selection


def _keys(num_keys):
  return jax.random.split(jax.random.key(0), num_keys)


@functools.partial(jax.jit, static_argnames=("rule", "keep"))
def _draw(values, keys, *, rule, keep):
  return jax.vmap(lambda key: rule(values, key, keep=keep))(keys)


def _select_often(rule, values, *, keep):
  """Counts the kept sets over 2000 keys."""
  drawn = _draw(values, _keys(2000), rule=rule, keep=keep)
  indices = drawn[0] if isinstance(drawn, tuple) else drawn
  return collections.Counter(map(tuple, np.asarray(indices).tolist()))


_max_variance = jax.jit(selection.select_max_variance, static_argnames="keep")
_random = jax.jit(selection.select_random, static_argnames="keep")
_stratified = jax.jit(selection.select_stratified, static_argnames="keep")


@hypothesis.given(st.integers(0, 2**31 - 1), st.sampled_from([1, 3, 4, 7]))
@hypothesis.settings(max_examples=60, deadline=None)
def test_select_max_variance_equals_brute_force(seed, keep):
  rng = np.random.default_rng(seed)
  reward = np.float32(
    rng.choice([rng.normal(size=8), rng.integers(0, 3, 8), rng.random(8) ** 9])
    if seed % 2
    else rng.integers(0, 2, 8)
  )
  kept = np.asarray(_max_variance(reward, jax.random.key(seed), keep=keep))
  assert len(set(kept.tolist())) == keep and (np.diff(kept) > 0).all()
  best = max(
    np.var(reward[list(subset)].astype(np.float64))
    for subset in itertools.combinations(range(8), keep)
  )
  got = np.var(reward[kept].astype(np.float64))
  np.testing.assert_allclose(got, best, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
  ("group_size", "keep", "num_right", "kept_right"),
  # The table of 2606.00135's down-sampling: n, m, right of n, kept right.
  [
    (8, 4, 1, 1),
    (8, 4, 2, 2),
    (8, 4, 4, 2),
    (8, 4, 6, 2),
    (8, 4, 7, 3),
    (16, 4, 2, 2),
    (16, 4, 14, 2),
    (16, 8, 4, 4),
    (16, 8, 12, 4),
  ],
)
def test_select_max_variance_keeps_half_of_each_outcome(
  group_size, keep, num_right, kept_right
):
  reward = np.float32(np.arange(group_size) < num_right)
  kept = np.asarray(_max_variance(reward, jax.random.key(1), keep=keep))
  assert int(reward[kept].sum()) == kept_right


def test_select_max_variance_sees_small_spread_on_large_rewards():
  # One float32 step at 1000 is 6.1e-5, and squares lose it entirely.
  reward = 1000.0 + jnp.float32([0, 1, 2, 3, 4, 5, 6, 7]) * 6.1035156e-5
  kept = _max_variance(reward, jax.random.key(0), keep=4)
  assert kept.tolist() == [0, 1, 6, 7]
  tiny = jnp.float32([0, 1, 2, 3, 4, 5, 6, 7]) * 1e-25
  kept = _max_variance(tiny, jax.random.key(0), keep=4)
  assert kept.tolist() == [0, 1, 6, 7]


def test_select_max_variance_breaks_ties_uniformly():
  reward = jnp.float32([1, 0, 0, 0, 1])
  counts = _select_often(selection.select_max_variance, reward, keep=4)
  # Two of the three zeros, each pair equally often, with both ones.
  assert set(counts) == {(0, 1, 2, 4), (0, 1, 3, 4), (0, 2, 3, 4)}
  assert min(counts.values()) > 2000 / 3 - 110  # 5 sigma is 105


def test_select_max_variance_breaks_split_ties_both_ways():
  reward = jnp.float32([1, 1, 0, 0])
  counts = _select_often(selection.select_max_variance, reward, keep=3)
  assert len(counts) == 4
  assert min(counts.values()) > 500 - 100


def test_select_max_variance_of_equal_rewards_is_any_set():
  reward = jnp.full(4, 0.7)
  counts = _select_often(selection.select_max_variance, reward, keep=2)
  assert len(counts) == 6
  assert min(counts.values()) > 2000 / 6 - 85


def test_select_max_variance_follows_a_permutation():
  reward = np.float32([0.1, 0.9, 0.4, 0.85, 0.2, 0.3, 0.45, 0.5])
  order = np.array([3, 0, 5, 1, 7, 4, 2, 6])
  kept = _max_variance(reward, jax.random.key(0), keep=3)
  moved = _max_variance(reward[order], jax.random.key(5), keep=3)
  assert set(order[np.asarray(moved)].tolist()) == set(kept.tolist())


def test_select_keeps_everything_when_asked_to():
  reward = jnp.float32([3, 1, 2])
  key = jax.random.key(0)
  for rule in (_max_variance, _random):
    assert rule(reward, key, keep=3).tolist() == [0, 1, 2]
  is_success = jnp.array([True, False, False])
  indices, weight = _stratified(is_success, key, keep=3)
  assert indices.tolist() == [0, 1, 2] and weight.tolist() == [1, 1, 1]


def test_select_random_keeps_every_set_equally_often():
  reward = jnp.zeros(4)
  counts = _select_often(selection.select_random, reward, keep=2)
  assert len(counts) == 6
  assert min(counts.values()) > 2000 / 6 - 85


@pytest.mark.parametrize(
  ("group_size", "keep", "num_right", "w_right", "w_wrong"),
  # Last two columns of the same table.
  [
    (8, 4, 1, 1, 7 / 3),
    (8, 4, 2, 1, 3),
    (8, 4, 4, 2, 2),
    (8, 4, 6, 3, 1),
    (8, 4, 7, 7 / 3, 1),
    (16, 4, 2, 1, 7),
    (16, 4, 14, 7, 1),
    (16, 8, 4, 1, 3),
    (16, 8, 12, 3, 1),
  ],
)
def test_select_stratified_weights_of_the_table(
  group_size, keep, num_right, w_right, w_wrong
):
  is_success = np.arange(group_size) < num_right
  indices, weight = _stratified(is_success, jax.random.key(3), keep=keep)
  wanted = np.where(np.asarray(indices) < num_right, w_right, w_wrong)
  np.testing.assert_allclose(weight, wanted, rtol=1e-6)
  np.testing.assert_allclose(weight.sum(), group_size, rtol=1e-6)


@pytest.mark.parametrize("keep", [2, 3, 4])
@pytest.mark.parametrize("num_right", [0, 1, 2, 3, 5])
def test_select_stratified_is_unbiased_over_all_sets(keep, num_right):
  is_success = np.arange(5) < num_right
  counts = _select_often(selection.select_stratified, is_success, keep=keep)
  # Within each stratum every set occurs, none of another size does.
  m_right = min(max(keep // 2, keep - (5 - num_right)), num_right)
  sets = {
    tuple(right + wrong)
    for right in itertools.combinations(range(num_right), m_right)
    for wrong in itertools.combinations(range(num_right, 5), keep - m_right)
  }
  assert set(counts) == sets
  assert min(counts.values()) > 0.6 * 2000 / len(sets)
  # The exact expectation over those sets is the sum over the whole group, for
  # any term that does not depend on the choice.
  term = np.array([0.3, -1.0, 2.0, 0.7, -0.2])
  n_over_m = {
    True: num_right / max(m_right, 1),
    False: (5 - num_right) / max(keep - m_right, 1),
  }
  estimates = [
    sum(n_over_m[j < num_right] * term[j] for j in chosen) for chosen in sets
  ]
  np.testing.assert_allclose(np.mean(estimates), term.sum(), atol=1e-12)


def test_select_stratified_weighted_advantages_sum_to_zero():
  is_success = np.array([True, False, True, True, False, True, True, True])
  reward = is_success.astype(np.float32)
  advantage = (reward - reward.mean()) / reward.std()
  for key in _keys(3):
    indices, weight = _stratified(is_success, key, keep=4)
    weighted = np.asarray(weight) * advantage[np.asarray(indices)]
    np.testing.assert_allclose(weighted.sum(), 0, atol=1e-5)


@pytest.mark.parametrize("keep", [0, 5, -1])
def test_select_refuses_impossible_counts(keep):
  key = jax.random.key(0)
  with pytest.raises(ValueError, match="keep must be in"):
    selection.select_max_variance(jnp.zeros(4), key, keep=keep)
  with pytest.raises(ValueError, match="keep must be in"):
    selection.select_random(jnp.zeros(4), key, keep=keep)
  with pytest.raises(ValueError, match="keep must be in"):
    selection.select_stratified(jnp.zeros(4, bool), key, keep=keep)


def test_select_stratified_needs_room_for_both_outcomes():
  with pytest.raises(ValueError, match=r"in \[2, 4\].*got 1"):
    selection.select_stratified(jnp.zeros(4, bool), jax.random.key(0), keep=1)


def test_select_max_variance_traces_once_over_groups():
  chex.clear_trace_counter()

  @jax.jit
  @chex.assert_max_traces(n=1)
  def select(reward, keys):
    rule = lambda r, k: selection.select_max_variance(r, k, keep=2)
    return jax.vmap(rule)(reward, keys)

  for seed in range(3):
    reward = jax.random.normal(jax.random.key(seed), (3, 5))
    assert select(reward, _keys(3)).shape == (3, 2)
