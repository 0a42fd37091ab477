"""Drifts of the grid against hand-worked values."""

import numpy as np
import pytest

from toolrl_jax.evaluation import sensitivity

pytestmark = pytest.mark.quick

_CELL = sensitivity.Cell("native", "official", "default")
_OTHER = sensitivity.Cell("context", "official", "default")


def _scores(rows, cell=_CELL, protocol="p"):
  return sensitivity.CellScores(
    cell,
    protocol,
    {
      str(seed): {f"i{item}": float(v) for item, v in enumerate(row)}
      for seed, row in enumerate(rows)
    },
  )


def test_drift_is_the_hand_worked_one():
  before = _scores([[1, 0, 0, 0], [1, 1, 0, 0]])
  after = _scores([[1, 1, 1, 0], [1, 1, 1, 1]], _OTHER)
  found = sensitivity.drift(before, after)
  # Means 3/8 and 7/8; scores by seed 1/4, 1/2 and 3/4, 1.
  assert found.mean == 7 / 8 and found.difference == 4 / 8
  np.testing.assert_allclose(found.std, np.sqrt(1 / 32))
  # sigma^2 = 1/32 in both cells, two seeds.
  np.testing.assert_allclose(found.noise, np.sqrt(1 / 32))
  # By item 0, 1/2, 1, 1/2: never below 0, never above 1.
  assert 0 < found.low < 0.5 < found.high < 1


def test_drift_pairs_items_and_ignores_their_order():
  rows = np.random.default_rng(0).integers(0, 2, (3, 50))
  before = _scores(rows)
  shuffled = before._replace(
    verdicts={
      seed: dict(reversed(verdicts.items()))
      for seed, verdicts in before.verdicts.items()
    }
  )
  # Paired, a cell against itself has no spread at all.
  found = sensitivity.drift(before, shuffled)
  assert (found.difference, found.low, found.high) == (0, 0, 0)
  assert not found.is_beyond_seeds


def test_interval_covers_a_true_difference():
  generator = np.random.default_rng(1)
  hits = 0
  for _ in range(40):
    before = _scores(generator.random((2, 60)) < 0.5)
    after = _scores(generator.random((2, 60)) < 0.7)
    found = sensitivity.drift(before, after)
    hits += found.low <= 0.2 <= found.high
  assert hits >= 34  # 38 on average.


def test_is_beyond_seeds_needs_items_and_seeds():
  generator = np.random.default_rng(2)
  weak = _scores(generator.random((3, 400)) < 0.5)
  strong = _scores(generator.random((3, 400)) < 0.8)
  assert sensitivity.drift(weak, strong).is_beyond_seeds
  one = sensitivity.drift(
    _scores(generator.random((1, 400)) < 0.5),
    _scores(generator.random((1, 400)) < 0.8),
  )
  assert one.noise is None and not one.is_beyond_seeds
  # Items agree, but the seeds lie further apart than the cells.
  noisy = sensitivity.drift(_scores([[0] * 9, [1] * 9]), _scores([[1] * 9] * 2))
  assert noisy.low > 0 and not noisy.is_beyond_seeds


@pytest.mark.parametrize(
  "other", [[[1, 0]], [[1, 0, 0], [1, 0, 0]], [[1, 0, 1, 0]]]
)
def test_drift_refuses_other_seeds_or_items(other):
  with pytest.raises(ValueError, match="same seeds and items"):
    sensitivity.drift(_scores([[1, 0, 0]]), _scores(other))


def test_gain_refuses_another_protocol():
  base, trained = _scores([[0, 1]]), _scores([[1, 1]])
  assert sensitivity.gain(base, trained).difference == 0.5
  with pytest.raises(ValueError, match="one protocol, got p and q"):
    sensitivity.gain(base, trained._replace(protocol="q"))


def test_axis_cells_differ_in_one_switch():
  cells = sensitivity.grid(
    ("native", "context"), ("official", "keep"), ("default", "stronger")
  )
  assert len(cells) == 8 and cells[0] == _CELL
  for axis, value in (
    ("template", "context"), ("thinking", "keep"), ("system", "stronger"),
  ):  # fmt: skip
    expected = cells[0]._replace(**{axis: value})
    assert sensitivity.axis_cells(cells[0], cells, axis) == [expected]


def test_sentence_names_the_largest_difference():
  small = sensitivity.Drift(0.5, 0.01, 0.01, -0.01, 0.02, 0.02)
  large = sensitivity.Drift(0.4, 0.01, -0.1, -0.13, -0.06, 0.02)
  text = sensitivity.sentence("thinking", {"keep": small, "drop": large})
  assert "-10.0 points (drop;" in text and "larger than the seed" in text
  assert "not larger" not in text
  assert "not larger" in sensitivity.sentence("thinking", {"keep": small})
  alone = sensitivity.sentence("thinking", {"keep": small._replace(noise=None)})
  assert "one seed cannot tell" in alone
