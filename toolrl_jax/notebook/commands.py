"""The commands of the package, run from a notebook with live progress.

A command runs in a process of its own: an accelerator belongs to one process,
and its memory is free again when the command ends. So the notebook itself
computes on the CPU. The stop button of the notebook ends a command like
SIGTERM does: with a checkpoint, and the same cell goes on.
"""

import io
import json
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from absl import logging

_STEP = re.compile(r"\S+ step \d+/\d+ ")
_DEVICES = """
import json, jax
one = jax.devices()[0]
stats = one.memory_stats() or {}
print(json.dumps([one.platform, one.device_kind, jax.device_count(),
                  stats.get("bytes_limit", 0) / 2**30]))
"""


class CommandError(RuntimeError):
  """A command failed; notebooks show its text without a traceback."""

  def _render_traceback_(self) -> list[str]:
    return [str(self)]


class Devices(NamedTuple):
  """What the commands compute on.

  Attributes:
    platform: "tpu", "gpu" or "cpu".
    kind: Name of the chip.
    num_chips: How many there are.
    memory_gib: Memory of one, in GiB; 0 where it is not known.
  """

  platform: str
  kind: str
  num_chips: int
  memory_gib: float


def prepare() -> None:
  """Leaves accelerators to the commands, and quietens what imports log."""
  jax.config.update("jax_platforms", "cpu")
  logging.set_verbosity(logging.WARNING)


def devices() -> Devices:
  """Asks a process of its own what it would compute on.

  Raises:
    CommandError: JAX does not start there.
  """
  done = subprocess.run(
    [sys.executable, "-c", _DEVICES],
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    raise CommandError(f"JAX does not start: {_last_line(done.stderr)}")
  return Devices(*json.loads(done.stdout.splitlines()[-1]))


def train(
  recipe: str | pathlib.Path,
  workdir: str | pathlib.Path,
  settings: Mapping[str, Any] | None = None,
) -> None:
  """Runs toolrl-train; a run that was stopped goes on.

  Args:
    recipe: File of the recipe.
    workdir: Folder of the run.
    settings: Fields of the configuration that change, as "section.field".

  Raises:
    CommandError: It failed.
    KeyboardInterrupt: It was interrupted, and has saved its step.
  """
  run("toolrl_jax.train", arguments(recipe, workdir, settings))


def arguments(
  recipe: str | pathlib.Path,
  workdir: str | pathlib.Path,
  settings: Mapping[str, Any] | None = None,
) -> list[str]:
  """Returns the arguments of a command.

  Args:
    recipe: File of the recipe.
    workdir: Folder of the run.
    settings: Fields of the configuration that change.

  Returns:
    As on the command line.
  """
  return [
    f"--config={recipe}",
    f"--workdir={workdir}",
    *(f"--config.{name}={value}" for name, value in (settings or {}).items()),
  ]


def run(module: str, command_arguments: Sequence[str]) -> None:
  """Runs a command to its end and shows what it says as it says it.

  Args:
    module: Module of the command, as "toolrl_jax.train".
    command_arguments: Its arguments.

  Raises:
    CommandError: It ended with another status than 0.
    KeyboardInterrupt: It was interrupted, and ended in its own way.
  """
  process = subprocess.Popen(
    [sys.executable, "-m", module, *command_arguments],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    # An interrupt of the notebook must not reach it as one: it saves first.
    start_new_session=True,
  )
  assert process.stdout is not None
  # Carriage returns stay as they are: bars write them.
  stdout = io.TextIOWrapper(process.stdout, errors="replace", newline="")
  screen, is_interrupted = _Screen(), False
  try:
    while True:
      try:
        last = screen.follow(stdout)
        process.wait()
        break
      except KeyboardInterrupt:
        is_interrupted = True
        process.send_signal(signal.SIGTERM)
  finally:
    screen.close()
    if process.poll() is None:
      process.kill()
  if is_interrupted:
    raise KeyboardInterrupt
  if process.returncode:
    raise CommandError(f"{last} (status {process.returncode})")


class _Screen:
  """Shows lines; those that tell progress overwrite one another."""

  def __init__(self):
    self._width = 0  # Of the line that is still open.
    self._last = ""

  def follow(self, stdout: Iterable[str]) -> str:
    """Shows an output until its end; returns the last line."""
    for line in stdout:
      self._show(line.rstrip("\r\n"), is_whole=line.endswith("\n"))
    return self._last

  def _show(self, line: str, *, is_whole: bool) -> None:
    self._last = line or self._last
    if _STEP.match(line) or not is_whole:
      sys.stdout.write("\r" + line.ljust(self._width))
      self._width = max(len(line), self._width)
    else:
      self.close()
      sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

  def close(self) -> None:
    """Ends an open line."""
    if self._width:
      sys.stdout.write("\n")
    self._width = 0


def _last_line(text: str) -> str:
  lines = [line for line in text.splitlines() if line.strip()]
  return lines[-1] if lines else "it says nothing"
