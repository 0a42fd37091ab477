"""What a run achieved and what its model wrote, as tables.

From the records of `reporting.runs` and `reporting.samples`. It draws nothing.
"""

from collections.abc import Sequence

from toolrl_jax.notebook import tables
from toolrl_jax.reporting import runs
from toolrl_jax.reporting import samples as samples_lib
from toolrl_jax.reporting import settings as settings_lib
from toolrl_jax.reporting import warnings as warnings_lib


def heldout(run: runs.Run) -> tables.Table:
  """Lists the held-out scores at the first and the last evaluation.

  Args:
    run: A run of toolrl-train.

  Returns:
    A row a metric; none where the run has no held-out rows.
  """
  rows = []
  for name, curve in run.curves.items():
    if name.startswith("heldout/") and not name.endswith("secs"):
      first, last = float(curve.values[0]), float(curve.values[-1])
      label = name.removeprefix("heldout/").removesuffix("_frac")
      if not label.endswith(("greedy", "sampled")):
        label += "_sampled"
      rows.append((label.replace("_", " "), first, last, last - first))
  return tables.table(
    ("held-out rows", "before", "after", "change"),
    rows,
    f"{run.name}: {run.last_step} steps",
  )


def warnings(run: runs.Run) -> tables.Table:
  """Lists what asks for a look.

  Args:
    run: A run, also one that has not come to its first step.

  Returns:
    A row a sentence, the grave ones first; none is well.
  """
  rows = [
    (one.text, "grave" if one.is_grave else "")
    for one in warnings_lib.seen(run)
  ]
  return tables.table(("what asks for a look", ""), rows)


def samples(run: runs.Run, *, count: int = 8) -> tables.Table:
  """Lists rollouts spread over a run, with the parts of their reward.

  Args:
    run: A run of toolrl-train.
    count: Most rollouts listed, at least 1.

  Returns:
    A row a rollout, by rising step.
  """
  rows = []
  for one in samples_lib.table(run, count=count):
    sample, points = one.sample, one.points
    rows.append(
      (
        sample.step,
        sample.total,
        sample.success,
        sample.completion,
        sample.gold,
        sample.format,
        None if points is None else points.names,
        None
        if points is None
        else f"{points.parameters:.3g} of {points.max_parameters}",
        None if points is None else f"{points.values} of {points.max_values}",
        sample.is_kept,
      )
    )
  header = (
    "step", "reward", "right", "completion", "gold", "format", "names",
    "parameters", "values", "kept",
  )  # fmt: skip
  return tables.table(header, rows)


def settings(found: Sequence[runs.Run]) -> tables.Table:
  """Lists the fields in which runs differ from the defaults or each other.

  Args:
    found: Runs, at least one.

  Returns:
    A row a field, a column a run.
  """
  table = settings_lib.rows(found, default=settings_lib.defaults(), recipe=None)
  rows = [
    (row.name, repr(row.default), *map(repr, row.values))
    for row in settings_lib.differing(table)
  ]
  return tables.table(("field", "default", *(run.name for run in found)), rows)
