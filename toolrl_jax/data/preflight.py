"""Scores the gold answers before the first step.

From examples to the list of those whose own gold would not be counted as a
success: rows that could never be solved, or a reward that does not fit them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax import scoring, types
from toolrl_jax.parsing import tool_calls


def unsolvable(
  examples: Sequence[types.Example],
  *,
  reward: Mapping[str, Any],
  style: tool_calls.Style = "toolrl",
) -> list[types.Rejected]:
  """Lists the examples whose gold answer scores no success.

  Args:
    examples: Rows to check.
    reward: The `reward` section of the configuration.
    style: Form of the completions, "toolrl" or "native".

  Returns:
    Id and reason of each failing example.
  """
  golds = [example.gold for example in examples]
  texts = [tool_calls.render_gold(gold, style=style) for gold in golds]
  parts = scoring.score_completions(texts, golds, reward=reward, style=style)
  return [
    types.Rejected(
      example.id,
      f"its gold scores format {float(parts.format[i]):g} and correctness "
      f"{float(parts.correctness[i]):g}, no success",
    )
    for i, example in enumerate(examples)
    if not parts.success[i]
  ]
