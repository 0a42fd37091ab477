"""The tiny model under GRPO: several seeds, and the control.

    uv run python benchmarks/tiny_grpo.py --seeds=1,2,3 --out=/tmp/tiny_grpo

Runs `toolrl-train --config=configs/tiny.py` once a seed on fresh training and
held-out rows, and once more with rewards shuffled inside each group, each with
an empty compilation cache. Prints a Markdown table, then one JSON line.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

_COLUMNS = (
  ("sampled", "heldout/exact_sampled_frac"),
  ("greedy", "heldout/exact_greedy_frac"),
  ("refusals sampled", "heldout/refusal_frac"),
  ("refusals greedy", "heldout/refusal_greedy_frac"),
)


def main() -> None:
  """Runs all seeds and the control, one after the other."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--seeds", default="1,2,3")
  parser.add_argument("--out", default="", help="folder of the runs")
  parser.add_argument("--override", action="append", default=[])
  arguments = parser.parse_args()
  out = pathlib.Path(arguments.out or tempfile.mkdtemp())
  seeds = [int(seed) for seed in arguments.seeds.split(",")]
  runs = [(f"seed {seed}", seed, []) for seed in seeds]
  runs.append(
    (
      f"control, seed {seeds[0]}",
      seeds[0],
      ["--config.selection.shuffle_rewards=True"],
    )
  )
  results = []
  for name, seed, extra in runs:
    workdir = out / name.replace(", ", "-").replace(" ", "")
    results.append(_run(name, seed, workdir, [*extra, *arguments.override]))
    print(json.dumps(results[-1]), file=sys.stderr, flush=True)
  print(_table(results))
  print(json.dumps({"runs": results, "median_secs": _median_secs(results)}))


def _run(
  name: str, seed: int, workdir: pathlib.Path, extra: list[str]
) -> dict[str, object]:
  """Runs one seed from a cold start and reads what it achieved."""
  root = pathlib.Path(__file__).resolve().parent.parent
  environment = {
    key: value
    for key, value in os.environ.items()
    if key != "JAX_COMPILATION_CACHE_DIR"
  }
  started = time.monotonic()
  subprocess.run(
    [
      sys.executable,
      "-m",
      "toolrl_jax.train",
      f"--config={root / 'configs' / 'tiny.py'}",
      f"--workdir={workdir}",
      f"--config.seed={seed}",
      *extra,
    ],
    check=True,
    env=environment,
    cwd=root,
  )
  summary = json.loads((workdir / "summary.json").read_text())
  scores = summary["heldout"]
  return {
    "run": name,
    "secs": round(time.monotonic() - started),
    "steps": summary["steps"],
    **{
      label: [scores[metric]["before"], scores[metric]["after"]]
      for label, metric in _COLUMNS
    },
  }


def _table(results: list[dict]) -> str:
  labels = [label for label, _ in _COLUMNS]
  lines = [
    "| run | " + " | ".join(labels) + " | steps | minutes |",
    "| --- " * (len(labels) + 3) + "|",
  ]
  for row in results:
    cells = [
      "{:.1f} to {:.1f} ({:+.1f})".format(
        *(100 * score for score in row[label]),
        100 * (row[label][1] - row[label][0]),
      )
      for label in labels
    ]
    lines.append(
      f"| {row['run']} | {' | '.join(cells)} | {row['steps']} "
      f"| {row['secs'] / 60:.1f} |"
    )
  return "\n".join(lines)


def _median_secs(results: list[dict]) -> float:
  return statistics.median(row["secs"] for row in results)


if __name__ == "__main__":
  main()
