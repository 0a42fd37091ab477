"""Tests of toolrl_jax/notebook/playground.py."""

import pytest

from toolrl_jax import scoring
from toolrl_jax.notebook import playground

THINK = "<think>one two</think>\n"
BOOK = '{"name": "book", "parameters": {"city": "Oslo", "guests": 2}}'
GOLD = f"{THINK}<tool_call>\n{BOOK}\n</tool_call>"
WRONG = GOLD.replace("2}", "3}")


def _by_name(table):
  return {row[0].strip(): row[1:] for row in table.rows}


def test_parts_are_the_hand_worked_points():
  rows = _by_name(playground.parts(WRONG, GOLD))
  # Name 1 of 1, parameter names 1 of 1, values 1 of 2: 3 of 4 points.
  assert rows["tool names"][:2] == (1.0, 1)
  assert rows["parameter names"][:2] == (1.0, 1)
  assert rows["parameter values"][:2] == (1, 2)
  assert rows["share of the points"][0] == 0.75
  # -3 + 6 * 0.75
  assert rows["correctness"][0] == pytest.approx(1.5)
  assert rows["total"][0] == pytest.approx(2.5)
  assert rows["success"][0] is False
  assert "2 words" in rows["length"][2]


@pytest.mark.parametrize("text", ["", "\ud800", "<tool_call>", "{" * 5000])
def test_parts_take_any_text(text):
  rows = _by_name(playground.parts(text, GOLD))
  assert rows["total"][0] == -3.0


def test_parts_of_a_gold_without_a_call():
  refusal = f"{THINK}<response>No.</response>"
  rows = _by_name(playground.parts(refusal, refusal, {"no_call": "match"}))
  assert rows["total"][0] == 4.0
  assert rows["success"][0] is True
  assert "names, parameters, values" in rows


def test_variants_name_every_value_of_every_option():
  named = {
    (key, value)
    for reward in playground.VARIANTS.values()
    for key, value in reward.items()
  }
  default = scoring.RewardOptions()
  allowed = {
    (key, value)
    for key, values in scoring._CHOICES.items()
    for value in values
    if value != getattr(default, key)
  }
  # The schedule alone changes nothing at step 0.
  assert named == {pair for pair in allowed if pair[0] != "schedule"}


def test_form_fields_have_one_line():
  assert playground.unescaped("a\\nb") == "a\nb"
