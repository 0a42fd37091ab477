"""From metrics.jsonl of the savings runs to times, ratios and a table.

What a run leaves is digested into a few numbers and its curve; digests of all
runs into medians over seeds. The module trains nothing.
"""

import json
import pathlib
import statistics
from collections.abc import Sequence

# Evaluations whose mean is one point of the curve.
_SMOOTHED = 3
_BEST_FRACTION = 0.95
_EXACT = ("heldout/exact_sampled_frac", "heldout/exact_greedy_frac")
# The rate that the targets speak of: what training optimises.
_RATE = "exact_sampled_frac"
_TARGETS = ("common", "best")


def read_jsonl(path: pathlib.Path) -> list[dict]:
  """Returns the lines of a file; none when there is no file."""
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text().splitlines() if line]


def digest(rows: Sequence[dict]) -> dict:
  """Returns the totals and the curve of one run.

  Args:
    rows: Lines of metrics.jsonl in order; step 0 is before training.

  Returns:
    `curve`: a point an evaluation, with `step`, `secs` and `warm_secs` of
    training until then and the held-out rates. Totals of seconds and tokens;
    `epochs`: means of the filter's shares an epoch.
  """
  steps = [row for row in rows if row["step"] > 0]
  is_warm = lambda row: not row["step/compilations"]
  usual = statistics.median(
    row["step/cpu_secs"] for row in filter(is_warm, steps)
  )  # Of the steps that compiled nothing.
  total, warm, curve = 0.0, 0.0, []
  for row in rows:
    if row["step"] > 0:
      total += row["step/cpu_secs"]
      warm += row["step/cpu_secs"] if is_warm(row) else usual
    if _EXACT[0] in row:
      point = {"step": row["step"], "secs": total, "warm_secs": warm}
      curve.append(
        point | {name.removeprefix("heldout/"): row[name] for name in _EXACT}
      )
  add = lambda name: sum(row[name] for row in steps)
  return {
    "num_steps": len(steps),
    "secs": total,
    "warm_secs": warm,
    "rollout_secs": add("rollout/cpu_secs"),
    "update_secs": add("update/cpu_secs"),
    "reward_secs": add("reward/cpu_secs"),
    "num_rollouts": sum(
      round(row["rollout/tokens"] / row["rollout/length_tokens"])
      for row in steps
    ),
    "generated_tokens": add("rollout/tokens"),
    "updated_tokens": add("update/tokens"),
    "loss_tokens": add("update/loss_tokens"),
    "compilations": add("step/compilations"),
    "epochs": _epochs(steps),
    "curve": curve,
  }


def _epochs(steps: Sequence[dict]) -> list[dict]:
  """Returns means of the filter's shares, an epoch an entry."""
  by_epoch: dict[float, list[dict]] = {}
  for row in steps:
    by_epoch.setdefault(row["sampler/epoch"], []).append(row)
  found = []
  for epoch, rows in sorted(by_epoch.items()):
    entry = {"epoch": int(epoch), "num_steps": len(rows)}
    for name in ("zero_variance_frac", "all_right_frac", "all_wrong_frac"):
      entry[name] = statistics.mean(row[f"filter/{name}"] for row in rows)
    entry["skipped_prompts"] = rows[-1].get("filter/skipped_prompts", 0)
    # Shares since the start of the run, where there was anything to count.
    for name in ("stay_1_frac", "stay_2_frac"):
      entry[name] = rows[-1].get(f"filter/{name}")
    found.append(entry)
  return found


# ----- times to a rate -----


def smoothed(rates: Sequence[float]) -> list[float]:
  """Returns the mean of the newest three rates at each place."""
  return [
    statistics.mean(rates[max(0, i + 1 - _SMOOTHED) : i + 1])
    for i in range(len(rates))
  ]


def secs_to_rate(
  secs: Sequence[float], rates: Sequence[float], target: float
) -> float | None:
  """Returns when a curve first meets a rate.

  Args:
    secs: Seconds of each point, rising.
    rates: Rate of each point.
    target: The rate.

  Returns:
    Seconds, on the straight line between two points; None when the curve
    stays below.
  """
  for i, rate in enumerate(rates):
    if rate < target:
      continue
    if i == 0:
      return secs[0]
    share = (target - rates[i - 1]) / (rate - rates[i - 1])
    return secs[i - 1] + share * (secs[i] - secs[i - 1])
  return None


def targets(runs: Sequence[dict]) -> dict[str, float]:
  """Returns the two target rates of one seed.

  Args:
    runs: Digests of its variants, "baseline" among them.

  Returns:
    `common`: the highest rate that all reach; `best`: 95 % of the highest of
    the baseline.

  Raises:
    ValueError: There is no baseline.
  """
  peaks = {run["variant"]: max(_rates(run)) for run in runs}
  if "baseline" not in peaks:
    raise ValueError(
      f"a seed must have a run of the baseline, got {sorted(peaks)}; add "
      "baseline to --variants."
    )
  return {
    "common": min(peaks.values()),
    "best": _BEST_FRACTION * peaks["baseline"],
  }


def _rates(run: dict) -> list[float]:
  return smoothed([point[_RATE] for point in run["curve"]])


def times(run: dict, rates: dict[str, float]) -> dict[str, float | None]:
  """Returns the seconds of one run to each target, warm and in all."""
  found = {}
  for name, target in rates.items():
    for suffix, clock in (("", "secs"), ("_warm", "warm_secs")):
      secs = [point[clock] for point in run["curve"]]
      found[f"{name}{suffix}"] = secs_to_rate(secs, _rates(run), target)
  return found


# ----- all runs -----


def summarise(runs: Sequence[dict]) -> dict[str, dict]:
  """Returns medians over seeds, by variant.

  Args:
    runs: Digests with `variant` and `seed`.

  Returns:
    Of each variant, in the order of the runs: medians of its totals, of its
    held-out rates at the end, of its seconds to each target and of the ratios
    to the baseline of the same seed. None stands where a seed never got there.
  """
  columns: dict[str, dict[str, list]] = {}
  for seed in sorted({run["seed"] for run in runs}):
    by_name = {run["variant"]: run for run in runs if run["seed"] == seed}
    if "baseline" not in by_name:
      continue  # Not run yet: there is nothing to compare with.
    rates = targets(list(by_name.values()))
    base = times(by_name["baseline"], rates)
    for variant, run in by_name.items():
      found = times(run, rates)
      row = {
        **{key: run[key] for key in run if _is_total(run[key])},
        **{f"secs_{name}": value for name, value in found.items()},
        **{
          f"ratio_{name}": _over(base[name], value)
          for name, value in found.items()
        },
        **{f"target_{name}": value for name, value in rates.items()},
        "end_sampled": _rates(run)[-1],
        "end_greedy": run["curve"][-1]["exact_greedy_frac"],
        "left_out_frac": 1
        - run["num_rollouts"] / by_name["baseline"]["num_rollouts"],
        "num_seeds": 1,
      }
      for key, value in row.items():
        columns.setdefault(variant, {}).setdefault(key, []).append(value)
  return {
    variant: {key: _median(values) for key, values in found.items()}
    | {"num_seeds": len(found["num_seeds"])}
    for variant, found in columns.items()
  }


def _is_total(value) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _over(base: float | None, value: float | None) -> float | None:
  # At 0 seconds both stand at the start, and there is nothing to compare.
  return None if not base or not value else base / value


def _median(values: Sequence[float | None]) -> float | None:
  return None if None in values else statistics.median(values)


def table(summary: dict[str, dict]) -> str:
  """Returns a Markdown table, a variant a row."""
  columns = (
    ("variant", None),
    ("steps", "num_steps"),
    ("rollouts left out, %", "left_out_frac"),
    ("rollout, s", "rollout_secs"),
    ("update, s", "update_secs"),
    ("generated, k tokens", "generated_tokens"),
    ("updated, k tokens", "updated_tokens"),
    ("held-out sampled, %", "end_sampled"),
    ("greedy, %", "end_greedy"),
    ("s to 95 % of the baseline's best", "secs_best_warm"),
    ("baseline / this", "ratio_best_warm"),
    ("with compilation", "ratio_best"),
    ("s to the common rate", "secs_common_warm"),
    ("baseline / this", "ratio_common_warm"),
    ("seeds", "num_seeds"),
  )
  lines = [
    "| " + " | ".join(title for title, _ in columns) + " |",
    "| --- " * len(columns) + "|",
  ]
  for variant, figures in summary.items():
    cells = [_cell(name, figures[name]) for _, name in columns[1:]]
    lines.append("| " + " | ".join([variant, *cells]) + " |")
  return "\n".join(lines)


def _cell(name: str, value: float | None) -> str:
  """Returns a figure as it stands in the table."""
  if value is None:
    return "not reached"
  if name.endswith("_tokens"):
    return f"{value / 1000:.0f}"
  if name.startswith("end_") or name.endswith("_frac"):
    return f"{100 * value:.1f}"
  if name.startswith("ratio_"):
    return f"{value:.2f}"
  return f"{value:.0f}"
