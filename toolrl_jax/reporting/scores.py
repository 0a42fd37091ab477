"""Score files of toolrl-evaluate to rows of a table, runs side by side.

From scores.json to means and deviations over seeds. A file of another form
gives fewer rows. It scores nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolrl_jax.reporting import runs


class Score(NamedTuple):
  """A metric of a benchmark in one run.

  Attributes:
    mean: Mean over seeds, a share unless the metric's name says otherwise.
    std: Sample standard deviation over seeds; 0 with one seed.
    num_items: Items it is over, None where the file does not say.
  """

  mean: float
  std: float
  num_items: int | None


class Row(NamedTuple):
  """A metric of a benchmark in all runs.

  Attributes:
    benchmark: Name of the benchmark.
    metric: Name of the metric.
    is_headline: Whether it is the benchmark's own first number.
    scores: Score in each run, None where a run does not have it.
  """

  benchmark: str
  metric: str
  is_headline: bool
  scores: tuple[Score | None, ...]


def rows(found: Sequence[runs.Run]) -> list[Row]:
  """Lays the scores of runs side by side.

  Args:
    found: Runs; those without scores have None everywhere.

  Returns:
    Rows by benchmark, the headline of each first.
  """
  tables = [_scores(run.scores) for run in found]
  names = {name: None for table in tables for name in table}
  headlines = {
    (name, str(one.get("headline")))
    for run in found
    for name, one in _mapping(run.scores.get("benchmarks")).items()
    if isinstance(one, Mapping)
  }
  table = [
    Row(*name, name in headlines, tuple(one.get(name) for one in tables))
    for name in names
  ]
  # Benchmarks stay in the order of the files; sorting is stable.
  order = list(dict.fromkeys(row.benchmark for row in table))
  return sorted(
    table, key=lambda row: (order.index(row.benchmark), not row.is_headline)
  )


def _scores(scores: Mapping[str, Any]) -> dict[tuple[str, str], Score]:
  """Returns benchmark and metric to score; leaves out what is no number."""
  found = {}
  for name, one in _mapping(scores.get("benchmarks")).items():
    one = _mapping(one)
    seeds = list(_mapping(one.get("by_seed")).values())
    counts = _mapping(_mapping(seeds[0] if seeds else None).get("counts"))
    for metric, value in _mapping(one.get("summary")).items():
      mean = _number(_mapping(value).get("mean"))
      if mean is None:
        continue
      count = counts.get(metric)
      found[name, metric] = Score(
        mean,
        _number(_mapping(value).get("std")) or 0.0,
        count if type(count) is int else None,
      )
  return found


def _mapping(value: Any) -> Mapping[str, Any]:
  return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
  """Returns a finite number, None for anything else."""
  if type(value) is int and abs(value) < 2**53:
    return float(value)
  return value if type(value) is float and math.isfinite(value) else None
