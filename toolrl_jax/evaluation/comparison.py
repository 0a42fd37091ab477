"""Two score files side by side: is the one checkpoint better than the other?

From two score files of the same protocol, seeds and items to the gain of each
benchmark's mean over items with its interval. What could make the two
incomparable is refused. Knows neither models nor files.
"""

from collections.abc import Mapping
from typing import Any

from toolrl_jax.evaluation import sensitivity


def describe(scores: Mapping[str, Any], base: Mapping[str, Any]) -> str:
  """Renders the gain of one score file over another.

  Args:
    scores: Score file of the checkpoint in question.
    base: Score file of the one that it is compared with.

  Returns:
    A line for both, and one a benchmark that both have.

  Raises:
    ValueError: Protocols, data, rules, seeds or items differ, or no benchmark
      is in both.
  """
  names = [
    name
    for name, one in scores["benchmarks"].items()
    if name in base["benchmarks"] and _has_verdicts(one)
  ]
  if not names:
    raise ValueError(
      "two score files must share a benchmark with verdicts, got "
      f"{', '.join(scores['benchmarks'])} and {', '.join(base['benchmarks'])}."
    )
  lines = [
    f"{scores['model']} ({scores['weights']}) against {base['model']} "
    f"({base['weights']}), protocol {scores['protocol']['hash']}"
  ]
  for name in names:
    gain = _gain(scores, base, name)
    lines.append(
      f"{name}, mean of all items: {100 * gain.mean:.1f} against "
      f"{100 * (gain.mean - gain.difference):.1f}, {100 * gain.difference:+.1f} "
      f"points (95 % of the resampled items {100 * gain.low:+.1f} to "
      f"{100 * gain.high:+.1f}); {gain.noise_verdict}"
    )
  return "\n".join(lines)


def _has_verdicts(one: Mapping[str, Any]) -> bool:
  return all("verdicts" in part for part in one["by_seed"].values())


def _gain(
  scores: Mapping[str, Any], base: Mapping[str, Any], name: str
) -> sensitivity.Drift:
  """Compares the verdicts of one benchmark."""
  ours, theirs = (one["benchmarks"][name] for one in (scores, base))
  differing = sorted(
    key
    for key in ours["provenance"].keys() | theirs["provenance"].keys()
    if ours["provenance"].get(key) != theirs["provenance"].get(key)
  )
  if differing:
    raise ValueError(
      f"two scores of {name} can only be compared on the same data and rules, "
      f"they differ in {', '.join(differing)}{_asked(scores, base)}; run both "
      "on the same."
    )
  return sensitivity.gain(_cell(base, name), _cell(scores, name))


def _asked(scores: Mapping[str, Any], base: Mapping[str, Any]) -> str:
  """Says which fields chose other items."""
  ours, theirs = scores.get("asked", {}), base.get("asked", {})
  names = [name for name in ours if ours[name] != theirs.get(name)]
  said = [f"{name} {ours[name]} against {theirs.get(name)}" for name in names]
  return f" (config.benchmark: {', '.join(said)})" if said else ""


def _cell(scores: Mapping[str, Any], name: str) -> sensitivity.CellScores:
  asked = scores["protocol"]
  system = asked["system_hash"] if asked["system"] else "none"
  return sensitivity.CellScores(
    sensitivity.Cell(asked["template"], asked["thinking"], system),
    asked["hash"],
    {
      seed: part["verdicts"]
      for seed, part in scores["benchmarks"][name]["by_seed"].items()
    },
  )
