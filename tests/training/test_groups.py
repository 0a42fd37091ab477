"""Selection and advantage of a whole step."""

import chex
import jax
import numpy as np

from toolrl_jax.training import groups

_KEY = jax.random.key(3)
_REWARD = np.array(
  [[1, 0, 0, 1], [2, 2, 2, 2], [0, 4, 1, 4], [0, 0, 0, 0]], np.float32
)
_SUCCESS = _REWARD >= 4
_REAL = np.array([True, True, True, False])


def _keep(**options):
  return groups.keep_and_weigh(
    _REWARD, _SUCCESS, _REAL, _KEY, options=groups.GroupOptions(**options)
  )


def test_keep_and_weigh_of_all_rollouts_centres_each_group():
  kept = _keep(std="none")
  np.testing.assert_array_equal(kept.indices[0], [0, 1, 2, 3])
  np.testing.assert_allclose(kept.advantage[0], [0.5, -0.5, -0.5, 0.5])
  np.testing.assert_array_equal(kept.advantage[1], np.zeros(4))
  np.testing.assert_array_equal(kept.is_zero_variance, [0, 1, 0, 1])


def test_keep_and_weigh_gives_masked_groups_no_weight():
  np.testing.assert_array_equal(
    _keep().weight, np.repeat([[1], [1], [1], [0]], 4, axis=1)
  )


def test_keep_and_weigh_drop_takes_equal_groups_out():
  np.testing.assert_array_equal(
    _keep(zero_variance="drop").weight,
    np.repeat([[1], [0], [1], [0]], 4, axis=1),
  )


def test_keep_and_weigh_max_variance_takes_both_ends():
  kept = _keep(keep=2)
  # One of the two 0s with one of the two 1s; 0 with one of the two 4s.
  assert sorted(_REWARD[0][kept.indices[0]]) == [0, 1]
  assert sorted(_REWARD[2][kept.indices[2]]) == [0, 4]


def test_keep_and_weigh_stratified_weights_sum_to_the_group():
  kept = _keep(keep=3, rule="stratified", statistics="all")
  np.testing.assert_allclose(kept.weight.sum(1), [4, 4, 4, 0])


def test_keep_and_weigh_zero_variance_is_of_all_rewards():
  # A random pair can be equal where the group is not.
  for seed in range(20):
    kept = groups.keep_and_weigh(
      _REWARD,
      _SUCCESS,
      _REAL,
      jax.random.key(seed),
      options=groups.GroupOptions(keep=2, rule="random"),
    )
    np.testing.assert_array_equal(kept.is_zero_variance, [0, 1, 0, 1])


def test_keep_and_weigh_is_deterministic_and_compiles_once():
  first = _keep(keep=2, rule="random")
  groups.keep_and_weigh.clear_cache()
  second = _keep(keep=2, rule="random")
  chex.assert_trees_all_equal(first, second)
  _keep(keep=2, rule="random")
  assert groups.keep_and_weigh._cache_size() == 1
