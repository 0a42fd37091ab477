"""Runs the engine in a plain loop on the caller's thread.

From groups to filled-in requests, by the same policy as the driver: groups in
order, at most as many in flight as the engine has banks, free rows refilled
before every chunk. The reference in tests, and a server without threads.
"""

import collections
from collections.abc import Sequence

from toolrl_jax.rollout import token_forms
from toolrl_jax.rollout.engine import RolloutEngine
from toolrl_jax.rollout.request import Group, Request, RolloutError


class InlineLoop:
  """Continuous batching without threads; keeps the decode state."""

  def __init__(self, engine: RolloutEngine):
    self.engine = engine
    self._state = engine.init_decode_state()

  def run(self, groups: Sequence[Group]) -> None:
    """Runs groups until each of their requests finished or failed.

    After a failure groups that have not started are failed as well.

    Args:
      groups: Groups in the order in which they start.
    """
    self.engine.ledger.open(groups)
    try:
      self._run(collections.deque(groups))
    except BaseException:
      # Interrupted: nothing of it may stay behind on the rows.
      self.stop()
      raise

  def _run(self, pending: collections.deque[Group]) -> None:
    engine, ledger = self.engine, self.engine.ledger
    started: list[Group] = []
    queue: collections.deque[Request] = collections.deque()
    rows: dict[int, Request] = {}
    while pending or queue or rows:
      started = [group for group in started if group.num_open]
      while pending and len(started) < ledger.num_banks:
        started.append(pending.popleft())
        queue.extend(started[-1].requests)
      for row in range(engine.slots):
        if queue and row not in rows:
          rows[row] = queue.popleft()
          self._insert(rows[row], row)
      self._state, _ = engine.generate(engine.box, self._state)
      errors = [request.error for request in rows.values() if request.error]
      rows = {
        row: request for row, request in rows.items() if not request.is_ended
      }
      if errors:
        for group in pending:
          ledger.fail(group.requests, errors[0], is_waiting=True)
        pending.clear()

  def _insert(self, request: Request, row: int) -> None:
    tokens = token_forms.tokens_of(request)
    handle = self.engine.prefill(
      params=self.engine.box,
      padded_tokens=tokens,
      true_length=request.group.prompt_length,
    )
    self._state = self.engine.insert(handle, self._state, row)

  def drain(self) -> None:
    """Does nothing: `run` returns when nothing is in flight."""

  def stop(self) -> None:
    """Forgets what is in flight."""
    self._state = self.engine.init_decode_state()
    self.engine.ledger.abandon(
      RolloutError("the rollout was interrupted; start it again.")
    )
