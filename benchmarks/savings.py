"""The papers' savings at equal group size, on the tiny task.

    uv run python benchmarks/savings.py --out=/tmp/savings --seeds=1,2,3

Trains `configs/tiny.py` from the same rows, order and schedule in variants
that differ in what is computed: the baseline (prompts repeated, no filter, all
rollouts updated), each saving alone, all together, and other rules for what is
left out. Each run is `toolrl-train` in a process of its own on one core, with
an empty compilation cache (but see below), evaluated every few steps. Runs that have ended are
lines of results.jsonl and are not run again. With `--table` nothing is run.

Seconds are `step/cpu_secs` of metrics.jsonl, added up: processor seconds of a
run on one core, so that other programs on the machine count as little as they
can. A step's clock stops before its held-out evaluation, files and checkpoints,
so none of them counts. Steps that compiled count as the median of the run's
other steps in the "warm" seconds, and as they were in the others. With
`--cache` runs share a compilation cache: sooner done, but only their warm
seconds mean anything.

Held-out rates are means of the newest three evaluations. Two targets a seed:
the highest rate that all its variants reach, and 95 % of the baseline's best.
The time to a target is where the straight line between two evaluations meets
it. Table cells are medians over seeds; ratios are the baseline's time over the
variant's, taken a seed at a time.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import shutil
import statistics
import subprocess
import sys
import threading
import time

import savings_table

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_REPEATED = ("loss.layout=repeated", "rollout.layout=repeated")
_SHARED = ("loss.layout=shared", "rollout.layout=shared")
_ALL, _KEPT = ("selection.keep=0",), ("selection.keep=4",)
_OFF, _FILTER = ("sampler.streak=0",), ("sampler.streak=1",)

# Variant to what it changes; everything else is equal.
VARIANTS = {
  "baseline": (*_REPEATED, *_ALL, *_OFF),
  "filter": (*_REPEATED, *_ALL, *_FILTER),
  "downsampling": (*_REPEATED, *_KEPT, *_OFF),
  "filter+downsampling": (*_REPEATED, *_KEPT, *_FILTER),
  "shared": (*_SHARED, *_ALL, *_OFF),
  "everything": (*_SHARED, *_KEPT, *_FILTER),
  "everything, permanent": (
    *_SHARED, *_KEPT, *_FILTER, "sampler.reentry=permanent",
  ),
  "everything, probe": (
    *_SHARED, *_KEPT, *_FILTER,
    "sampler.reentry=probe", "sampler.probe_every_epochs=3",
  ),
  # Its weights are meant for advantages over the whole group.
  "everything, stratified": (
    *_SHARED, *_KEPT, *_FILTER,
    "selection.rule=stratified", "advantage.statistics=all",
  ),
}  # fmt: skip
_MAIN = tuple(VARIANTS)[:6]

_COMMON = (
  "rollout.group_size=8",
  "mesh.cpu_devices=1",
  "checkpoint.every_steps=0",
  "checkpoint.export=False",
  "logging.tensorboard=False",
)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--out", type=pathlib.Path, required=True)
  parser.add_argument("--seeds", default="1,2,3")
  parser.add_argument(
    "--variants", default=";".join(VARIANTS), help="names with ; between"
  )
  parser.add_argument("--rows", type=int, default=96, help="training rows")
  parser.add_argument("--heldout_rows", type=int, default=192)
  parser.add_argument("--epochs", type=int, default=6)
  parser.add_argument("--eval_every", type=int, default=5, help="steps")
  parser.add_argument(
    "--cores",
    default=str(max(os.sched_getaffinity(0))),
    help="a run at a time on each; more than one disturb one another",
  )
  parser.add_argument("--cache", help="folder of a shared compilation cache")
  parser.add_argument(
    "--override", action="append", default=[], help="field=value of all runs"
  )
  parser.add_argument(
    "--table", action="store_true", help="print what the file holds"
  )
  args = parser.parse_args(argv)
  args.seeds = [int(seed) for seed in args.seeds.split(",")]
  args.variants = [name.strip() for name in args.variants.split(";")]
  args.cores = [int(core) for core in args.cores.split(",")]
  for name in args.variants:
    if name not in VARIANTS:
      parser.error(
        f"--variants must name some of {'; '.join(VARIANTS)}, got {name!r}"
      )
  return args


def overrides(args: argparse.Namespace, variant: str, seed: int) -> list[str]:
  """Returns every field of a run that differs from the recipe."""
  return [
    f"seed={seed}",
    f"data.train_path=synthetic:{args.rows}",
    f"data.eval_path=synthetic:{args.heldout_rows}",
    f"sampler.num_epochs={args.epochs}",
    f"eval.every_steps={args.eval_every}",
    *_COMMON,
    *VARIANTS[variant],
    *args.override,
  ]


def missing(args: argparse.Namespace, ended: list[dict]) -> list[tuple]:
  """Returns (variant, seed) of the runs that are still to do.

  The main variants come first, seed by seed, then the other rules.
  """
  known = {(run["variant"], run["seed"], *run["overrides"]) for run in ended}
  main, rest = (
    [name for name in args.variants if (name in _MAIN) == is_main]
    for is_main in (True, False)
  )
  return [
    (variant, seed)
    for names in (main, rest)
    for seed in args.seeds
    for variant in names
    if (variant, seed, *overrides(args, variant, seed)) not in known
  ]


def train(args: argparse.Namespace, variant: str, seed: int, core: int) -> dict:
  """Trains one variant; returns what savings_table reads.

  Raises:
    RuntimeError: The run failed.
  """
  name = variant.replace(", ", "-").replace("+", "-")
  workdir = args.out / f"{name}-seed{seed}"
  # A run that broke off is made anew: its clock would count a second start.
  shutil.rmtree(workdir, ignore_errors=True)
  fields = overrides(args, variant, seed)
  command = [
    "taskset", "-c", str(core), sys.executable, "-m", "toolrl_jax.train",
    f"--config={_ROOT / 'configs' / 'tiny.py'}", f"--workdir={workdir}",
    *(f"--config.{field}" for field in fields),
  ]  # fmt: skip
  environment = {
    key: value
    for key, value in os.environ.items()
    if key != "JAX_COMPILATION_CACHE_DIR"
  }
  start = time.monotonic()
  done = subprocess.run(
    command,
    cwd=_ROOT,
    env={**environment, "JAX_PLATFORMS": "cpu", **_cache(args)},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
  rows = savings_table.read_jsonl(workdir / "metrics.jsonl")
  return {
    "variant": variant,
    "seed": seed,
    "overrides": fields,
    "wall_secs": round(time.monotonic() - start),
    "date": time.strftime("%Y-%m-%d"),
    **savings_table.digest(rows),
  }


def _cache(args: argparse.Namespace) -> dict[str, str]:
  """Returns the environment of a shared compilation cache, if any."""
  if not args.cache:
    return {}
  return {"JAX_COMPILATION_CACHE_DIR": str(pathlib.Path(args.cache).resolve())}


def train_missing(args: argparse.Namespace, results: pathlib.Path) -> None:
  """Trains what is missing, a run at a time on each core."""
  cores: queue.SimpleQueue[int] = queue.SimpleQueue()
  for core in args.cores:
    cores.put(core)

  is_failed = threading.Event()

  def train_on_free_core(variant, seed):
    core = cores.get()
    try:
      # The first failure ends the rest that has not begun.
      return None if is_failed.is_set() else train(args, variant, seed, core)
    except RuntimeError:
      is_failed.set()
      raise
    finally:
      cores.put(core)

  with concurrent.futures.ThreadPoolExecutor(len(args.cores)) as pool:
    running = [
      pool.submit(train_on_free_core, variant, seed)
      for variant, seed in missing(args, savings_table.read_jsonl(results))
    ]
    for future in concurrent.futures.as_completed(running):
      run = future.result()
      if run is None:
        continue
      with results.open("a") as file:
        file.write(json.dumps(run) + "\n")
      print(
        f"{run['variant']}, seed {run['seed']}: {run['num_steps']} steps, "
        f"{run['secs']:.0f} s, {run['wall_secs']} s with evaluation",
        file=sys.stderr,
        flush=True,
      )


def main() -> None:
  """Trains what is missing and prints the tables."""
  args = parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  results = args.out / "results.jsonl"
  if not args.table:
    train_missing(args, results)
  # Those of this command alone: times of other settings do not compare.
  wanted = {
    (variant, seed, *overrides(args, variant, seed))
    for variant in args.variants
    for seed in args.seeds
  }
  runs = [
    run
    for run in savings_table.read_jsonl(results)
    if (run["variant"], run["seed"], *run["overrides"]) in wanted
  ]
  if not runs:
    sys.exit(f"savings.py: {results} holds no runs of these settings")
  summary = savings_table.summarise(runs)
  text = savings_table.table(summary)
  (args.out / "table.md").write_text(text + "\n")
  print(text)
  ratios = {
    variant: figures["ratio_best_warm"] for variant, figures in summary.items()
  }
  print(
    json.dumps(
      {
        "ratio_to_95_percent_of_baseline": ratios,
        "seeds": sorted({run["seed"] for run in runs}),
        "median_wall_secs": statistics.median(run["wall_secs"] for run in runs),
      }
    )
  )


if __name__ == "__main__":
  main()
