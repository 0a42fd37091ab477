"""Tests of toolrl_jax/notebook/contrast.py."""

import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.notebook import answers, contrast

REWARD = np.array([[0.0, 1.0, 2.0, 9.0], [4.0, 4.0, 4.0, 4.0]], np.float32)
SUCCESS = np.array([[0, 0, 0, 1], [1, 1, 1, 1]], bool)


def _answers():
  zero = np.zeros_like(REWARD)
  examples = [
    types.Example(name, ({"role": "user", "content": name},), (), types.Gold())
    for name in "ab"
  ]
  parts = types.RewardParts(REWARD, zero, REWARD, zero, SUCCESS)
  return answers.Answers("m", examples, [["t"] * 4] * 2, parts, {})


def test_keep_takes_the_ends_and_weighs():
  kept = contrast.keep(_answers(), size=2, rule="max_variance")
  assert kept.is_kept[0].tolist() == [True, False, False, True]
  # Mean 4.5, deviation 4.5.
  np.testing.assert_allclose(kept.advantage[0], [-1, 0, 0, 1], atol=1e-6)
  assert kept.is_kept[1].sum() == 2
  assert not kept.advantage[1].any()
  stratified = contrast.keep(_answers(), size=2, rule="stratified")
  # The one success, and one of three failures that stands for all of them.
  assert stratified.is_kept[0, 3] and stratified.weight[0, 3] == 1.0
  assert stratified.weight[0, :3].max() == 3.0


def test_keep_table_counts_groups_with_contrast():
  kept = contrast.keep(_answers(), size=2, rule="max_variance")
  table = contrast.keep_table(_answers(), [kept])
  # The variance of 0 and 9 is 20.25; one of the two is right.
  assert table.rows == (("max_variance", "2 of 4", 20.25, 0.5, 0),)
  assert table.caption.startswith("1 of 2 groups")


def test_keep_chart_rings_what_is_kept():
  kept = contrast.keep(_answers(), size=2, rule="max_variance")
  figure = contrast.keep_chart(_answers(), [kept])
  heat, rings = figure.data
  np.testing.assert_array_equal(heat.z[0], [0, 1, 2, 9])
  in_first = [x for x, y in zip(rings.x, rings.y) if y == 0]
  assert in_first == [0, 3]


@pytest.mark.parametrize(
  ("reentry", "visited"),
  [("skip_epoch", {0, 2, 4}), ("permanent", {0}), ("probe", {0, 4})],
)
def test_replay_leaves_solved_prompts_out(reentry, visited):
  visits = contrast.replay(
    np.array([1.0, 0.0]),
    group_size=2,
    streak=1,
    reentry=reentry,
    num_epochs=6,
  )
  assert set(np.flatnonzero(visits.is_visited[:, 0])) == visited
  assert visits.is_visited[:, 1].all()
  assert not visits.is_solved[:, 1].any()


def test_visits_chart_says_what_is_saved():
  visits = contrast.replay(
    np.array([1.0, 0.0]),
    group_size=2,
    streak=1,
    reentry="skip_epoch",
    num_epochs=4,
  )
  figure = contrast.visits_chart([visits])
  # 2 of 8 visits: epochs 1 and 3 of the solved prompt.
  assert figure.layout.annotations[0].text == "skip_epoch: 25% saved"
  np.testing.assert_array_equal(figure.data[0].z, [[2, 0, 2, 0], [1, 1, 1, 1]])


def test_compare_lists_the_largest_change_first():
  before = _answers()
  better = before.parts._replace(total=REWARD + np.array([[0.0], [-3.0]]))
  table = answers.compare(before, before._replace(parts=better), count=1)
  assert table.rows == ((4.0, 1.0, True, "b", "t", "t"),)
  with pytest.raises(ValueError, match="same rows"):
    answers.compare(before, before._replace(examples=before.examples[:1]))
