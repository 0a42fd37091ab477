# /// script
# requires-python = ">=3.11"
# dependencies = ["matplotlib>=3.9,<4"]
# ///
"""Draws the savings: held-out rate against seconds, and the filter's shares.

    uv run --script benchmarks/plot_savings.py /tmp/savings/results.jsonl \
      docs/img/savings.svg

Reads what `benchmarks/savings.py` wrote. On the left the held-out rate of the
main variants against seconds of training, a thin line a seed, thick where a
seed's time to 95 % of the baseline's best is the median. On the right, of the
filtered run and the baseline, the share of groups whose rewards are all equal
and the share of solved prompts that are solved again, by epoch.
"""

import argparse
import pathlib
import statistics

import matplotlib
import savings_table

matplotlib.use("svg")
# The same file for the same numbers.
matplotlib.rcParams["svg.hashsalt"] = "savings"
from matplotlib import pyplot  # noqa: E402

_SHOWN = (
  "baseline", "filter", "downsampling", "filter+downsampling", "shared",
  "everything",
)  # fmt: skip
_SIZE_INCHES = (11, 4.5)


def median_seed(runs: list[dict], variant: str) -> int:
  """Returns the seed whose time to the baseline's 95 % is the median."""
  by_secs = []
  for seed in sorted({run["seed"] for run in runs}):
    of_seed = [run for run in runs if run["seed"] == seed]
    rates = savings_table.targets(of_seed)
    for run in of_seed:
      if run["variant"] == variant:
        secs = savings_table.times(run, rates)["best_warm"]
        by_secs.append((float("inf") if secs is None else secs, seed))
  return sorted(by_secs)[(len(by_secs) - 1) // 2][1]


def draw_curves(axes, runs: list[dict]) -> None:
  """Draws held-out rate against seconds."""
  for number, variant in enumerate(_SHOWN):
    own = [run for run in runs if run["variant"] == variant]
    if not own:
      continue
    middle = median_seed(runs, variant)
    for run in own:
      is_middle = run["seed"] == middle
      rates = savings_table.smoothed(
        [point["exact_sampled_frac"] for point in run["curve"]]
      )
      axes.plot(
        [point["warm_secs"] for point in run["curve"]],
        [100 * rate for rate in rates],
        color=f"C{number}",
        linewidth=2 if is_middle else 0.6,
        alpha=1 if is_middle else 0.5,
        label=variant if is_middle else None,
      )
  axes.set_xlabel("seconds of training on one core, without compilation")
  axes.set_ylabel("held-out calls exact, sampled, %")
  axes.grid(alpha=0.3)
  axes.legend()


def draw_shares(axes, runs: list[dict]) -> None:
  """Draws the statistics of the filter by epoch, means over seeds."""
  for number, (variant, name, label) in enumerate(
    (
      ("baseline", "zero_variance_frac", "equal rewards, baseline"),
      ("everything", "zero_variance_frac", "equal rewards, filtered"),
      ("baseline", "stay_1_frac", "still solved after 1, baseline"),
      ("baseline", "stay_2_frac", "still solved after 2, baseline"),
    )
  ):
    own = [run for run in runs if run["variant"] == variant]
    by_epoch: dict[int, list[float]] = {}
    for run in own:
      for entry in run["epochs"]:
        if entry[name] is not None:
          by_epoch.setdefault(entry["epoch"] + 1, []).append(entry[name])
    axes.plot(
      list(by_epoch),
      [100 * statistics.mean(shares) for shares in by_epoch.values()],
      marker="o",
      color=f"C{number}",
      label=label,
    )
  axes.set_xlabel("epoch")
  axes.set_ylabel("share, %")
  axes.set_ylim(0, 100)
  axes.grid(alpha=0.3)
  axes.legend()


def main() -> None:
  """Reads the results and writes the picture."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("results", type=pathlib.Path)
  parser.add_argument("picture", type=pathlib.Path)
  args = parser.parse_args()
  runs = savings_table.read_jsonl(args.results)
  figure, (curves, shares) = pyplot.subplots(1, 2, figsize=_SIZE_INCHES)
  draw_curves(curves, runs)
  draw_shares(shares, runs)
  figure.tight_layout()
  args.picture.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(args.picture, metadata={"Date": None})


if __name__ == "__main__":
  main()
