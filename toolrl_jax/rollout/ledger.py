"""Who is in flight: requests, their rows, their banks, and counts.

The host half of the engine, one lock around it: JetStream calls the engine
from three threads. It knows nothing of devices.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from toolrl_jax.rollout.request import (
  CancelledRequestError,
  Group,
  Request,
  RolloutError,
)


class RolloutStats(NamedTuple):
  """Counts since the last reset.

  Attributes:
    num_prefills: Prompts run, whole or in part.
    num_prefill_calls: Calls that ran them.
    num_reused_tokens: Prompt tokens taken from the prefix store.
    num_generate_calls: Chunks decoded.
    num_iterations: Decode iterations; each runs every row.
    num_tokens: Completion tokens.
    occupancy_frac: Tokens per row and iteration.
  """

  num_prefills: int = 0
  num_prefill_calls: int = 0
  num_reused_tokens: int = 0
  num_generate_calls: int = 0
  num_iterations: int = 0
  num_tokens: int = 0
  occupancy_frac: float = 0.0


class RequestLedger:
  """Keeps every open request from its announcement to its end.

  Attributes:
    rows: Request of each decode row, None where the row is idle.
    num_waiting: Open requests that have no row yet.
    num_banks: Prompt banks of the decode state.
    is_row_banked: Whether each row owns the bank of its prompt.
  """

  def __init__(self, slots: int):
    self._lock = threading.RLock()
    self.slots = slots
    self.set_banks(slots)
    self._counts = RolloutStats()
    self._forget()

  def set_banks(self, num_banks: int) -> None:
    """Sets the number of banks; all of them are free."""
    with self._lock:
      self._banked: list[Group] = []
      self.num_banks = num_banks
      self.is_row_banked = num_banks == self.slots
      self._free_banks = list(range(num_banks))

  def _forget(self) -> None:
    with self._lock:
      self.rows: tuple[Request | None, ...] = (None,) * self.slots
      self._open: dict[int, Request] = {}
      self._handles: dict[int, Request] = {}
      self.num_waiting = 0
      self.set_banks(self.num_banks)

  def abandon(self, error: BaseException) -> None:
    """Fails all requests and forgets them: their server is gone."""
    with self._lock:
      self.fail(list(self._open.values()), error)
      self._forget()

  @property
  def is_idle(self) -> bool:
    """Whether no request is open."""
    return not self._open

  def require_idle(self, what: str) -> None:
    """Raises RolloutError while requests are in flight."""
    if self._open:
      raise RolloutError(
        f"an engine with {len(self._open)} requests in flight must not {what}; "
        "finish the rollout or stop its server first."
      )

  def open(self, groups: Sequence[Group]) -> None:
    """Announces groups that the server is going to submit."""
    with self._lock:
      for group in groups:
        self.num_waiting += len(group.requests)
        self._open.update((request.id, request) for request in group.requests)

  def hand_out(self, request: Request) -> int:
    """Notes a request under its id, which travels in place of a prefix."""
    with self._lock:
      self._handles[request.id] = request
    return request.id

  def seat(self, request_id: int, row: int) -> Request:
    """Gives the request of an id a row, and returns it."""
    with self._lock:
      request = self._handles.pop(request_id)
      self.rows = (*self.rows[:row], request, *self.rows[row + 1 :])
      self.num_waiting -= 1
      request.group.num_uninserted -= 1
    return request

  def live(self) -> list[Request]:
    """Returns the requests that have a row and have not ended."""
    rows = self.rows
    return [row for row in rows if row is not None and not row.is_ended]

  def free_bank(self) -> int:
    """Returns the lowest free bank, without taking it.

    The lowest, because a decode step reads all banks below the highest used.

    Raises:
      RolloutError: None is free.
    """
    if not self._free_banks:
      raise RolloutError(
        f"all {self.num_banks} prompt banks are in use; keep at most that "
        "many groups in flight."
      )
    return self._free_banks[0]

  def take_bank(self, group: Group, bank: int) -> None:
    """Gives a free bank to a group whose prompt now stands in it."""
    with self._lock:
      self._free_banks.remove(bank)
      self._banked.append(group)
      group.bank = bank

  def num_used_banks(self) -> int:
    """Returns one more than the highest bank that a live row reads."""
    banks = [request.group.bank for request in self.live()]
    return max((bank + 1 for bank in banks if bank is not None), default=1)

  def close(self, request: Request) -> None:
    """Notes the end of a request; the last of a group frees its bank."""
    with self._lock:
      group = request.group
      self._open.pop(request.id, None)
      group.num_open -= 1
      if group.num_open:
        return
      group.prefix = None
      if group.bank is not None:
        self._banked.remove(group)
        self._free_banks = sorted([*self._free_banks, group.bank])
        group.bank = None
      if group.on_end is not None:
        group.on_end()

  def fail(
    self,
    requests: Sequence[Request],
    error: BaseException,
    *,
    is_waiting: bool = False,
  ) -> None:
    """Ends requests with an error; ended ones stay as they are.

    Args:
      requests: Requests to fail.
      error: Why.
      is_waiting: The requests will never get a row.
    """
    with self._lock:
      for request in requests:
        if not request.is_ended:
          request.error = error
          self.num_waiting -= is_waiting
          self.close(request)
          request.tell()

  def fail_seated(self, error: BaseException) -> None:
    """Fails all that a lost decode state held: its rows and its prompts."""
    with self._lock:
      self.fail(self.live(), error)
      for group in list(self._banked):
        self.fail(group.requests, error)

  def end_cancelled(self) -> list[int]:
    """Ends the cancelled requests that have a row; returns their rows."""
    with self._lock:
      rows = [
        row
        for row, request in enumerate(self.rows)
        if request is not None and request.is_cancelled and not request.is_ended
      ]
      cancelled = [request for row in rows if (request := self.rows[row])]
      self.fail(cancelled, CancelledRequestError("the request was cancelled."))
    return rows

  def clear_ended_rows(self) -> tuple[Request | None, ...]:
    """Idles the rows whose request is over; returns the rows as before."""
    with self._lock:
      rows = self.rows
      self.rows = tuple(
        None if row is not None and row.is_ended else row for row in rows
      )
    return rows

  def count(self, **numbers: int) -> None:
    """Adds to the counts, named as in `RolloutStats`."""
    with self._lock:
      counts = self._counts
      counts = counts._replace(
        **{name: getattr(counts, name) + n for name, n in numbers.items()}
      )
      row_steps = max(counts.num_iterations * self.slots, 1)
      self._counts = counts._replace(
        occupancy_frac=counts.num_tokens / row_steps
      )

  @property
  def stats(self) -> RolloutStats:
    """Counts since the last reset."""
    return self._counts

  def reset_stats(self) -> None:
    """Sets all counts to 0."""
    with self._lock:
      self._counts = RolloutStats()
