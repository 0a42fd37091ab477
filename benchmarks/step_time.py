"""Times one GRPO step of ours, and of a peer beside it in the same run.

    uv run python benchmarks/step_time.py --peer=tunix

The setting is that of the peers: a random Qwen2 in float32, one prompt, a
group of completions of one exact length, all of them updated, no KL term, one
AdamW update a batch. Our step takes the path of `train.main`: rollout through
JetStream's driver, advantages, update, weight sync. Rewards are drawn numbers,
as random weights write no text worth scoring.

The peer runs in an environment of its own, made under .peers/ on first use,
in a process that takes a step when it is told to. Ours and the peer's steps
alternate, on one core, so that a drift of the machine meets both. The last
line is a JSON object: medians over the steps after the first, which compiles.
`*_cpu_secs` are processor seconds; on a busy machine they say more than the
seconds of the clock, which count what other programs took.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from toolrl_jax import types
from toolrl_jax.model import decoder, presets
from toolrl_jax.rollout import collect, engine
from toolrl_jax.training import batches, groups, metrics, state, update

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_TUNIX_VERSION = "0.1.7"
# Of each peer: what is installed, and the script that takes its steps.
_PEERS = {"tunix": (f"google-tunix=={_TUNIX_VERSION}", "tunix_step.py")}
_LEARNING_RATE = 1e-6

Record = dict[str, float]


class PeerError(Exception):
  """The peer cannot be run; the text is one line for the user."""


def parse_args() -> argparse.Namespace:
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
    ("response_len", 64, "completion tokens, exactly (R)"),
    ("group_size", 8, "completions of the prompt (n)"),
    ("steps", 4, "timed steps, after one that compiles"),
    ("decode_chunk", 16, "tokens a decode call gives each row; ours only"),
    ("core", -1, "the one core that both run on; -1 is the last allowed"),
  ):
    parser.add_argument(f"--{name}", type=int, default=default, help=meaning)
  parser.add_argument(
    "--layout",
    choices=("shared", "repeated"),
    default="shared",
    help="prompt once a group, or once a completion; ours only",
  )
  parser.add_argument("--peer", choices=tuple(_PEERS), help="timed beside us")
  args = parser.parse_args()
  if sys.platform != "linux":
    parser.error("pinning to one core needs Linux")
  allowed = os.sched_getaffinity(0)
  args.core = max(allowed) if args.core < 0 else args.core
  if args.core not in allowed:
    parser.error(f"--core must be one of {sorted(allowed)}, got {args.core}")
  if min(args.steps, args.prompt_len, args.response_len, args.group_size) < 1:
    parser.error("steps, lengths and group_size must be at least 1")
  return args


def pin(core: int) -> None:
  """Moves this process to one core; XLA then makes a pool of one thread."""
  for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {core})


# ----- ours -----


@contextlib.contextmanager
def our_steps(args: argparse.Namespace) -> Iterator[Callable[[], Record]]:
  """Yields a function that takes one step of ours and returns its seconds."""
  config = presets.DecoderConfig(
    family="qwen2",
    vocab_size=args.vocab,
    width=args.width,
    num_layers=args.layers,
    num_heads=args.heads,
    num_kv_heads=args.kv_heads,
    head_dim=args.head_dim,
    ffn_width=args.ffn,
    has_qkv_bias=True,
  )
  updates = update.make_update_fns(
    config,
    state.make_optimizer(_LEARNING_RATE),
    options=update.UpdateOptions(
      layout=args.layout, remat="none", max_tokens=args.response_len
    ),
    strategy="pmap",
    devices=jax.devices()[:1],
  )
  policy = updates.init(decoder.init_params(config, jax.random.key(0)))
  rollout_engine = engine.RolloutEngine(
    config,
    updates.params_for_engine(policy),
    slots=args.group_size,
    group_size=args.group_size,
    decode_chunk=args.decode_chunk,
    layout=args.layout,
  )
  generator = np.random.default_rng(0)
  number = 0
  with collect.start(rollout_engine, "jetstream") as server:

    def take_step() -> Record:
      nonlocal policy, number
      number += 1
      prompts = types.PromptBatch(
        generator.integers(args.vocab, size=(1, args.prompt_len)).astype("i4"),
        np.array([args.prompt_len], np.int32),
        np.ones(1, bool),
      )
      policy, record = _step(args, server, updates, policy, prompts, number)
      return record

    yield take_step


def _step(
  args: argparse.Namespace,
  server: collect.RolloutServer,
  updates: update.UpdateFns,
  policy: state.TrainState,
  prompts: types.PromptBatch,
  number: int,
) -> tuple[state.TrainState, Record]:
  """Takes a step as `train.main` does; returns the policy and the seconds."""
  start, cpu_start = time.perf_counter(), time.process_time()
  rollouts = server.rollout(
    prompts,
    group_size=args.group_size,
    max_tokens=args.response_len,
    step=number,
    completion_buckets=(args.response_len,),
  )
  rollout_end = time.perf_counter()
  kept = groups.keep_and_weigh(
    # Different rewards in every group, so that no advantage is 0.
    np.arange(args.group_size, dtype=np.float32)[None] % 7,
    np.zeros((1, args.group_size), bool),
    prompts.is_real,
    jax.random.key(number),
    options=groups.GroupOptions(),
  )
  policy, row = update.run_updates(
    updates,
    policy,
    batches.assemble(prompts, rollouts, kept),
    key=jax.random.key(number),
  )
  server.sync(updates.params_for_engine(policy), version=number)
  jax.block_until_ready(policy)
  end = time.perf_counter()
  num_tokens = args.group_size * args.response_len
  if row["update/loss_tokens"] != num_tokens or not row["update/is_finite"]:
    raise ValueError(
      f"a step must train on {num_tokens} tokens with a finite loss, got {row}."
    )
  return policy, {
    "step_secs": end - start,
    "rollout_secs": rollout_end - start,
    "update_secs": end - rollout_end,
    "cpu_secs": time.process_time() - cpu_start,
  }


# ----- the peer -----


def install_peer(name: str) -> pathlib.Path:
  """Makes the peer's environment unless it is there; returns its Python.

  Args:
    name: A key of the table of peers.

  Raises:
    PeerError: The environment cannot be made.
  """
  requirement, _ = _PEERS[name]
  folder = _ROOT / ".peers" / name
  python = folder / "bin" / "python"
  # Written last: an installation that broke off is made anew.
  mark = folder / "installed.txt"
  wanted = f"{requirement} on Python {platform.python_version()}\n"
  if mark.is_file() and mark.read_text() == wanted:
    return python
  uv = shutil.which("uv")
  if uv is None:
    raise PeerError(f"--peer={name} needs uv; install it with `pip install uv`")
  shutil.rmtree(folder, ignore_errors=True)
  # Not this project's settings: its constraints contradict the peer's.
  for command in (
    [uv, "venv", "--no-config", "-p", sys.executable, str(folder)],
    [uv, "pip", "install", "--no-config", "-p", str(python), requirement],
  ):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
      reason = " ".join(done.stderr.split())[-400:]
      raise PeerError(f"{requirement} cannot be installed: {reason}")
  mark.write_text(wanted)
  return python


@contextlib.contextmanager
def peer_steps(
  args: argparse.Namespace,
) -> Iterator[Callable[[], Record]]:
  """Yields a function that has the peer take one step.

  Raises:
    PeerError: The peer cannot be installed, or its process ended.
  """
  python = install_peer(args.peer)
  script = pathlib.Path(__file__).parent / "peers" / _PEERS[args.peer][1]
  names = (
    "layers", "width", "ffn", "vocab", "heads", "kv_heads", "head_dim",
    "prompt_len", "response_len", "group_size", "core",
  )  # fmt: skip
  command = [str(python), str(script)]
  command += [f"--{name}={getattr(args, name)}" for name in names]
  log = python.parent.parent / "last_run.log"
  with (
    log.open("w") as errors,
    subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=errors,
      text=True,
      bufsize=1,
      env={**os.environ, "JAX_PLATFORMS": "cpu"},
    ) as process,
  ):

    def take_step() -> Record:
      with contextlib.suppress(BrokenPipeError):
        process.stdin.write("step\n")
      answer = process.stdout.readline()
      if not answer:
        raise PeerError(f"{args.peer} ended before its answer; see {log}")
      return json.loads(answer)

    try:
      yield take_step
    finally:
      # The end of its input ends it; a step that runs is not waited for.
      process.kill()


# ----- the figures -----


def summarise(records: list[Record], name: str) -> Record:
  """Returns medians over the steps after the first."""
  median = lambda key: round(statistics.median(r[key] for r in records[1:]), 4)
  return {
    f"{name}_secs": median("step_secs"),
    f"{name}_rollout_secs": median("rollout_secs"),
    f"{name}_update_secs": median("update_secs"),
    f"{name}_cpu_secs": median("cpu_secs"),
    f"{name}_first_secs": round(records[0]["step_secs"], 1),
  }


def ratios(ours: list[Record], peer: list[Record], name: str) -> dict:
  """Returns how many times as long the peer's step takes as ours."""
  seconds = lambda records, key: statistics.median(r[key] for r in records[1:])
  pairs = [p["step_secs"] / o["step_secs"] for o, p in zip(ours, peer)]
  return {
    f"ratio_vs_{name}": round(
      seconds(peer, "step_secs") / seconds(ours, "step_secs"), 2
    ),
    f"cpu_ratio_vs_{name}": round(
      seconds(peer, "cpu_secs") / seconds(ours, "cpu_secs"), 2
    ),
    "ratio_of_each_pair": [round(pair, 2) for pair in pairs[1:]],
  }


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
  if args.peer:
    found["peer"] = _PEERS[args.peer][0]
  return found


def run(args: argparse.Namespace) -> dict:
  """Takes all steps, ours and the peer's in turn; returns the figures."""
  ours: list[Record] = []
  peer: list[Record] = []
  compilations = metrics.CompilationCounter()
  peer_context = peer_steps(args) if args.peer else contextlib.nullcontext()
  # The peer first: it fails before anything of ours compiles.
  with peer_context as peer_step, our_steps(args) as our_step:
    for index in range(args.steps + 1):
      if peer_step is not None:
        peer.append(peer_step())
      ours.append(our_step())
      if index == 0:
        compilations.take()
  figures: dict = summarise(ours, "ours")
  if peer:
    figures |= summarise(peer, "peer") | ratios(ours, peer, args.peer)
  return {
    "P": args.prompt_len,
    "R": args.response_len,
    "n": args.group_size,
    "layout": args.layout,
    **figures,
    "compilations_after_first": compilations.take(),
    "versions": versions(args),
    "machine": machine(),
    "date": time.strftime("%Y-%m-%d"),
  }


def main() -> None:
  """Runs the setting and prints the JSON line."""
  args = parse_args()
  pin(args.core)
  jax.config.update("jax_platforms", "cpu")
  try:
    figures = run(args)
  except PeerError as error:
    sys.exit(f"step_time.py: {error}")
  print(json.dumps(figures))


if __name__ == "__main__":
  main()
