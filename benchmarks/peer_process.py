"""Peers beside us: their environments, and processes that step when told to.

A peer is a script in benchmarks/peers/. It runs in an environment of its own
under .peers/, made on first use, or in ours when it needs nothing else. It
reads a line of its standard input for each step to take, and answers with one
line of JSON. The module does not know what a step is.
"""

import contextlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_ROOT = pathlib.Path(__file__).resolve().parent.parent

Record = dict[str, float]


class Peer(NamedTuple):
  """Where a peer comes from.

  Attributes:
    requirements: What is installed for it; empty runs it in our environment.
    python: Python version of its environment.
    script: File in benchmarks/peers/ that takes its steps.
  """

  requirements: tuple[str, ...]
  python: str
  script: str


PEERS = {
  "tunix": Peer(
    ("google-tunix==0.1.7",), platform.python_version(), "tunix_step.py"
  ),
  "trl": Peer(
    ("torch==2.13.0", "trl==1.16.0", "transformers==5.24.0"),
    "3.11",
    "trl_step.py",
  ),
  "floor": Peer((), platform.python_version(), "floor_step.py"),
}


class PeerError(Exception):
  """The peer cannot be run; the text is one line for the user."""


class PeerProcess(NamedTuple):
  """A running peer.

  Attributes:
    name: Its name in PEERS.
    process: Its process.
    log: What it writes beside its answers.
  """

  name: str
  process: subprocess.Popen
  log: pathlib.Path

  def take_step(self) -> Record:
    """Has the peer take one step; returns its answer.

    Raises:
      PeerError: The process ended.
    """
    stdin, stdout = self.process.stdin, self.process.stdout
    with contextlib.suppress(BrokenPipeError):
      stdin.write("step\n")
    answer = stdout.readline()
    if not answer:
      raise PeerError(f"{self.name} ended before its answer; see {self.log}")
    return json.loads(answer)

  def peak_mib(self) -> int:
    """Returns the most memory that the process held at a time, in MiB."""
    return peak_mib(self.process.pid)


def pin(core: int) -> None:
  """Moves this process to one core; XLA then makes a pool of one thread."""
  for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {core})


def peak_mib(pid: int) -> int:
  """Returns the peak resident memory of a process, in MiB.

  Args:
    pid: Number of a living process.

  Raises:
    ValueError: The kernel does not tell.
  """
  status = pathlib.Path(f"/proc/{pid}/status").read_text()
  return parse_peak_mib(status)


def parse_peak_mib(status: str) -> int:
  """Reads the peak resident memory from the text of /proc/PID/status.

  Args:
    status: The text.

  Returns:
    MiB, rounded.

  Raises:
    ValueError: The text has no such line, as that of a process that ended.
  """
  for line in status.splitlines():
    if line.startswith("VmHWM:"):
      return round(int(line.split()[1]) / 1024)
  raise ValueError("a process status must have a VmHWM line, got none.")


def install(name: str) -> pathlib.Path:
  """Makes the peer's environment unless it is there; returns its Python.

  Args:
    name: A key of PEERS.

  Raises:
    PeerError: The environment cannot be made.
  """
  peer = PEERS[name]
  if not peer.requirements:
    return pathlib.Path(sys.executable)
  folder = _ROOT / ".peers" / name
  python = folder / "bin" / "python"
  # Written last: an installation that broke off is made anew.
  mark = folder / "installed.txt"
  what = " ".join(peer.requirements)
  wanted = f"{what} on Python {peer.python}\n"
  if mark.is_file() and mark.read_text() == wanted:
    return python
  uv = shutil.which("uv")
  if uv is None:
    raise PeerError(f"--peer={name} needs uv; install it with `pip install uv`")
  shutil.rmtree(folder, ignore_errors=True)
  # Not this project's settings: its constraints contradict the peers'. And
  # pip, not uv, so that a CPU build of torch is found where pip is told of one.
  for command in (
    [uv, "venv", "--no-config", "--seed", "-p", peer.python, str(folder)],
    [str(python), "-m", "pip", "install", "-q", *peer.requirements],
  ):
    done = subprocess.run(
      command, cwd=_ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
      reason = " ".join(done.stderr.split())[-400:]
      raise PeerError(f"{what} cannot be installed: {reason}")
  mark.write_text(wanted)
  return python


@contextlib.contextmanager
def start(
  name: str, flags: Mapping[str, int], *, script: str = ""
) -> Iterator[PeerProcess]:
  """Runs a peer until the end of the `with` block.

  Args:
    name: A key of PEERS.
    flags: Its setting, by the names of its command line.
    script: Another file in benchmarks/peers/ than the one of its steps.

  Yields:
    The running peer.

  Raises:
    PeerError: The peer cannot be installed.
  """
  python = install(name)
  path = (
    pathlib.Path(__file__).parent / "peers" / (script or PEERS[name].script)
  )
  command = [str(python), str(path)]
  command += [f"--{flag}={value}" for flag, value in flags.items()]
  logs = _ROOT / ".peers"
  logs.mkdir(exist_ok=True)
  log = logs / f"{name}.log"
  with (
    log.open("w") as errors,
    subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=errors,
      text=True,
      bufsize=1,
      env={
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        # One core gets one thread, whatever each library counts.
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
      },
    ) as process,
  ):
    try:
      yield PeerProcess(name, process, log)
    finally:
      # The end of its input ends it; a step that runs is not waited for.
      process.kill()
