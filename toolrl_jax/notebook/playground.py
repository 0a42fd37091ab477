"""One completion and its gold to every part of the score, and its variants.

What `scoring.score_completions` gives, beside the points of
`reporting.call_points` that it is made of. It knows no models.
"""

from collections.abc import Mapping
from typing import Any

from toolrl_jax import scoring
from toolrl_jax.notebook import tables
from toolrl_jax.parsing import tool_calls
from toolrl_jax.reporting import call_points

# What is changed, beside the default; configs/common.py says what each means.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
  "default (the ToolRL paper)": {},
  "matching: greedy (the authors' code)": {"matching": "greedy"},
  "granularity: refined": {"granularity": "refined"},
  "granularity: intermediate": {"granularity": "intermediate"},
  "granularity: coarse": {"granularity": "coarse"},
  "scale: equal_max": {"scale": "equal_max"},
  "scale: two_stage": {"scale": "two_stage"},
  "scale: dynamic": {"scale": "dynamic"},
  "length: fixed": {"length": "fixed"},
  "length: dynamic": {"length": "dynamic"},
  "equality: strict": {"equality": "strict"},
  "equality: sets (LoopTool)": {"equality": "sets"},
  "no_call: match": {"no_call": "match"},
  "newlines: one_or_two": {"newlines": "one_or_two"},
  "name: n1 (Tool-N1)": {"name": "n1"},
  "name: looptool": {"name": "looptool"},
}


def unescaped(text: str) -> str:
  r"""Returns the text of a form field, which has one line: \n is a new line."""
  return text.replace("\\n", "\n")


def parts(
  completion: str,
  gold: str,
  reward: Mapping[str, Any] | None = None,
  *,
  step: int = 0,
) -> tables.Table:
  """Takes the score of one completion apart.

  Args:
    completion: Any text.
    gold: What is right, in the ToolRL layout.
    reward: Fields of the `reward` section that differ from the default.
    step: Training step, for the scheduled rewards.

  Returns:
    A row a part, with its points, the most it can have, and what it says.

  Raises:
    ValueError: The gold cannot be read, or a field is unknown.
  """
  options = scoring.RewardOptions.from_mapping(reward or {})
  scored = scoring.parse_and_score(
    [completion], [gold], reward=options, step=step
  )
  one, parsed = scored.parts, scored.parsed[0]
  kind = tool_calls.parse_gold(gold).kind
  rows: list[tuple[tables.Cell, ...]] = [
    ("format", float(one.format[0]), None, _FORMATS[kind]),
    *_point_rows(completion, gold, options),
    (
      "correctness", float(one.correctness[0]), None,
      f"the calls were read as {parsed.status.name}",
    ),
    (
      "length", float(one.length[0]), None,
      f"{parsed.num_think_words} words of thinking",
    ),
    ("total", float(one.total[0]), None, "format + correctness + length"),
    ("success", bool(one.success[0]), None, "what the streak filter asks for"),
  ]  # fmt: skip
  return tables.table(("part", "score", "of", "meaning"), rows)


_FORMATS = {
  "calls": "asked for: <think>, then one <tool_call> block",
  "response": "asked for: <think>, then <response>",
  "both": "asked for: <think>, one <tool_call> block, <response>",
  "none": "asked for: <think> alone",
}


def _point_rows(
  completion: str, gold: str, options: scoring.RewardOptions
) -> list[tuple[tables.Cell, ...]]:
  """Returns the points that make the correctness in the "fine" form."""
  points = call_points.compare(
    completion,
    gold,
    matching=options.matching,
    equality=options.equality,
  )
  if points is None:
    text = "the gold calls no tool, so there is nothing to compare"
    return [("  names, parameters, values", None, None, text)]
  most = 1 + points.max_parameters + points.max_values
  return [
    ("  tool names", points.names, 1, "shared names over all names"),
    (
      "  parameter names", points.parameters, points.max_parameters,
      "shared over all, summed over the matched calls",
    ),
    (
      "  parameter values", points.values, points.max_values,
      "equal values of the matched calls",
    ),
    (
      "  share of the points", points.fraction, 1,
      f"(names + parameters + values) / {most}; -3 + 6 x share is the "
      "correctness under the default scale and granularity",
    ),
  ]  # fmt: skip


def variants(completion: str, gold: str, *, step: int = 0) -> tables.Table:
  """Scores one completion under every variant of the reward.

  Args:
    completion: Any text.
    gold: What is right, in the ToolRL layout.
    step: Training step, for the scheduled rewards.

  Returns:
    A row a variant.

  Raises:
    ValueError: The gold cannot be read.
  """
  rows = []
  for name, reward in VARIANTS.items():
    scored = scoring.score_completions(
      [completion], [gold], reward=reward, step=step
    )
    rows.append((name, *(part[0].item() for part in scored)))
  header = ("variant", "total", "format", "correctness", "length", "success")
  return tables.table(header, rows)


def compare(
  completions: Mapping[str, str],
  gold: str,
  reward: Mapping[str, Any] | None = None,
) -> tables.Table:
  """Scores several completions of one gold beside one another.

  Args:
    completions: A name for each text.
    gold: What is right, in the ToolRL layout.
    reward: Fields of the `reward` section that differ from the default.

  Returns:
    A row a completion.

  Raises:
    ValueError: The gold cannot be read, or a field is unknown.
  """
  scored = scoring.score_completions(
    list(completions.values()), [gold] * len(completions), reward=reward or {}
  )
  rows = [
    (name, text, *(part[i].item() for part in scored))
    for i, (name, text) in enumerate(completions.items())
  ]
  header = (
    "what", "completion", "total", "format", "correctness", "length", "success",
  )  # fmt: skip
  return tables.table(header, rows)
