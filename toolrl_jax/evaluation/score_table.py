"""Score files to numbers over seeds, and to text for reading.

From ended conversations and tables of metrics to what a score file holds, and
from a score file to lines. Knows neither models nor benchmarks.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax.evaluation import respond


def usage(ended: Sequence[respond.Ended]) -> dict[str, int | float]:
  """Adds up what conversations took.

  Returns:
    `items`, `failed` (ended by an error), `force_ended` (by a limit of the
    benchmark), every count of `respond.Ended`, and `secs` of the rollouts.
  """
  counts: dict[str, int | float] = {
    "items": len(ended),
    "failed": sum(bool(end.error) for end in ended),
    "force_ended": sum(bool(end.outcome.get("stopped")) for end in ended),
  }
  for name in respond.Ended._fields:
    if name.startswith("num_"):
      counts[name.removeprefix("num_")] = sum(getattr(e, name) for e in ended)
  return counts | {"secs": round(sum(end.secs for end in ended), 1)}


def summary(
  tables: Sequence[Mapping[str, float]],
) -> dict[str, dict[str, float]]:
  """Returns mean and sample standard deviation of each metric over seeds."""
  return {
    name: {
      "mean": statistics.fmean(values),
      "std": statistics.stdev(values) if len(values) > 1 else 0.0,
    }
    for name in tables[0]
    if (values := [table[name] for table in tables if name in table])
  }


def describe(scores: Mapping[str, Any]) -> str:
  """Renders a score file for reading, the headline of a benchmark first."""
  asked = scores["protocol"]
  lines = [
    f"{scores['model']}, weights {scores['weights']}, {scores['date']}",
    f"protocol {asked['hash']}: "
    + ", ".join(
      f"{name} {value}"
      for name, value in asked.items()
      if name not in ("hash", "system", "system_hash")
    )
    + f", system {asked['system_hash'] if asked['system'] else 'none'}",
    f"seeds {', '.join(map(str, scores['seeds']))}; "
    + ", ".join(f"{name} {v}" for name, v in scores["versions"].items()),
  ]
  for name, one in scores["benchmarks"].items():
    lines += ["", name, *_describe_benchmark(one)]
  return "\n".join(lines)


def _describe_benchmark(one: Mapping[str, Any]) -> list[str]:
  first = next(iter(one["by_seed"].values()))
  num_seeds = len(one["by_seed"])
  names = sorted(one["summary"], key=lambda name: name != one["headline"])
  width = max(map(len, names))
  spread = (
    f", mean ± standard deviation over {num_seeds} seeds"
    if num_seeds > 1
    else ""
  )
  lines = [f"  percent of the items{spread}"]
  for name in names:
    value = one["summary"][name]
    count = first["counts"].get(name)
    # The one metric that is a number of searches, not a share.
    scale = 1 if name.endswith("mean_calls") else 100
    lines.append(
      f"  {name:{width}}  {scale * value['mean']:6.2f}"
      + (f" ± {scale * value['std']:.2f}" if num_seeds > 1 else "")
      + (f"  ({count} items)" if count else "")
    )
  totals = {
    name: sum(part["usage"].get(name, 0) for part in one["by_seed"].values())
    for name in first["usage"]
  }
  spent = ", ".join(f"{value:.10g} {name}" for name, value in totals.items())
  lines.append(f"  all seeds: {spent}")
  lines += [f"  {name}: {value}" for name, value in one["provenance"].items()]
  return lines + [f"  note: {note}" for note in one["notes"]]
