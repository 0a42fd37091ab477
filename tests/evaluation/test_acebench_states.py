"""ACEBench's rules for end states and milestones, by hand-made cases."""

import pytest

from toolrl_jax.evaluation import acebench_states

pytestmark = pytest.mark.quick


def test_end_states_by_upstreams_rule_and_exactly():
  gold = [{"A": {"x": 1, "d": {"k": 1}}}, {"B": {"y": [2]}}]
  cases = [
    ([{"B": {"y": [2]}}, {"A": {"d": {"k": 1}, "x": 1}}], True, True),
    # More in a dictionary than the gold has.
    ([{"A": {"x": 1, "d": {"k": 1, "m": 2}}}, {"B": {"y": [2]}}], True, False),
    ([{"A": {"x": 1, "d": {}}}, {"B": {"y": [2]}}], False, False),
    ([{"A": {"x": 1, "d": 3}}, {"B": {"y": [2]}}], False, False),
    ([{"A": {"x": 1, "d": {"k": 1}}}, {"B": {"y": [3]}}], False, False),
    # A class of another name is not compared.
    ([{"A": {"x": 1, "d": {"k": 1}}}, {"b": {"y": [3]}}], True, False),
    ([{"A": {"x": 1, "d": {"k": 1}}}, {"b": {"y": [2]}}], True, True),
    ([{"A": {"x": 1, "d": {"k": 1}}}], False, False),
    ([], False, False),
  ]
  for states, is_right, is_exact in cases:
    assert acebench_states.is_end_state(states, gold) is is_right
    assert acebench_states.is_exact_end_state(states, gold) is is_exact


def test_milestones_in_order():
  accuracy = acebench_states.process_accuracy
  parsed = acebench_states.parsed_process_accuracy
  stones = ["[a()]", "[b(x='1')]", "[c()]"]
  assert accuracy(["[a()] ", "[z()]", "[b(x='1')]", "[c()]"], stones) == 1.0
  assert accuracy(["[a()]", "[b(x='1')]"], stones) == 0.667
  # A missed one hides those after it, but not when calls are compared.
  assert accuracy(["[a()]", "[c()]"], stones) == 0.333
  assert parsed(["[a()]", "[c()]"], stones) == 0.667
  assert accuracy(["[c()]", "[b(x='1')]", "[a()]"], stones) == 0.333
  # Spacing and quotes count in texts alone.
  assert accuracy(["[a()]", '[b( x="1" )]', "[c()]"], stones) == 0.333
  assert parsed(["[a()]", '[b( x="1" )]', "c()"], stones) == 1.0
  assert accuracy(["[c()]"], [stones, ["[c()]"]]) == 1.0
  assert accuracy([], []) == parsed([], []) == 1.0


def test_a_milestone_that_cannot_be_read_scores_nothing():
  """As evalscope since its pull request 1544; it scored 1.0 before."""
  for stones in ([{"unexpected_schema": "value"}], ["not a call"]):
    assert acebench_states.process_accuracy([], stones) == 0.0
    assert acebench_states.parsed_process_accuracy([], stones) == 0.0
  broken = "[send(message='Don't')]"
  assert acebench_states.unreadable_milestones([broken, "[a()]"]) == (broken,)
  assert acebench_states.process_accuracy([broken], [broken]) == 1.0
  assert acebench_states.parsed_process_accuracy([broken], [broken]) == 0.0
