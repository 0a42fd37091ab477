"""Tells of finished prompts while others still decode.

From groups to calls of a function on a thread of its own: text work on the
host overlaps with decoding, and never holds it up. It does not know what the
function does.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Sequence

from toolrl_jax.rollout.request import Group, RolloutError


@contextlib.contextmanager
def reporting(
  by_prompt: Sequence[Sequence[Group]],
  report: Callable[[int], None] | None,
) -> Iterator[None]:
  """Calls `report(prompt)` once for each prompt finished in the `with` block.

  Prompts without groups and prompts with a failed request are left out. The
  block ends when all calls have returned.

  Args:
    by_prompt: Groups of each prompt.
    report: Called on one thread, in the order in which prompts finish; None
      does nothing.

  Raises:
    RolloutError: A call raised.
  """
  if report is None:
    yield
    return
  calls: list[concurrent.futures.Future] = []
  worker = concurrent.futures.ThreadPoolExecutor(1, "finished-groups")

  def on_end(prompt: int) -> Callable[[], None]:
    groups = by_prompt[prompt]

    def note() -> None:
      requests = [request for group in groups for request in group.requests]
      # The last group to end reports, and only a whole prompt.
      if all(request.finish is not None for request in requests):
        calls.append(worker.submit(report, prompt))

    return note

  for prompt, groups in enumerate(by_prompt):
    for group in groups:
      group.on_end = on_end(prompt)
  try:
    yield
    _raise_first(calls)
  finally:
    # After an interrupt requests may still end.
    for groups in by_prompt:
      for group in groups:
        group.on_end = None
    worker.shutdown(wait=True, cancel_futures=True)


def _raise_first(calls: Sequence[concurrent.futures.Future]) -> None:
  """Waits for all calls and raises for the first that failed."""
  concurrent.futures.wait(calls)
  for call in calls:
    error = call.exception()
    if error is not None:
      message = " ".join(str(error).split()) or type(error).__name__
      raise RolloutError(
        f"on_group failed for a finished prompt: {message}"
      ) from error
