"""BFCL's worker as its parent sees it: requests, limits, restarts.

From requests to replies of a process in the environment of bfcl-eval. The
process gets no variable of ours, a folder of its own and its own session; it
is ended when a request takes too long, meets the memory limit or kills it,
and started anew for the next one. What a conversation had done is then done
again in the new process, so only the conversation at fault is lost.
"""

import contextlib
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from toolrl_jax import types
from toolrl_jax.evaluation import bfcl_environment

Reason = Literal["time", "memory", "crash", "request"]

_SCRIPT = pathlib.Path(__file__).with_name("bfcl_worker.py")
_START_SECS = 60.0


class Limits(NamedTuple):
  """What one conversation may use of the worker.

  Attributes:
    request_secs: Wall-clock of one step's calls, or of one verdict.
    conversation_secs: Wall-clock of all steps of a conversation together; the
      model's own time does not count.
    memory_gib: Address space of the worker, GiB.
  """

  request_secs: float = 20.0
  conversation_secs: float = 60.0
  memory_gib: float = 2.0


class Stopped(Exception):
  """A request met a limit or broke the worker.

  Attributes:
    reason: "time", "memory", "crash", or "request" for one that cannot be
      written as JSON.
  """

  def __init__(self, reason: Reason):
    """Remembers the reason.

    Args:
      reason: See the class.
    """
    super().__init__(f"the BFCL worker was stopped: {reason}")
    self.reason: Reason = reason


class Scorer:
  """A worker process that is started when needed and restarted when lost.

  Attributes:
    environment: Where it runs.
    limits: What it allows.
  """

  def __init__(
    self, environment: bfcl_environment.Environment, *, limits: Limits
  ):
    """Prepares, but does not start.

    Args:
      environment: Where it runs.
      limits: What one conversation may use.
    """
    self.environment = environment
    self.limits = limits
    # Number of processes started; what an earlier one held is gone.
    self._generation = 0
    self._process: subprocess.Popen | None = None
    self._end: weakref.finalize | None = None
    self._pending = b""
    self._lock = threading.Lock()

  def start(self) -> int:
    """Starts the process where there is none.

    Returns:
      The number of the process, at least 1.
    """
    with self._lock:
      self._started()
      return self._generation

  def is_alive(self, generation: int) -> bool:
    """Whether the process of this number still runs."""
    process = self._process
    return (
      process is not None
      and process.poll() is None
      and generation == self._generation
    )

  def ask(
    self,
    request: Mapping[str, Any],
    *,
    secs: float | None = None,
    generation: int | None = None,
  ) -> dict[str, Any]:
    """Sends one request and waits for its reply.

    Args:
      request: `do` and its arguments; see `bfcl_worker`.
      secs: Wall-clock limit; None takes `limits.request_secs`.
      generation: Process that has to answer; None takes any.

    Returns:
      The reply.

    Raises:
      Stopped: There is no reply; the process is gone.
      RuntimeError: The worker refused the request: a fault of ours.
    """
    try:
      line = json.dumps(request).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
      raise Stopped("request") from error
    with self._lock:
      process = self._started()
      if generation is not None and generation != self._generation:
        raise Stopped("crash")
      reply = self._exchange(
        process, line, self.limits.request_secs if secs is None else secs
      )
    failed = reply.get("failed")
    if failed == "memory":
      self.close()
      raise Stopped("memory")
    if failed == "request":
      raise Stopped("request")
    if failed:
      raise RuntimeError(
        f"the BFCL worker must answer {request.get('do')!r}, got {failed};"
        " this is a fault of the evaluation, report it."
      )
    return reply

  def close(self) -> None:
    """Ends the process; the next request starts another."""
    if self._end is not None:
      self._end()
    self._process, self._end, self._pending = None, None, b""

  def _started(self) -> subprocess.Popen:
    if self._process is not None and self._process.poll() is None:
      return self._process
    self.close()
    # Not under the folder of results: the package makes folders in it.
    folder = tempfile.mkdtemp(prefix="bfcl-")
    limits = self.limits
    self._process = subprocess.Popen(
      [
        str(self.environment.python),
        # Neither the user's packages nor the script's folder are importable.
        *("-s", "-P", str(_SCRIPT)),
        str(limits.memory_gib),
        str(int(max(limits.request_secs, _START_SECS)) + 1),
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      cwd=folder,
      env={
        "BFCL_PROJECT_ROOT": folder,
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        # Some back-ends list sets; their order is part of prompts.
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
      },
      start_new_session=True,
    )
    self._end = weakref.finalize(self, _end_process, self._process, folder)
    self._generation += 1
    try:
      self._read_line(self._process, time.monotonic() + _START_SECS)
    except OSError as error:  # a TimeoutError is one
      self.close()
      raise RuntimeError(
        f"the BFCL worker must start within {_START_SECS:.0f} s and"
        f" {limits.memory_gib} GiB, but did not; raise memory_gib or delete the"
        f" environment of {self.environment.python}."
      ) from error
    return self._process

  def _exchange(
    self, process: subprocess.Popen, line: bytes, secs: float
  ) -> dict[str, Any]:
    """Writes a line and reads one, or ends the process."""
    assert process.stdin is not None  # for the type checker: both are pipes
    try:
      process.stdin.write(line)
      process.stdin.flush()
      return json.loads(self._read_line(process, time.monotonic() + secs))
    except TimeoutError as error:
      self.close()
      raise Stopped("time") from error
    except (OSError, ValueError) as error:
      self.close()
      raise Stopped("crash") from error

  def _read_line(self, process: subprocess.Popen, deadline: float) -> bytes:
    assert process.stdout is not None
    parts = [self._pending]
    with selectors.DefaultSelector() as selector:
      selector.register(process.stdout, selectors.EVENT_READ)
      while b"\n" not in parts[-1]:
        if not selector.select(max(0.0, deadline - time.monotonic())):
          raise TimeoutError
        chunk = os.read(process.stdout.fileno(), 1 << 20)
        if not chunk:
          raise BrokenPipeError
        parts.append(chunk)
    line, _, self._pending = b"".join(parts).partition(b"\n")
    return line


def _end_process(process: subprocess.Popen, folder: str) -> None:
  """Kills a worker with all it started, and removes its folder."""
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process.pid, signal.SIGKILL)
  for pipe in (process.stdin, process.stdout):
    with contextlib.suppress(OSError):
      if pipe is not None:
        pipe.close()
  process.wait()
  shutil.rmtree(folder, ignore_errors=True)


class Episode:
  """The back-ends of one conversation, wherever the worker lives now."""

  def __init__(
    self,
    scorer: Scorer,
    *,
    name: str,
    entry: Mapping[str, Any],
    is_long_context: bool,
  ):
    """Prepares, but makes no back-end yet.

    Args:
      scorer: The worker.
      name: Unique among open conversations.
      entry: Entry of the benchmark, with its classes and initial state.
      is_long_context: Whether the back-ends fill up with long contents.
    """
    self._scorer = scorer
    self._name = name
    self._opening = {
      "do": "open",
      "episode": name,
      "classes": entry["involved_classes"],
      "config": entry.get("initial_config", {}),
      "is_long_context": is_long_context,
    }
    self._done: list[list[dict[str, Any]]] = []
    self._generation = 0
    self._secs = 0.0

  def perform(self, calls: Sequence[types.ToolCall]) -> list[str]:
    """Runs the calls of one step.

    Args:
      calls: Calls in order.

    Returns:
      The text of each result.

    Raises:
      Stopped: A limit was met; the conversation is over.
    """
    step = [
      {"name": call.name, "arguments": dict(call.arguments)} for call in calls
    ]
    try:
      texts = self._perform(step)
    except Stopped as stop:
      if stop.reason not in ("memory", "crash"):
        raise
      # Another conversation may have filled the process: once more, alone.
      texts = self._perform(step)
    self._done.append(step)
    return texts

  def _perform(self, step: list[dict[str, Any]]) -> list[str]:
    start = time.monotonic()
    try:
      generation = self._scorer.start()
      if self._generation != generation:
        self._generation = generation
        self._ask(self._opening)
        for earlier in self._done:
          self._ask(self._request(earlier))
      return self._ask(self._request(step))["texts"]
    finally:
      self._secs += time.monotonic() - start

  def _request(self, step: list[dict[str, Any]]) -> dict[str, Any]:
    return {"do": "perform", "episode": self._name, "calls": step}

  def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
    limits = self._scorer.limits
    left = limits.conversation_secs - self._secs
    if left <= 0:
      raise Stopped("time")
    return self._scorer.ask(
      request,
      secs=min(limits.request_secs, left),
      generation=self._generation,
    )

  def snapshot(self) -> dict[str, dict[str, str]]:
    """Returns the public state of each back-end, as text."""
    return self._ask({"do": "snapshot", "episode": self._name})["state"]

  def close(self) -> None:
    """Frees the back-ends."""
    if self._scorer.is_alive(self._generation):
      # Stopped: they are gone all the same.
      with contextlib.suppress(Stopped):
        self._ask({"do": "close", "episode": self._name})
