"""Tests of toolrl_jax/scoring.py: texts in, rewards out."""

import json
import subprocess
import sys
import time

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow.parquet
import pytest

from configs import common
from toolrl_jax import scoring, types
from toolrl_jax.parsing import tool_calls


def _line(name, parameters):
  return json.dumps({"name": name, "parameters": parameters})


def _wrap(*lines, think="t"):
  block = "\n".join(lines)
  return f"<think>{think}</think>\n<tool_call>\n{block}\n</tool_call>"


A = _line("a", {"p": 1, "q": 2})
B = _line("b", {})
GOLD = _wrap(A, B)
AUTHORS = {"matching": "greedy", "schedule": "authors"}

# Executed vectors of the authors' code (specification of 2504.13958, section
# 6): response, total, format, correctness; then the correctness of REFINED,
# INTERMEDIATE, COARSE and CORRECTMAX1.
VECTORS = {
  "1 exact": (GOLD, 4, 1, 3, 3, 3, 3, 1),
  "2 keys swapped": (
    _wrap(_line("a", {"q": 2, "p": 1}), B), 4, 1, 3, 3, 3, 3, 1,
  ),
  "3 calls swapped": (_wrap(B, A), 4, 1, 3, 1.8, 3, -3, 1),
  "4 both swapped": (
    _wrap(B, _line("a", {"q": 2, "p": 1})), 4, 1, 3, 0.6, 3, -3, 1,
  ),
  "5 extra call": (
    _wrap(A, B, _line("c", {})), 3.6, 1, 2.6, 1.8, 7 / 3, -3, 2.6 / 3,
  ),
  "6 extra parameter": (
    _wrap(_line("a", {"p": 1, "q": 2, "r": 5}), B),
    3.6, 1, 2.6, 1.8, 1, -3, 2.6 / 3,
  ),
  "7 a repeated": (_wrap(A, A, B), 3.6, 1, 2.6, 1.8, 7 / 3, -3, 2.6 / 3),
  "8 only a, wrong value": (
    _wrap(_line("a", {"p": 1, "q": 3})), 1, 1, 0, -0.6, -2, -3, 0,
  ),
  "9 only a": (_wrap(A), 2.2, 1, 1.2, 0.6, 0, -3, 0.4),
  "10 string for int": (
    _wrap(_line("a", {"p": "1", "q": 2}), B), 2.8, 1, 1.8, 1.8, 1, -3, 0.6,
  ),
  "11 float for int": (
    _wrap(_line("a", {"p": 1.0, "q": 2}), B), 4, 1, 3, 3, 3, 3, 1,
  ),
  "11 true for 1": (
    _wrap(_line("a", {"p": True, "q": 2}), B), 4, 1, 3, 3, 3, 3, 1,
  ),
  "12 wrong name": (
    _wrap(_line("z", {"p": 1})), -2, 1, -3, -3, -3, -3, -1,
  ),
  "13 no parameters": (_wrap('{"name":"a"}'), -2, 1, -3, -3, -2, -3, -1),
  "14 arguments": (
    _wrap('{"name":"a","arguments":{"p":1,"q":2}}'),
    -2, 1, -3, -3, -2, -3, -1,
  ),
  "15 blank block": (_wrap(""), -2, 1, -3, -3, -3, -3, -1),
  "16 pretty printed": (
    _wrap(json.dumps(json.loads(A), indent=2)), -2, 1, -3, -3, -3, -3, -1,
  ),
  "17 list on a line": (_wrap(f"[{A}, {B}]"), -2, 1, -3, -3, -3, -3, -1),
  "18 blank line": (_wrap(A, "", B), -2, 1, -3, -3, -3, -3, -1),
  "19 two newlines": (
    GOLD.replace("</think>\n", "</think>\n\n"), 3, 0, 3, 3, 3, 3, 1,
  ),
  "20 no think": (GOLD[len("<think>t</think>\n") :], 3, 0, 3, 3, 3, 3, 1),
  "21 text after": (GOLD + " done", 3, 0, 3, 3, 3, 3, 1),
  "21 response after": (
    GOLD + "\n<response>x</response>", 3, 0, 3, 3, 3, 3, 1,
  ),
  "22 no newlines at tags": (
    f"<think>t</think>\n<tool_call>{A}\n{B}</tool_call>", 3, 0, 3, 3, 3, 3, 1,
  ),
  "23 tag in think": (
    _wrap(A, B, think="a <tool_call> b"), -3, 0, -3, -3, -3, -3, -1,
  ),
  "24 response instead": (
    "<think>t</think>\n<response>x</response>", -3, 0, -3, -3, -3, -3, -1,
  ),
}  # fmt: skip
RESPONSES = [row[0] for row in VECTORS.values()]
FLAGS = [
  ({}, 3),
  ({"granularity": "refined"}, 4),
  ({"granularity": "intermediate"}, 5),
  ({"granularity": "coarse"}, 6),
  ({"scale": "equal_max"}, 7),
]


@pytest.mark.parametrize(("options", "column"), FLAGS)
def test_score_completions_equals_executed_vectors(options, column):
  parts = scoring.score_completions(
    RESPONSES, [GOLD] * len(RESPONSES), reward={**AUTHORS, **options}
  )
  rows = list(VECTORS.values())
  np.testing.assert_allclose(
    parts.correctness, [row[column] for row in rows], atol=1e-6
  )
  np.testing.assert_array_equal(parts.format, [row[2] for row in rows])
  total = [row[1] - row[3] + row[column] for row in rows]
  np.testing.assert_allclose(parts.total, total, atol=1e-6)
  np.testing.assert_array_equal(parts.length, 0.0)


def test_score_completions_of_the_paper_form_by_hand():
  parts = scoring.score_completions(
    RESPONSES, [GOLD] * len(RESPONSES), reward={}
  )
  correctness = dict(zip(VECTORS, parts.correctness.tolist(), strict=True))
  # Names are sets: a called twice costs nothing (vector 7).
  wanted = {key: row[3] for key, row in VECTORS.items()} | {"7 a repeated": 3}
  assert correctness == pytest.approx(wanted, abs=1e-6)
  succeeded = {
    key for key, ok in zip(VECTORS, parts.success, strict=True) if ok
  }
  assert succeeded == {
    "1 exact",
    "2 keys swapped",
    "3 calls swapped",
    "4 both swapped",
    "11 float for int",
    "11 true for 1",
  }


def test_score_completions_paper_variants_do_not_see_order():
  # Refined: r_name = 1[sets equal]; S_max = 5. Extra call: 0 + (1+2) + 1 of 5.
  # Intermediate: S_max = 3. Coarse: all or nothing.
  wanted = {
    "refined": {"4 both swapped": 3, "5 extra call": 1.8, "9 only a": 0.6},
    "intermediate": {"4 both swapped": 3, "5 extra call": 7 / 3, "9 only a": 0},
    "coarse": {"4 both swapped": 3, "5 extra call": -3, "7 a repeated": -3},
  }
  for granularity, values in wanted.items():
    parts = scoring.score_completions(
      RESPONSES,
      [GOLD] * len(RESPONSES),
      reward={"granularity": granularity},
    )
    got = dict(zip(VECTORS, parts.correctness.tolist(), strict=True))
    assert {key: got[key] for key in values} == pytest.approx(values, abs=1e-6)


def test_score_completions_greedy_success_needs_what_the_variant_needs():
  responses = [VECTORS[key][0] for key in ("1 exact", "3 calls swapped")]
  for granularity, wanted in (
    ("fine", [True, True]),
    ("refined", [True, False]),
    ("coarse", [True, False]),
    ("intermediate", [True, True]),
  ):
    parts = scoring.score_completions(
      responses, [GOLD] * 2, reward={**AUTHORS, "granularity": granularity}
    )
    assert parts.success.tolist() == wanted, granularity


@pytest.mark.parametrize(
  ("gold", "response", "wanted"),
  # Other ground truths of the same section: total, format, correctness.
  [
    ("response", "response", (1, 1, 0)),
    ("response", "call", (0, 0, 0)),
    ("response", "bare text", (0, 0, 0)),
    ("both", "both", (4, 1, 3)),
    ("both", "call", (3, 0, 3)),
    ("both", "response", (-3, 0, -3)),
    ("think", "think", (1, 1, 0)),
    ("think", "call", (0, 0, 0)),
  ],
)
@pytest.mark.parametrize("matching", ["greedy", "optimal"])
def test_score_completions_of_other_golds(gold, response, wanted, matching):
  texts = {
    "response": "<think>t</think>\n<response>x</response>",
    "call": GOLD,
    "both": GOLD + "\n<response>x</response>",
    "think": "<think>t</think>",
    "bare text": "hello",
  }
  parts = scoring.score_completions(
    [texts[response]], [texts[gold]], reward={"matching": matching}
  )
  got = (parts.total[0], parts.format[0], parts.correctness[0])
  assert got == pytest.approx(wanted)
  assert parts.success[0] == (gold == response)


def test_score_completions_greedy_against_optimal():
  gold = _wrap(_line("a", {"p": 1, "q": 2}), _line("a", {"p": 1, "q": 3}))
  response = _wrap(_line("a", {"p": 1, "q": 3}), _line("a", {"p": 1, "z": 3}))
  for matching, wanted in (("greedy", 0.7142857), ("optimal", 1.5714286)):
    parts = scoring.score_completions(
      [response], [gold], reward={"matching": matching}
    )
    assert parts.correctness[0] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
  ("step", "fmax", "fmin", "cmax"),
  [
    (0, 2.0, -2.0, 2.0),
    (1, 1.9933333, -1.9866667, 2.0066667),
    (30, 1.8, -1.6, 2.2),
    (75, 1.5, -1.0, 2.5),
    (104, 1.3066667, -1.0, 2.6933333),
    (105, 1.3, -1.0, 2.7),
    (150, 1.0, -1.0, 3.0),
    (400, 1.0, -1.0, 3.0),
  ],
)
def test_score_completions_dynamic_scale_of_the_authors(step, fmax, fmin, cmax):
  parts = scoring.score_completions(
    [GOLD, "nothing"], [GOLD] * 2, reward={**AUTHORS, "scale": "dynamic"},
    step=step,
  )  # fmt: skip
  np.testing.assert_allclose(parts.format, [fmax, fmin], atol=1e-6)
  np.testing.assert_allclose(parts.correctness, [cmax, -cmax], atol=1e-6)


@pytest.mark.parametrize(
  ("scale", "step", "format_range", "cmax"),
  [
    ("fixed", 99, (1.0, 0.0), 3.0),
    ("equal_max", 99, (1.0, 0.0), 1.0),
    ("two_stage", 29, (1.0, 0.0), 1.0),
    ("two_stage", 30, (0.5, 0.0), 3.0),
    # p = 50 / 200: format [-1.75, 1.75], correctness [-2.25, 2.25].
    ("dynamic", 50, (1.75, -1.75), 2.25),
    ("dynamic", 900, (1.0, -1.0), 3.0),
  ],
)
def test_score_completions_scales_of_the_paper(scale, step, format_range, cmax):
  parts = scoring.score_completions(
    [GOLD, "nothing"],
    [GOLD] * 2,
    reward={"scale": scale, "schedule_steps": 200},
    step=step,
  )
  np.testing.assert_allclose(parts.format, format_range, atol=1e-6)
  np.testing.assert_allclose(parts.correctness, [cmax, -cmax], atol=1e-6)
  assert parts.success.tolist() == [True, False]


@pytest.mark.parametrize(
  ("length", "schedule", "words", "step", "wanted"),
  [
    ("fixed", "authors", 200, 0, 0.39),
    ("fixed", "authors", 200, 105, 0.39),
    ("dynamic", "authors", 200, 0, 0.52),
    ("dynamic", "authors", 200, 52, 0.39),
    ("dynamic", "authors", 200, 105, 0.31),
    ("fixed", "authors", 600, 3, 1.0),
    ("dynamic", "authors", 600, 0, 1.0),
    ("dynamic", "authors", 600, 105, 0.94),
    ("fixed", "paper", 200, 7, 0.390625),
    ("dynamic", "paper", 200, 0, 0.390625),
    ("dynamic", "paper", 200, 105, 0.1953125),
    ("none", "paper", 200, 0, 0.0),
  ],
)
def test_score_completions_length_term(length, schedule, words, step, wanted):
  text = _wrap(A, B, think=" ".join(["w"] * words))
  parts = scoring.score_completions(
    [text], [GOLD], reward={"length": length, "schedule": schedule}, step=step
  )
  assert parts.length[0] == pytest.approx(wanted, abs=1e-6)
  assert parts.total[0] == pytest.approx(4 + wanted, abs=1e-6)
  assert parts.success[0]


def test_score_completions_no_call_match():
  golds = ["<think>t</think>\n<response>x</response>"] * 3
  responses = [golds[0], "words", GOLD]
  parts = scoring.score_completions(
    responses, golds, reward={"no_call": "match"}
  )
  assert parts.correctness.tolist() == [3, 3, -3]
  assert parts.total.tolist() == [4, 3, -3]
  assert parts.success.tolist() == [True, False, False]


def test_score_completions_no_call_success_needs_no_call_tag():
  gold = "<think>t</think>\n<response>x</response>"
  quoting = "<think>t</think>\n<response>say <tool_call></response>"
  parts = scoring.score_completions([quoting], [gold], reward={})
  assert parts.format[0] == 1 and not parts.success[0]


def test_score_completions_newlines():
  text = GOLD.replace("</think>\n", "</think>\n\n")
  for newlines, wanted in (("one", 0), ("one_or_two", 1)):
    parts = scoring.score_completions(
      [text], [GOLD], reward={"newlines": newlines}
    )
    assert parts.format[0] == wanted


@pytest.mark.parametrize(
  ("equality", "value", "is_equal"),
  [
    ("python", "[1.0, 2]", True),
    ("strict", "[1.0, 2]", False),
    ("sets", "[2, 1, 2]", True),
    ("python", "[2, 1]", False),
    ("strict", "[1, 2]", True),
  ],
)
def test_score_completions_equality_rules(equality, value, is_equal):
  gold = _wrap('{"name": "a", "parameters": {"p": [1, 2]}}')
  response = gold.replace("[1, 2]", value)
  parts = scoring.score_completions(
    [response], [gold], reward={"equality": equality}
  )
  assert parts.success[0] == is_equal


def test_score_completions_extra_object_keys():
  # The authors compare whole objects where they compare calls at all.
  response = GOLD.replace('"name": "b"', '"id": 1, "name": "b"')
  for reward, wanted in (
    (AUTHORS, 3),
    ({**AUTHORS, "granularity": "coarse"}, -3),
    ({**AUTHORS, "granularity": "intermediate"}, 1),
    ({"granularity": "coarse"}, 3),
  ):
    parts = scoring.score_completions([response], [GOLD], reward=reward)
    assert parts.correctness[0] == pytest.approx(wanted, abs=1e-6)


def test_score_completions_unmatched_call_without_parameters():
  # Greedy: z is never looked into, so the rest still counts: names 2 of 3.
  response = _wrap(A, B, '{"name": "z"}')
  greedy = scoring.score_completions([response], [GOLD], reward=AUTHORS)
  assert greedy.correctness[0] == pytest.approx(6 * (2 / 3 + 4) / 5 - 3)
  optimal = scoring.score_completions([response], [GOLD], reward={})
  assert optimal.correctness[0] == -3


# ----- binary rewards -----


def _n1(calls, think="<think>t</think>\n"):
  return f"{think}<tool_call>{calls}</tool_call>"


NA = '{"name": "a", "arguments": {"p": 1, "q": [1, 2]}}'
NB = '{"name": "b", "arguments": {}}'
N_GOLD = types.Gold(
  (types.ToolCall("a", {"p": 1, "q": [1, 2]}), types.ToolCall("b", {}))
)


@pytest.mark.parametrize(
  ("response", "wanted"),
  [
    (_n1(f"[{NA}, {NB}]"), 1),
    (_n1(f"[{NB}, {NA}]"), 1),
    (_n1(json.dumps(f"[{NA}, {NB}]")), 1),
    (_n1("x") + _n1(f"[{NA}, {NB}]"), 1),
    (_n1(f"[{NA}, {NB}]") + _n1("x"), 0),
    (_n1(f"[{NA}, {NB}]", think=""), 0),
    (_n1(f"[{NA}, {NB}]", think="<think>"), 0),
    (_n1(f"[{NA}, {NB}, {NB}]"), 0),
    (_n1(f"[{NA}]"), 0),
    (_n1(NA), 0),
    (_n1(f"[{NA}, {NB}]".replace('"p": 1', '"p": 1.0')), 0),
    (_n1(f"[{NA}, {NB}]".replace('"p": 1', '"p": true')), 0),
    (_n1(f"[{NA}, {NB}]".replace("[1, 2]", "[2, 1]")), 0),
    (_n1(f"[{NA}, {NB}, 3]"), 0),
    (_n1('[{"name": "a"}]'), 0),
    (_n1("not json"), 0),
    ("<think>t</think> no block", 0),
  ],
)
def test_n1_reward_rules(response, wanted):
  parts = scoring.score_completions(
    [response], [N_GOLD], reward={"name": "n1"}, style="n1"
  )
  assert parts.total[0] == parts.correctness[0] == wanted
  assert parts.success[0] == bool(wanted)
  assert parts.format[0] == parts.length[0] == 0


def test_n1_reward_of_gold_without_call():
  responses = [_n1("[]"), "<think>t</think> none", _n1(f"[{NB}]")]
  for no_call, wanted in (("zero", [1, 0, 0]), ("match", [1, 1, 0])):
    parts = scoring.score_completions(
      responses,
      [types.Gold()] * 3,
      reward={"name": "n1", "no_call": no_call},
      style="n1",
    )
    assert parts.total.tolist() == wanted


def _blocks(*calls):
  return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


@pytest.mark.parametrize(
  ("response", "wanted"),
  [
    (_blocks(NA, NB), 1),
    (_blocks(NB, NA), 1),
    ("some text " + _blocks(NB, NA), 1),
    (_blocks(NB, NA.replace("[1, 2]", "[2, 1, 1]")), 1),
    (_blocks(NB, NA.replace('"p": 1', '"p": true')), 1),
    (_blocks(NB, NA.replace('"p": 1', '"p": "1"')), 0),
    (_blocks(NA, NB, NB), 0),
    (_blocks(NA, NA), 0),
    (_blocks(NA), 0),
    (_blocks(NA, "broken"), 0),
    (_blocks(NA, NB.replace('"name"', '"id": 1, "name"')), 0),
    (_blocks(NA, '{"name": "c", "arguments": {}}'), 0),
    ("no call", 0),
  ],
)
def test_looptool_reward_rules(response, wanted):
  parts = scoring.score_completions(
    [response], [N_GOLD], reward={"name": "looptool"}, style="native"
  )
  assert parts.total[0] == wanted
  assert parts.success[0] == bool(wanted)


def test_looptool_reward_ignores_repeats_once_counts_agree():
  a, b = N_GOLD.calls
  parts = scoring.score_completions(
    [_blocks(NA, NB, NB), _blocks(NA, NA, NB)],
    [types.Gold((a, a, b))] * 2,
    reward={"name": "looptool"},
    style="native",
  )
  assert parts.total.tolist() == [1, 1]


def test_looptool_reward_of_gold_without_call():
  parts = scoring.score_completions(
    ["any text", _blocks(NB), "<tool_call>"],
    [types.Gold(response="x")] * 3,
    reward={"name": "looptool"},
    style="native",
  )
  assert parts.total.tolist() == [1, 0, 0]


# ----- random calls and texts -----

_toy_values = st.sampled_from([0, 1, 1.0, True, "1", None, [1], [1.0, 2], {}])
_toy_calls = st.lists(
  st.tuples(
    st.sampled_from("ab"),
    st.dictionaries(st.sampled_from("pqr"), _toy_values, max_size=3),
  ),
  min_size=1,
  max_size=3,
)


@hypothesis.given(_toy_calls, st.sampled_from(["toolrl", "native", "n1"]))
@hypothesis.settings(max_examples=30, deadline=None)
def test_replayed_gold_succeeds_in_every_style(calls, style):
  gold = types.Gold(tuple(types.ToolCall(n, a) for n, a in calls))
  text = tool_calls.render_gold(gold, style=style)
  for reward in ({}, AUTHORS, {"name": "n1"}, {"name": "looptool"}):
    parts = scoring.score_completions(
      [text], [gold], reward=reward, style=style
    )
    assert parts.success[0]
    assert parts.total[0] == (1 if "name" in reward else 4)


@hypothesis.given(st.text(max_size=60), st.sampled_from(RESPONSES))
@hypothesis.settings(max_examples=60, deadline=None)
def test_any_text_scores_within_the_range(noise, response):
  cut = len(noise) % (len(response) + 1)
  text = response[:cut] + noise + response[cut:]
  parts = scoring.score_completions([text], [GOLD], reward={})
  assert -3 <= parts.total[0] <= 4
  assert parts.format[0] in (0, 1)


# ----- shapes and options -----


def test_score_completions_groups_share_their_gold():
  other = _wrap(_line("c", {"x": "y"}))
  groups = [[GOLD, other, "x"], [GOLD, other, "x"]]
  parts = scoring.score_completions(groups, [GOLD, other], reward={})
  assert parts.total.shape == (2, 3) and parts.success.dtype == bool
  assert parts.total.tolist() == [[4, -2, -3], [-2, 4, -3]]
  flat = scoring.score_completions(
    groups[0] + groups[1], [GOLD] * 3 + [other] * 3, reward={}
  )
  assert flat.total.tolist() == parts.total.reshape(-1).tolist()


def test_score_completions_of_nothing():
  assert scoring.score_completions([], [], reward={}).total.shape == (0,)
  parts = scoring.score_completions([[], []], [GOLD, GOLD], reward={})
  assert parts.total.shape == (2, 0)


def test_score_completions_does_not_depend_on_its_neighbours():
  alone = [
    float(scoring.score_completions([text], [GOLD], reward={}).total[0])
    for text in RESPONSES[:8]
  ]
  long_gold = _wrap(*[_line(str(i), {str(i): i}) for i in range(9)])
  together = scoring.score_completions(
    [*RESPONSES[:8], long_gold], [GOLD] * 8 + [long_gold], reward={}
  )
  assert together.total.tolist() == [*alone, 4.0]


def test_parse_and_score_returns_the_records():
  scored = scoring.parse_and_score(
    [[GOLD, "x"]], [GOLD], reward=scoring.RewardOptions(scale="equal_max")
  )
  assert scored.parts.total.tolist() == [[2, -1]]
  assert [one.has_call for one in scored.parsed] == [True, False]
  assert scored.parsed[0].status == types.ParseStatus.OK


@pytest.mark.parametrize(
  ("reward", "message"),
  [
    ({"scael": "fixed"}, "no key 'scael'; did you mean 'scale'"),
    ({"scale": "fixd"}, "reward.scale has no value 'fixd'; did you mean"),
    ({"matching": 3}, "reward.matching has no value 3"),
    ({"schedule_steps": 0}, "at least 1, got 0"),
    ({"schedule_steps": True}, "at least 1, got True"),
  ],
)
def test_score_completions_refuses_unknown_options(reward, message):
  with pytest.raises(ValueError, match=message) as error:
    scoring.score_completions([GOLD], [GOLD], reward=reward)
  assert "\n" not in str(error.value)


def test_score_completions_refuses_unfit_arguments():
  with pytest.raises(ValueError, match="golds must have one entry"):
    scoring.score_completions([GOLD], [GOLD, GOLD], reward={})
  with pytest.raises(ValueError, match="groups of texts of one size"):
    scoring.score_completions([[GOLD], [GOLD, GOLD]], [GOLD] * 2, reward={})
  with pytest.raises(ValueError, match="did you mean 'native'"):
    scoring.score_completions([GOLD], [GOLD], reward={}, style="nativ")
  with pytest.raises(ValueError, match="gold calls must be"):
    scoring.score_completions([GOLD], [_wrap("{")], reward={})


def test_reward_options_defaults_are_those_of_the_configuration():
  config = common.get_config().reward.to_dict()
  assert scoring.RewardOptions()._asdict() == config
  assert scoring.RewardOptions.from_mapping(config) == scoring.RewardOptions()


# ----- real rows -----


def test_replayed_gold_of_toolrl_rows(shared_dir):
  folder = shared_dir / "data" / "toolrl"
  table = pyarrow.parquet.read_table(folder / "test.parquet")
  texts = [row["ground_truth"] for row in table["reward_model"].to_pylist()]
  for matching in ("greedy", "optimal"):
    parts = scoring.score_completions(
      texts, texts, reward={"matching": matching}
    )
    assert (parts.total == 4).sum() == 71 and (parts.total == 1).sum() == 9
    assert parts.success.all()
  rows = json.loads((folder / "rlla_sft.json").read_text(encoding="utf-8"))
  texts = [row["output"] for row in rows]
  parts = scoring.score_completions(texts, texts, reward=AUTHORS)
  spoilt = [
    10, 44, 73, 76, 95, 97, 200, 213, 252, 280, 285, 317, 348, 350, 356, 363,
    380,
  ]  # fmt: skip
  # Their thinking quotes the call tag, which spoils them as completions.
  assert (parts.correctness[spoilt] == -3).all()
  whole = np.delete(parts.total, spoilt)
  assert (whole == 4).sum() == 329 and (whole == 1).sum() == 54


def test_score_completions_is_fast_after_warm_up():
  groups = [RESPONSES[:8]] * 16
  golds = [GOLD] * 16
  scoring.score_completions(groups, golds, reward={})
  seconds = []
  for step in range(5):
    start = time.perf_counter()
    scoring.score_completions(groups, golds, reward={}, step=step)
    seconds.append(time.perf_counter() - start)
  # A few ms; the bound leaves room for type checks and a busy machine.
  assert min(seconds) < 0.5


_REFUSED = [
  ("[None]", "[gold]", "{}", "completions must be texts"),
  ("[3]", "[gold]", "{}", "completions must be texts"),
  ("[b'text']", "[gold]", "{}", "completions must be texts"),
  ("[['a', None]]", "[gold]", "{}", "completions must be texts"),
  ("['a']", "[None]", "{}", "a gold must be"),
  ("['a']", "[{'calls': []}]", "{}", "a gold must be"),
  ("['a']", "[types.Gold(calls=None)]", "{}", "a gold must be"),
  ("['a']", "[gold]", "{'reward': None}", "reward must be a mapping"),
  ("['a']", "[gold]", "{'style': None}", "style has no value"),
  ("['a']", "[gold]", "{'step': 2**31}", "step must be"),
  ("['a']", "[gold]", "{'step': 1.5}", "step must be"),
]


def test_score_completions_refuses_what_a_user_may_pass():
  # In a process without the suite's own type checks, as a user meets it.
  program = f"""
import json
from toolrl_jax import scoring, types
gold = types.Gold()
for texts, golds, options, _ in {_REFUSED!r}:
  arguments = {{"reward": {{}}}} | eval(options)
  try:
    scoring.score_completions(eval(texts), eval(golds), **arguments)
    print(json.dumps("nothing"))
  except ValueError as error:
    print(json.dumps(str(error)))
"""
  done = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=True
  )
  said = [json.loads(line) for line in done.stdout.splitlines()]
  assert len(said) == len(_REFUSED)
  for line, (*_, wanted) in zip(said, _REFUSED, strict=True):
    assert wanted in line
    assert "\n" not in line
