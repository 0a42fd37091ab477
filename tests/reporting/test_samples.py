"""Completions in pieces, and which samples are shown."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl_jax.reporting import runs, samples

_THINK, _CALL = "<think>t</think>", "<tool_call>{}</tool_call>"


def _kinds(text, style="toolrl"):
  return [(one.kind, one.text) for one in samples.split(text, style=style)]


def test_split_marks_thought_call_and_answer():
  answer = "<response>r</response>"
  assert _kinds(f"{_THINK}\n{_CALL}{answer}!") == [
    ("thought", _THINK), ("other", "\n"), ("call", _CALL), ("answer", answer),
    ("other", "!"),
  ]  # fmt: skip


def test_split_takes_text_outside_as_answer_in_the_native_layout():
  assert _kinds(f"{_THINK}\nhello {_CALL}", "native") == [
    ("thought", _THINK), ("answer", "\nhello "), ("call", _CALL),
  ]  # fmt: skip
  assert _kinds("<think>never ends", "native") == [
    ("other", "<think>never ends")
  ]


def test_split_leaves_tags_without_partner_outside():
  assert _kinds(f"</think><tool_call>{_THINK}") == [
    ("other", "</think><tool_call>"), ("thought", _THINK),
  ]  # fmt: skip


@given(
  st.lists(
    st.sampled_from(
      [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "a",
        "\n",
        "\ud800",
      ]
    )
  ),
  st.sampled_from(["toolrl", "native", "n1"]),
)
def test_split_loses_nothing(pieces, style):
  text = "".join(pieces)
  assert "".join(one.text for one in samples.split(text, style=style)) == text


def test_split_is_linear_in_repeated_tags():
  started = time.process_time()
  samples.split("<think><tool_call>" * 50_000)
  # Quadratic would be minutes.
  assert time.process_time() - started < 10


def _sample(step):
  return runs.Sample(step, "i", 0, "c", "g", "stop", True, 1, 1, 0, 0, False)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 24, 400])
def test_spread_takes_the_first_and_the_last_step(count):
  everything = [_sample(step) for step in range(1, 101) for _ in range(4)]
  steps = [one.step for one in samples.spread(everything, count=count)]
  assert 0 < len(steps) <= count
  assert steps == sorted(steps)
  assert steps[-1] == 100
  assert count == 1 or steps[0] == 1


def test_spread_takes_whole_steps_at_even_distances():
  everything = [_sample(step) for step in range(1, 12) for _ in range(4)]
  steps = [one.step for one in samples.spread(everything, count=12)]
  assert steps == [1] * 4 + [6] * 4 + [11] * 4
  with pytest.raises(ValueError, match="at least 1"):
    samples.spread(everything, count=0)


def test_table_scores_under_the_options_of_the_run(write_run, tmp_path):
  run = runs.read(write_run(tmp_path, num_steps=2))
  first, last = samples.table(run)
  assert (first.sample.step, last.sample.step) == (1, 2)
  assert [one.kind for one in first.segments] == ["thought", "other", "call"]
  points = first.points
  assert (points.names, points.values, points.max_values) == (1, 2, 3)
  assert -3 + 6 * points.fraction == pytest.approx(first.sample.correctness)
  # A configuration that is gone leaves the defaults.
  assert samples.table(run._replace(config={}))[0].points == points
