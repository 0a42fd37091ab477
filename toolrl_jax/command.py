"""One way in for the commands that run long: logging, signals, their end.

A user's mistake ends with one line and status 2, a run that cannot go on with
one line and status 1, a run that was told to stop and may go on later with
status 75, an interrupt with status 130. Knows nothing of what the commands do.
"""

import contextlib
import io
import json
import logging as python_logging
import pathlib
import signal
import sys
import time
from collections.abc import Callable

import tqdm
from absl import flags, logging

from toolrl_jax import configuration
from toolrl_jax.rollout import collect

# The status of a command that SIGINT ended, as shells have it.
INTERRUPTED = 130


class StoppedRunError(RuntimeError):
  """The run cannot go on; the text is one line for the user."""


class ToldToStopError(RuntimeError):
  """A signal ended the run, and nothing is lost; the text is one line.

  Attributes:
    STATUS: What the command exits with: EX_TEMPFAIL, "try again later".
    status: The same, or INTERRUPTED where that was the signal.
  """

  STATUS = 75

  def __init__(self, text: str, status: int = STATUS):
    super().__init__(text)
    self.status = status


def run(name: str, work: Callable[[], object]) -> None:
  """Runs the work of a command and exits with its status.

  Args:
    name: The command, for its messages.
    work: What it does; the same command again goes on where it stopped.
  """
  prepare_logging()
  try:
    work()
  except configuration.UsageError as error:
    sys.exit(_fail(name, 2, error))
  except ToldToStopError as error:
    sys.exit(_fail(name, error.status, error))
  except (StoppedRunError, collect.RolloutError) as error:
    logging.debug("stopped", exc_info=True)
    sys.exit(_fail(name, 1, error))
  except OSError as error:
    # A full disk, a folder that went away.
    logging.debug("stopped", exc_info=True)
    sys.exit(_fail(name, 1, f"{error}; then the same command resumes the run"))
  except KeyboardInterrupt:
    said = "interrupted; the same command goes on from what is on disk"
    sys.exit(_fail(name, INTERRUPTED, said))


class StopSignal:
  """SIGTERM or SIGINT: ends the command at once, or after the running step.

  At once until there is something to save. A second SIGINT does not wait.

  Attributes:
    is_set: Whether one came while steps ran.
    status: What the command then exits with.
  """

  # One Ctrl-C may reach a process twice: from the terminal and from uv.
  _ONE_PRESS_SECS = 1.0

  def __init__(self):
    self.is_set = False
    self.status = ToldToStopError.STATUS
    self._is_deferred = False
    self._interrupted_at = 0.0

  def defer(self) -> None:
    """From now on there is something to save first."""
    self._is_deferred = True

  def __enter__(self) -> "StopSignal":
    self._previous = {
      number: signal.signal(number, handle)
      for number, handle in (
        (signal.SIGTERM, self._terminate),
        (signal.SIGINT, self._interrupt),
      )
      # A shell's background job is not to hear of Ctrl-C.
      if signal.getsignal(number) != signal.SIG_IGN
    }
    return self

  def __exit__(self, *exception: object) -> None:
    for number, previous in self._previous.items():
      signal.signal(number, previous)

  def _terminate(self, number, frame):
    if not self._is_deferred:
      raise ToldToStopError(
        "SIGTERM before the first step: there was nothing to save; the same "
        "command starts again"
      )
    if not self.is_set:
      logging.info("SIGTERM: the run ends after this step, with a checkpoint")
    self.is_set = True

  def _interrupt(self, number, frame):
    if not self._is_deferred:
      raise KeyboardInterrupt
    now = time.monotonic()
    if not self._interrupted_at:
      self._interrupted_at = now
      self.is_set, self.status = True, INTERRUPTED
      logging.info(
        "interrupted: the run ends after this step, with a checkpoint; once "
        "more ends it now"
      )
    elif now - self._interrupted_at > self._ONE_PRESS_SECS:
      raise KeyboardInterrupt


class WarningFile(python_logging.Handler):
  """Keeps a run's warnings, and what ended it, beside its other files.

  Also a context manager: `{"time": ..., "text": ...}` a line, appended.
  """

  def __init__(self, path: pathlib.Path):
    super().__init__(python_logging.WARNING)
    self.addFilter(_is_ours_or_warning)
    self._path = path

  def emit(self, record: python_logging.LogRecord) -> None:
    """Appends one warning; the run goes on where the disk is full."""
    line = {
      "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
      "text": " ".join(record.getMessage().split()),
    }
    with (
      contextlib.suppress(OSError),
      self._path.open("a", encoding="utf-8") as file,
    ):
      file.write(json.dumps(line) + "\n")

  def __enter__(self) -> "WarningFile":
    logging.get_absl_logger().addHandler(self)
    return self

  def __exit__(self, kind: object, error: object, trace: object) -> None:
    logging.get_absl_logger().removeHandler(self)
    if isinstance(error, StoppedRunError | collect.RolloutError | OSError):
      self.emit(python_logging.makeLogRecord({"msg": str(error)}))


def prepare_logging() -> None:
  """Shows the run's own messages, one line each, on standard error."""
  # The run reads its flags itself; absl would say that it logs too early.
  flags.FLAGS.mark_as_parsed()
  logging.use_absl_handler()
  logging.set_verbosity(logging.INFO)
  handler = logging.get_absl_handler()
  handler.setFormatter(
    python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
  )
  handler.addFilter(_is_ours_or_warning)
  if sys.stderr.isatty():
    handler.python_handler.setStream(_BesideBars())


class _BesideBars(io.TextIOBase):
  """Standard error, where lines stand above the bars that are open."""

  def write(self, text: str) -> int:
    tqdm.tqdm.write(text, file=sys.stderr, end="")
    return len(text)

  def flush(self) -> None:
    sys.stderr.flush()


def _is_ours_or_warning(record: python_logging.LogRecord) -> bool:
  """Leaves out what JAX looks for at its start, and Orbax at every save."""
  if "orbax" in record.pathname:
    # What it reports with a traceback is raised as well, and ends the run; its
    # warnings are of options, and of steps without held-out scores.
    record.exc_info = None
    record.msg, record.args = record.getMessage().partition("\n")[0], ()
    return record.levelno >= python_logging.ERROR
  is_loud = record.name.startswith("jax")
  return record.levelno >= python_logging.WARNING or not is_loud


def _fail(name: str, status: int, what: object) -> int:
  sys.stderr.write(f"{name}: {what}\n")
  return status
