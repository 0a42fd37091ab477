"""Rows of our own formats as a benchmark: one prompt, one answer, its reward.

From `types.Example` (ToolRL rows, JSONL files, generated rows) to scores by
the same text-level function as in training. The headline is the share of
exactly right answers; rows whose gold calls no tool are counted apart.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolrl_jax import scoring, types
from toolrl_jax.evaluation import benchmark, conversation
from toolrl_jax.parsing import tool_calls


class ExampleBenchmark:
  """Held-out rows, each answered once.

  Attributes:
    name: "rows".
    headline: "exact".
  """

  name = "rows"
  headline = "exact"

  def __init__(
    self,
    examples: Sequence[types.Example],
    *,
    reward: Mapping[str, Any],
    style: tool_calls.Style,
    num_rejected: int = 0,
  ):
    """Takes the rows.

    Args:
      examples: Rows with unique ids.
      reward: The `reward` section of the configuration.
      style: Layout in which answers are read.
      num_rejected: Rows that could not be read, for the notes.

    Raises:
      ValueError: There are no rows.
    """
    if not examples:
      raise ValueError(
        f"there must be rows to answer, got none ({num_rejected} could not be "
        "read); name another file."
      )
    self._num_rejected = num_rejected
    self._examples = {example.id: example for example in examples}
    self._reward, self._style = reward, style

  def items(self) -> list[benchmark.Item]:
    """Returns an item a row, in their order."""
    return [
      benchmark.Item(
        example.id, "call" if example.gold.calls else "no_call", {}
      )
      for example in self._examples.values()
    ]

  def converse(self, item: benchmark.Item) -> conversation.Conversation:
    """Asks the row's prompt; the outcome holds the `text`."""
    example = self._examples[item.id]
    answer = yield conversation.Ask(
      example.messages, example.tools, verbatim=example.verbatim
    )
    return {"text": answer.text}

  def score(
    self, outcomes: Mapping[str, Mapping[str, Any]]
  ) -> benchmark.Scores:
    """Scores the texts by the reward's `success`."""
    examples = list(self._examples.values())
    texts = [
      str(outcomes.get(example.id, {}).get("text", "")) for example in examples
    ]
    golds = [example.gold for example in examples]
    scored = scoring.parse_and_score(
      texts, golds, reward=self._reward, style=self._style
    )
    success = np.asarray(scored.parts.success, np.float64)
    needs_call = np.array([bool(gold.calls) for gold in golds])
    is_formatted = [
      gold.kind in one.formats_one_or_two
      for gold, one in zip(golds, scored.parsed)
    ]
    table = {
      "exact": float(success.mean()),
      "format": float(np.mean(is_formatted)),
    }
    kinds = (("call", needs_call), ("no_call", ~needs_call))
    for kind, is_kind in kinds:
      if is_kind.any():
        table[kind] = float(success[is_kind].mean())
    return benchmark.Scores(
      verdicts=dict(zip(self._examples, success.tolist())),
      table=table,
      counts={kind: int(n) for kind, is_kind in kinds if (n := is_kind.sum())},
      notes=(
        (f"{self._num_rejected} rows could not be read and are no items.",)
        if self._num_rejected
        else ()
      ),
    )

  def provenance(self) -> dict[str, str]:
    """Returns a hash of the rows, and the reward's fields."""
    rows = repr(list(self._examples.values())).encode()
    return {
      "rows": hashlib.sha256(rows).hexdigest()[:16],
      "reward": json.dumps(dict(self._reward), sort_keys=True, default=str),
    }
