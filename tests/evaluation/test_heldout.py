"""Held-out scores over a real engine, and the shares they report."""

import jax
import pytest

from toolrl_jax import types
from toolrl_jax.evaluation import heldout
from toolrl_jax.model import decoder, presets
from toolrl_jax.rollout import collect, engine

_CALL = (
  '<think>t</think>\n<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>'
)
_ANSWER = "<think>t</think>\n<response>no</response>"
_CONFIG = presets.DecoderConfig(
  family="qwen2",
  vocab_size=64,
  width=16,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  ffn_width=16,
)


@pytest.fixture(scope="module")
def server():
  params = decoder.init_params(_CONFIG, jax.random.key(0))
  served = engine.RolloutEngine(_CONFIG, params, slots=4, group_size=2)
  with collect.start(served, server="inline") as running:
    yield running


def _evaluate(server, texts, golds, **options):
  """Scores prepared texts for the rows that the engine answered."""
  examples = [
    types.Example(str(i), (), (), gold) for i, gold in enumerate(golds)
  ]
  # Two buckets, so that rows come back in their own order.
  prompt_ids = [[i + 1] * (3 if i % 2 else 9) for i in range(len(golds))]
  answers = iter(())

  def decode_text(rollouts):
    return [[next(answers)] for _ in range(rollouts.finish.shape[0])]

  order = [i for odd in (1, 0) for i in range(len(golds)) if i % 2 == odd]
  answers = iter([texts[i] for _ in range(2) for i in order])
  return heldout.evaluate(
    heldout.HeldOut(examples, prompt_ids, (4, 16)),
    server,
    decode_text,
    reward={},
    style="toolrl",
    step=1,
    max_tokens=4,
    completion_buckets=(4,),
    temperature=1.0,
    **options,
  )


def test_evaluate_counts_rows_without_calls_apart(server):
  golds = [types.Gold((types.ToolCall("a", {}),))] * 3 + [types.Gold((), "no")]
  scores = _evaluate(
    server, [_CALL, _ANSWER, "x", _ANSWER], golds, is_sampled=True
  )
  assert scores["heldout/exact_greedy_frac"] == 0.5
  assert scores["heldout/exact_sampled_frac"] == 0.5
  assert scores["heldout/call_exact_frac"] == pytest.approx(1 / 3)
  assert scores["heldout/refusal_frac"] == 1.0
  assert scores["heldout/refusal_greedy_frac"] == 1.0
  # 4 and 1 for the right ones; -3 for an answer and for text without a call.
  assert scores["heldout/reward"] == pytest.approx((4 - 3 - 3 + 1) / 4)
  assert scores["heldout/format_frac"] == 0.5


def test_evaluate_greedy_alone_gives_no_sampled_scores(server):
  scores = _evaluate(
    server, [_CALL], [types.Gold((types.ToolCall("a", {}),))], is_sampled=False
  )
  assert scores["heldout/exact_greedy_frac"] == 1.0
  assert "heldout/exact_sampled_frac" not in scores
  assert "heldout/refusal_greedy_frac" not in scores


def test_evaluate_shows_how_many_rows_are_answered(server, capsys, monkeypatch):
  monkeypatch.setattr(heldout, "_SILENT_SECS", 0.0)
  monkeypatch.setattr(heldout, "_FILE_SECS", 0.0)
  golds = [types.Gold((), "no")] * 4
  _evaluate(server, [_ANSWER] * 4, golds, is_sampled=True)
  said = capsys.readouterr().err
  for name in ("greedy", "sampled"):
    assert f"held-out rows, {name}:   0%" in said
    assert f"held-out rows, {name}: 100%" in said
    assert said.index(f"{name}: 100%") > said.index(f"{name}:   0%")
  assert "4/4" in said
