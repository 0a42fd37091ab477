"""Times one GRPO step of ours, and of peers beside it in the same run.

    uv run python benchmarks/step_time.py --peer=tunix,trl,floor

The setting is that of the peers: a random Qwen2 in float32, one prompt, a
group of completions of one exact length, all of them updated, no KL term, one
AdamW update a batch. Our step is the whole one of `train.train_grpo`, with
driver, texts, scoring, metrics and samples (see our_step.py).

A peer runs in an environment of its own, made under .peers/ on first use, in
a process that takes a step when it is told to. "floor" is the same step in
bare JAX, without driver and text, in our environment. Ours and the peers'
steps alternate, on one core, so that a drift of the machine meets all. The
last line is a JSON object: medians over the steps after the first, which
compiles. `*_cpu_secs` are processor seconds; on a busy machine they say more
than the seconds of the clock, which count what other programs took.

`--max_prompt_len` above `--prompt_len` asks what a short prompt costs in a run
whose longest prompt is that long: ours then first answers one prompt of that
length, takes its steps beside a second system of ours without the limit, and
`limit_ratio` is the one over the other; peers get the limit as theirs.
"""

import argparse
import contextlib
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import jax
import our_step
import peer_process

from toolrl_jax.training import metrics

Record = peer_process.Record
Steps = dict[str, list[Record]]

# What a peer is told of the setting.
_PEER_FLAGS = (
  "layers", "width", "ffn", "vocab", "heads", "kv_heads", "head_dim",
  "prompt_len", "max_prompt_len", "response_len", "group_size", "core",
)  # fmt: skip


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
  """Reads the setting from the command line."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  for name, default, meaning in (
    ("layers", 4, "decoder layers"),
    ("width", 256, "hidden size"),
    ("ffn", 768, "hidden size of the feed-forward block"),
    ("vocab", 8192, "vocabulary size"),
    ("heads", 4, "query heads"),
    ("kv_heads", 2, "key and value heads"),
    ("head_dim", 64, "size of one head"),
    ("prompt_len", 1024, "prompt tokens (P)"),
    ("max_prompt_len", 0, "longest prompt of the run; 0 is prompt_len"),
    ("response_len", 64, "completion tokens, exactly (R)"),
    ("group_size", 8, "completions of the prompt (n)"),
    ("steps", 4, "timed steps, after one that compiles"),
    ("decode_chunk", 16, "tokens a decode call gives each row; ours only"),
    ("core", -1, "the one core that all run on; -1 is the last allowed"),
  ):
    parser.add_argument(f"--{name}", type=int, default=default, help=meaning)
  parser.add_argument(
    "--layout",
    choices=("shared", "repeated"),
    default="shared",
    help="prompt once a group, or once a completion; ours only",
  )
  parser.add_argument(
    "--peer",
    type=lambda text: tuple(name for name in text.split(",") if name),
    default=(),
    help=f"timed beside us: some of {','.join(peer_process.PEERS)}",
  )
  args = parser.parse_args(argv)
  args.max_prompt_len = args.max_prompt_len or args.prompt_len
  _check_args(parser, args)
  return args


def _check_args(
  parser: argparse.ArgumentParser, args: argparse.Namespace
) -> None:
  if sys.platform != "linux":
    parser.error("pinning to one core needs Linux")
  allowed = os.sched_getaffinity(0)
  args.core = max(allowed) if args.core < 0 else args.core
  if args.core not in allowed:
    parser.error(f"--core must be one of {sorted(allowed)}, got {args.core}")
  if min(args.steps, args.prompt_len, args.response_len, args.group_size) < 1:
    parser.error("steps, lengths and group_size must be at least 1")
  if args.max_prompt_len < args.prompt_len:
    parser.error(
      f"max_prompt_len must be at least prompt_len, got {args.max_prompt_len} "
      f"for {args.prompt_len}"
    )
  for name in args.peer:
    if name not in peer_process.PEERS:
      parser.error(
        f"--peer must name some of {','.join(peer_process.PEERS)}, got {name!r}"
      )


def run(args: argparse.Namespace) -> dict:
  """Takes all steps, ours and the peers' in turn; returns the figures."""
  compilations = metrics.CompilationCounter()
  has_limit = args.max_prompt_len > args.prompt_len
  with contextlib.ExitStack() as stack:
    # The peers first: they fail before anything of ours compiles.
    flags = {name: getattr(args, name) for name in _PEER_FLAGS}
    peers = {
      name: stack.enter_context(peer_process.start(name, flags))
      for name in args.peer
    }
    start = lambda limit: stack.enter_context(our_step.start(args, limit))
    takers: dict[str, Callable[[], Record]] = {
      name: peer.take_step for name, peer in peers.items()
    }
    ours = start(args.max_prompt_len)
    takers["ours"] = functools.partial(ours, args.prompt_len)
    if has_limit:
      ours(args.max_prompt_len)
      takers["short"] = functools.partial(
        start(args.prompt_len), args.prompt_len
      )
    steps, num_compiled = take_steps(takers, args.steps, compilations)
    peaks = {
      f"{name}_peak_mib": peer.peak_mib() for name, peer in peers.items()
    }
  if not has_limit:
    # Two systems in one process say nothing of one.
    peaks["ours_peak_mib"] = peer_process.peak_mib(os.getpid())
  return {
    "P": args.prompt_len,
    "max_P": args.max_prompt_len,
    "R": args.response_len,
    "n": args.group_size,
    "layout": args.layout,
    **figures(steps),
    **peaks,
    "compilations_after_first": num_compiled,
    "versions": versions(args),
    "machine": machine(),
    "date": time.strftime("%Y-%m-%d"),
  }


def take_steps(
  takers: Mapping[str, Callable[[], Record]],
  num_steps: int,
  compilations: metrics.CompilationCounter,
) -> tuple[Steps, int]:
  """Has all take a first step and `num_steps` more, in turn.

  Args:
    takers: Takes one step, by name.
    num_steps: Steps after the first.
    compilations: Counts programs of ours.

  Returns:
    Records by name, and the programs that ours compiled after the first step.
  """
  steps: Steps = {name: [] for name in takers}
  for index in range(num_steps + 1):
    # Back and forth: a drift inside a round favours nobody.
    names = list(takers) if index % 2 == 0 else list(takers)[::-1]
    for name in names:
      steps[name].append(takers[name]())
    if index == 0:
      compilations.take()
  return steps, compilations.take()


# ----- the figures -----


def figures(steps: Steps) -> dict:
  """Returns seconds of all, and the ratios of the peers to ours.

  Args:
    steps: Records by name; "ours", peers, and "short" for ours without limit.
  """
  found: dict = {}
  for name in sorted(steps, key=lambda name: name != "ours"):
    found |= summarise(steps[name], name)
    if name not in ("ours", "short"):
      found |= ratios(steps["ours"], steps[name], name)
  if "short" in steps:
    # Ours has answered a long prompt by then, so its first step is no start.
    found = {key: x for key, x in found.items() if "_first_" not in key}
    found["limit_ratio"] = _ratio(steps["ours"], steps["short"], "step_secs")
    found["limit_cpu_ratio"] = _ratio(steps["ours"], steps["short"], "cpu_secs")
  return found


def summarise(records: list[Record], name: str) -> Record:
  """Returns medians over the steps after the first, and the first itself."""
  timed = sorted({key for record in records for key in record})
  medians = {
    f"{name}_{key.removeprefix('step_')}": round(_median(records, key), 4)
    for key in timed
  }
  return {
    **medians,
    f"{name}_first_secs": round(records[0]["step_secs"], 1),
  }


def ratios(ours: list[Record], peer: list[Record], name: str) -> dict:
  """Returns how many times as long the peer's step takes as ours.

  Of the floor it is the other way round: how many times as long ours takes.
  """
  if name == "floor":
    over, under, label = ours, peer, "ours_over_floor"
  else:
    over, under, label = peer, ours, f"ratio_vs_{name}"
  pairs = [o["step_secs"] / u["step_secs"] for o, u in zip(over, under)]
  first = ours[0]["step_secs"] / peer[0]["step_secs"]
  return {
    label: _ratio(over, under, "step_secs"),
    f"{label}_cpu": _ratio(over, under, "cpu_secs"),
    f"{label}_of_each_pair": [round(pair, 2) for pair in pairs[1:]],
    f"ours_first_over_{name}": round(first, 2),
  }


def _ratio(over: list[Record], under: list[Record], key: str) -> float:
  return round(_median(over, key) / _median(under, key), 3)


def _median(records: list[Record], key: str) -> float:
  return statistics.median(record[key] for record in records[1:])


def machine() -> str:
  """Names the processor and how many cores this process could use."""
  model = platform.machine()
  for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
    if line.startswith("model name"):
      model = line.split(":", 1)[1].strip()
      break
  return f"{model}, {os.cpu_count()} cores"


def versions(args: argparse.Namespace) -> dict[str, str]:
  """Returns the versions that the figures depend on."""
  names = ("toolrl-jax", "jax", "jaxlib", "google-jetstream")
  found = {name: importlib.metadata.version(name) for name in names}
  found["python"] = platform.python_version()
  for name in args.peer:
    found[name] = " ".join(peer_process.PEERS[name].requirements) or "bare JAX"
  return found


def main() -> None:
  """Runs the setting and prints the JSON line."""
  args = parse_args()
  peer_process.pin(args.core)
  jax.config.update("jax_platforms", "cpu")
  try:
    found = run(args)
  except peer_process.PeerError as error:
    sys.exit(f"step_time.py: {error}")
  print(json.dumps(found))


if __name__ == "__main__":
  main()
