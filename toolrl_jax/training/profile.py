"""A profiler trace of a few steps.

From "a:b" to a trace of steps a to b under `workdir/profile`, for TensorBoard's
profile view or Perfetto. It does not know what a step does.
"""

import pathlib

import jax


def parse_steps(text: str) -> tuple[int, int] | None:
  """Reads "a:b"; None for empty text.

  Args:
    text: First and last step to trace, both included.

  Returns:
    Both numbers.

  Raises:
    ValueError: The text is something else, or a is not in [1, b].
  """
  if not text:
    return None
  first, _, last = text.partition(":")
  is_pair = first.isdecimal() and last.isdecimal()
  if not is_pair or not 1 <= int(first) <= int(last):
    raise ValueError(
      f'profile_steps must be "a:b" with 1 <= a <= b, got {text!r}; set '
      "config.logging.profile_steps."
    )
  return int(first), int(last)


class StepProfiler:
  """Traces the steps it was asked for; also a context manager."""

  def __init__(self, steps: tuple[int, int] | None, folder: pathlib.Path):
    """Starts nothing yet.

    Args:
      steps: First and last step to trace; None traces none.
      folder: Where the trace is written.
    """
    self._steps = steps
    self._folder = folder
    self._is_tracing = False

  def begin(self, step: int) -> None:
    """Tells that a step begins."""
    if self._steps is None:
      return
    first, last = self._steps
    if self._is_tracing and step > last:
      self.close()
    elif not self._is_tracing and first <= step <= last:
      jax.profiler.start_trace(str(self._folder))
      self._is_tracing = True

  def close(self) -> None:
    """Ends a trace that is open."""
    if self._is_tracing:
      jax.profiler.stop_trace()
      self._is_tracing = False
      self._steps = None

  def __enter__(self) -> "StepProfiler":
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()
