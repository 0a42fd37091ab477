"""BFCL verdicts to the averages that papers and the leaderboard quote.

From one score an item to fractions: each category, the v4 averages of
bfcl-eval 2026.3.23 (`generate_leaderboard_csv`), and the three numbers of
arXiv:2606.00135, which match the leaderboard as

    Multi  = v4 multi-turn
    Single = (v4 non-live + v4 live) / 2
    Avg    = (Multi + Single) / 2

An average of which a category is missing counts it as 0 where the package does
(the overall), and is left out otherwise. This module does not know how an item
is judged.
"""

from collections.abc import Mapping, Sequence

NON_LIVE = (
  "simple_python",
  "simple_java",
  "simple_javascript",
  "multiple",
  "parallel",
  "parallel_multiple",
)
LIVE = (
  "live_simple",
  "live_multiple",
  "live_parallel",
  "live_parallel_multiple",
)
IRRELEVANCE = ("irrelevance", "live_irrelevance")
RELEVANCE = ("live_relevance",)
MULTI_TURN = (
  "multi_turn_base",
  "multi_turn_miss_func",
  "multi_turn_miss_param",
  "multi_turn_long_context",
)
SINGLE_TURN = (*NON_LIVE, "irrelevance", *LIVE, "live_irrelevance", *RELEVANCE)
CATEGORIES = (*SINGLE_TURN, *MULTI_TURN)

# Items of each, for one that was not run.
_LIVE_SIZES = dict(zip(LIVE, (258, 1053, 16, 24)))
# Not run here: they need a paid search service or embedding models.
_AGENTIC = ("web_search", "memory")
PAPER = (*NON_LIVE, *LIVE, *MULTI_TURN)


def table(
  verdicts: Mapping[str, Sequence[float]],
) -> tuple[dict[str, float], tuple[str, ...]]:
  """Averages verdicts.

  Args:
    verdicts: Category to the scores of its items, each in [0, 1]; a category
      that was not run is not in it, or empty.

  Returns:
    Metric to fraction in [0, 1], and the notes that belong to it.
  """
  means = {
    category: sum(scores) / len(scores)
    for category, scores in verdicts.items()
    if scores
  }
  counts = {category: len(scores) for category, scores in verdicts.items()}
  sizes = _LIVE_SIZES | {name: num for name, num in counts.items() if num}
  metrics = dict(means)
  groups = {
    "v4/non_live": (NON_LIVE, _non_live),
    "v4/live": (LIVE, lambda means: _weighted(means, sizes)),
    "v4/irrelevance": (IRRELEVANCE, _irrelevance),
    "v4/multi_turn": (MULTI_TURN, _multi_turn),
  }
  overall = 0.0
  weights = dict(zip(groups, (0.1, 0.1, 0.1, 0.3)))
  missing = [category for category in CATEGORIES if category not in means]
  for name, (categories, average) in groups.items():
    if any(category in means for category in categories):
      full = {category: means.get(category, 0.0) for category in categories}
      value = average(full)
      overall += weights[name] * value
      if all(category in means for category in categories):
        metrics[name] = value
  metrics["v4/overall"] = overall
  metrics |= _paper(metrics)
  not_run = ", ".join([*_AGENTIC, *missing])
  notes = (
    f"v4/overall counts these as 0, as the package does, for they were not"
    f" run: {not_run}.",
  )
  return metrics, notes


def _paper(metrics: Mapping[str, float]) -> dict[str, float]:
  """The numbers of arXiv:2606.00135, as far as their parts are there."""
  numbers = {}
  if "v4/multi_turn" in metrics:
    numbers["paper/multi"] = metrics["v4/multi_turn"]
  if "v4/non_live" in metrics and "v4/live" in metrics:
    numbers["paper/single"] = (metrics["v4/non_live"] + metrics["v4/live"]) / 2
  if len(numbers) == 2:
    numbers["paper/avg"] = sum(numbers.values()) / 2
  return numbers


def _non_live(means: Mapping[str, float]) -> float:
  """Mean of four; the three languages of "simple" are one of them."""
  simple = (
    means["simple_python"] + means["simple_java"] + means["simple_javascript"]
  ) / 3
  others = means["multiple"] + means["parallel"] + means["parallel_multiple"]
  return (simple + others) / 4


def _weighted(means: Mapping[str, float], sizes: Mapping[str, int]) -> float:
  """Mean over the items of all categories."""
  total = sum(sizes[category] for category in means)
  return sum(means[name] * sizes[name] for name in means) / total


def _irrelevance(means: Mapping[str, float]) -> float:
  return sum(means.values()) / len(IRRELEVANCE)


def _multi_turn(means: Mapping[str, float]) -> float:
  return sum(means.values()) / len(MULTI_TURN)
