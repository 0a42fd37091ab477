"""Tests of toolrl_jax/kernels/advantage.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.kernels import advantage

_group_advantage = jax.jit(
  advantage.group_advantage, static_argnames=("statistics", "std", "eps")
)


def _advantage(reward, indices=None, is_valid=None, **options):
  reward = np.float32(reward)
  if indices is None:
    indices = range(reward.size)
  if is_valid is None:
    is_valid = [True] * reward.size
  return _group_advantage(
    reward, np.array(list(indices), np.int32), np.array(is_valid), **options
  )


def test_group_advantage_hand_values():
  # mean 2; squared deviations 4, 0, 0, 4: population 2, sample 8 / 3.
  reward = [0.0, 2.0, 2.0, 4.0]
  population = _advantage(reward, eps=0.0)
  np.testing.assert_allclose(
    population.advantage, [-(2**0.5), 0, 0, 2**0.5], rtol=1e-6
  )
  sample = _advantage(reward, std="sample", eps=0.0)
  np.testing.assert_allclose(
    sample.advantage, [-(1.5**0.5), 0, 0, 1.5**0.5], rtol=1e-6
  )
  centred = _advantage(reward, std="none")
  np.testing.assert_allclose(centred.advantage, [-2, 0, 0, 2])
  with_eps = _advantage(reward, eps=1.0)
  np.testing.assert_allclose(
    with_eps.advantage, [-2 / (1 + 2**0.5), 0, 0, 2 / (1 + 2**0.5)], rtol=1e-6
  )
  assert not population.is_zero_variance


@pytest.mark.parametrize(
  ("n", "m", "right", "kept_right", "n_stats", "n_sum", "m_stats"),
  # The table of 2606.00135's down-sampling, sample std.
  [
    (8, 4, 1, 1, (2.47, -0.35), 1.41, (1.50, -0.50)),
    (8, 4, 2, 2, (1.62, -0.54), 2.16, (0.87, -0.87)),
    (8, 4, 4, 2, (0.94, -0.94), 0, (0.87, -0.87)),
    (8, 4, 6, 2, (0.54, -1.62), -2.16, (0.87, -0.87)),
    (8, 4, 7, 3, (0.35, -2.47), -1.41, (0.50, -1.50)),
    (16, 4, 2, 2, (2.56, -0.37), 4.39, (0.87, -0.87)),
    (16, 4, 14, 2, (0.37, -2.56), -4.39, (0.87, -0.87)),
    (16, 8, 4, 4, (1.68, -0.56), 4.47, (0.94, -0.94)),
    (16, 8, 12, 4, (0.56, -1.68), -4.47, (0.94, -0.94)),
  ],
)
def test_group_advantage_table_of_statistics(
  n, m, right, kept_right, n_stats, n_sum, m_stats
):
  reward = [1.0] * right + [0.0] * (n - right)
  indices = [*range(kept_right), *range(n - (m - kept_right), n)]
  over_all = _advantage(reward, indices, statistics="all", std="sample")
  over_kept = _advantage(reward, indices, statistics="kept", std="sample")
  np.testing.assert_allclose(over_all.advantage[0], n_stats[0], atol=5e-3)
  np.testing.assert_allclose(over_all.advantage[-1], n_stats[1], atol=5e-3)
  np.testing.assert_allclose(over_all.advantage.sum(), n_sum, atol=5e-3)
  np.testing.assert_allclose(over_kept.advantage[0], m_stats[0], atol=5e-3)
  np.testing.assert_allclose(over_kept.advantage[-1], m_stats[1], atol=5e-3)
  np.testing.assert_allclose(over_kept.advantage.sum(), 0, atol=1e-5)


@pytest.mark.parametrize("std", ["population", "sample", "none"])
@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 1e3 + 0.1, 2.6, -3.0])
def test_group_advantage_of_equal_rewards_is_exactly_zero(std, value):
  got = _advantage([value] * 7, std=std, eps=0.0)
  assert got.is_zero_variance
  assert got.advantage.tolist() == [0.0] * 7


def test_group_advantage_takes_rounding_for_equality():
  # Neighbours in float32, as two orders of one sum give them.
  value = np.float32(2.6)
  got = _advantage([value, np.nextafter(value, np.float32(9))] * 3)
  assert got.is_zero_variance and not got.advantage.any()


def test_group_advantage_keeps_small_spread_on_large_rewards():
  got = _advantage([1000.0, 1000.0, 1001.0, 1001.0], eps=0.0)
  np.testing.assert_allclose(got.advantage, [-1, -1, 1, 1], rtol=1e-6)
  assert not got.is_zero_variance


def test_group_advantage_zero_variance_follows_statistics():
  reward = [1.0, 1.0, 0.0, 0.0]
  kept = _advantage(reward, [0, 1], statistics="kept")
  assert kept.is_zero_variance and not kept.advantage.any()
  over_all = _advantage(reward, [0, 1], statistics="all")
  assert not over_all.is_zero_variance
  np.testing.assert_allclose(over_all.advantage, [1, 1], rtol=1e-5)


@pytest.mark.parametrize("statistics", ["kept", "all"])
def test_group_advantage_ignores_invalid_rollouts(statistics):
  masked = _advantage(
    [0.0, 5.0, 2.0, 1e30],
    is_valid=[True, True, True, False],
    statistics=statistics,
  )
  alone = _advantage([0.0, 5.0, 2.0], statistics=statistics)
  np.testing.assert_allclose(masked.advantage[:3], alone.advantage, rtol=1e-6)
  assert masked.advantage[3] == 0


@pytest.mark.parametrize("num_valid", [0, 1])
@pytest.mark.parametrize("std", ["population", "sample", "none"])
def test_group_advantage_of_fewer_than_two_is_zero(num_valid, std):
  is_valid = [i < num_valid for i in range(3)]
  got = _advantage([1.0, 2.0, 3.0], is_valid=is_valid, std=std)
  assert got.is_zero_variance
  assert got.advantage.tolist() == [0.0] * 3


def test_group_advantage_follows_permutation_and_scale():
  reward = np.float32([0.3, -2.0, 4.0, 1.0])
  order = [2, 0, 3, 1]
  plain = _advantage(reward, eps=0.0).advantage
  moved = _advantage(reward[order], eps=0.0).advantage
  np.testing.assert_allclose(moved, np.asarray(plain)[order], rtol=1e-5)
  scaled = _advantage(3 * reward + 7, eps=0.0).advantage
  np.testing.assert_allclose(scaled, plain, rtol=1e-5)


def test_group_advantage_over_groups_under_vmap():
  reward = jnp.float32([[0, 1, 0, 1], [2, 2, 2, 2]])
  indices = jnp.array([[0, 1], [2, 3]])
  got = jax.jit(jax.vmap(advantage.group_advantage))(
    reward, indices, jnp.ones((2, 4), bool)
  )
  np.testing.assert_allclose(got.advantage, [[-1, 1], [0, 0]], atol=1e-5)
  assert got.is_zero_variance.tolist() == [False, True]


def test_group_advantage_refuses_unknown_options():
  with pytest.raises(ValueError, match="statistics must be.*'both'"):
    _advantage([1.0, 2.0], statistics="both")
  with pytest.raises(ValueError, match="std must be.*'mad'"):
    _advantage([1.0, 2.0], std="mad")
