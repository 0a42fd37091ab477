"""Step time over prompt lengths and group sizes, beside the peers.

    uv run python benchmarks/grid.py --out=/tmp/grid.jsonl

Runs `benchmarks/step_time.py` once for each prompt length and group size, and
once for a short prompt under a long limit, each in a process of its own. A
setting that has ended is a line of JSON in the file, and is not run again, so
a run that was stopped goes on where it was. At the end, or with `--table` at
once, the ratios of all settings in the file are printed as a Markdown table.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import time

_HERE = pathlib.Path(__file__).resolve().parent
_KEY = ("P", "max_P", "n", "R", "peers")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  whole = lambda text: [int(part) for part in text.split(",") if part]
  parser.add_argument("--out", type=pathlib.Path, required=True)
  parser.add_argument("--prompt_lens", type=whole, default=[512, 1024, 2048])
  parser.add_argument("--group_sizes", type=whole, default=[4, 8, 16])
  parser.add_argument("--response_len", type=int, default=64)
  parser.add_argument("--steps", type=int, default=3)
  parser.add_argument("--peer", default="tunix,trl,floor")
  parser.add_argument(
    "--limit",
    type=whole,
    default=[512, 2048, 8],
    help="prompt length, limit and group size of the run under a limit; "
    "empty leaves it out",
  )
  parser.add_argument(
    "--table", action="store_true", help="print what the file holds"
  )
  parser.add_argument(
    "flags", nargs="*", help="further flags of step_time.py, after --"
  )
  args = parser.parse_args(argv)
  if len(args.limit) not in (0, 3):
    parser.error("--limit takes prompt length, limit, group size")
  return args


def settings(args: argparse.Namespace) -> list[dict]:
  """Returns the settings to run, the quick ones first."""
  cells = [
    (prompt_len, prompt_len, group_size)
    for prompt_len, group_size in itertools.product(
      sorted(args.prompt_lens), sorted(args.group_sizes)
    )
  ]
  if args.limit:
    cells.append(tuple(args.limit))
  return [
    dict(zip(_KEY, (*cell, args.response_len, args.peer))) for cell in cells
  ]


def missing(wanted: list[dict], rows: list[dict]) -> list[dict]:
  """Returns the settings that no row is of."""
  key = lambda row: tuple(row[name] for name in _KEY)
  ended = {key(row) for row in rows}
  return [setting for setting in wanted if key(setting) not in ended]


def run(setting: dict, args: argparse.Namespace) -> dict:
  """Runs one setting; returns the figures.

  Raises:
    RuntimeError: It failed.
  """
  command = [
    sys.executable, str(_HERE / "step_time.py"),
    f"--prompt_len={setting['P']}", f"--max_prompt_len={setting['max_P']}",
    f"--group_size={setting['n']}", f"--response_len={setting['R']}",
    f"--steps={args.steps}", f"--peer={setting['peers']}", *args.flags,
  ]  # fmt: skip
  start = time.monotonic()
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
  figures = json.loads(done.stdout.splitlines()[-1])
  return {**figures, **setting, "secs": round(time.monotonic() - start)}


def read(path: pathlib.Path) -> list[dict]:
  """Returns the rows of the file; none when there is no file."""
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text().splitlines()]


def table(rows: list[dict]) -> str:
  """Returns the ratios as a Markdown table, a setting a row.

  Args:
    rows: Figures of step_time.py with the names of the peers.

  Returns:
    The table; a dash where a figure was not measured.
  """
  columns = (
    ("P", "P"),
    ("limit", "max_P"),
    ("n", "n"),
    ("tunix / ours", "ratio_vs_tunix"),
    ("its pairs", "ratio_vs_tunix_of_each_pair"),
    ("TRL / ours", "ratio_vs_trl"),
    ("its pairs", "ratio_vs_trl_of_each_pair"),
    ("ours / floor", "ours_over_floor"),
    ("in CPU s", "ours_over_floor_cpu"),
    ("ours / tunix, first step", "ours_first_over_tunix"),
    ("ours limit / no limit", "limit_ratio"),
    ("ours, s", "ours_secs"),
    ("ours, MiB", "ours_peak_mib"),
    ("tunix, MiB", "tunix_peak_mib"),
    ("compiled later", "compilations_after_first"),
  )
  lines = [
    "| " + " | ".join(title for title, _ in columns) + " |",
    "| --- " * len(columns) + "|",
  ]
  for row in sorted(rows, key=lambda row: (row["P"], row["max_P"], row["n"])):
    cells = [_cell(row.get(name)) for _, name in columns]
    lines.append("| " + " | ".join(cells) + " |")
  return "\n".join(lines)


def _cell(value) -> str:
  """Returns a figure as it stands in a table."""
  if value is None:
    return "-"
  if isinstance(value, list):
    return f"{min(value):.1f} to {max(value):.1f}"
  return f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> None:
  """Runs what is missing and prints the table."""
  args = parse_args()
  args.out.parent.mkdir(parents=True, exist_ok=True)
  to_run = [] if args.table else missing(settings(args), read(args.out))
  num_failed = 0
  for number, setting in enumerate(to_run):
    print(f"{number + 1}/{len(to_run)} {setting}", file=sys.stderr, flush=True)
    try:
      figures = run(setting, args)
    except RuntimeError as error:
      # A peer may lack memory at one setting; the others still count.
      print(error, file=sys.stderr, flush=True)
      num_failed += 1
      continue
    with args.out.open("a") as file:
      file.write(json.dumps(figures) + "\n")
  rows = read(args.out)
  print(table(rows))
  print(json.dumps({"settings": len(rows), "failed": num_failed}))
  if num_failed:
    sys.exit(1)


if __name__ == "__main__":
  main()
