"""JetStream's driver for rollouts: threads, queues and slots are JetStream's.

From groups to filled-in requests. Ours differs from the stock driver in this:

1. Lockstep: a chunk is decoded only after the rows that ended in the one
   before are free, and filled again if any request waits. No row idles
   through chunks decoded ahead, and the chunks are those of the plain loop.
2. Requests are token ids as they are: no beginning-of-sequence token, no
   padding to JetStream's buckets, no cut on the left.
3. At most as many groups are in flight as the engine has prompt banks.
4. A request tells of its end through a condition, not an event loop.
5. A failure of a thread fails the requests in flight and closes the driver.
6. A request can be cancelled: its row is free at the next chunk.

A rollout is one `run` of all its groups. Who serves requests as they arrive
calls `submit` instead: the new group joins those that run. It knows neither
text nor sampling.
"""

import collections
import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np

from toolrl_jax.rollout import jetstream_compat, token_forms
from toolrl_jax.rollout.engine import RolloutEngine
from toolrl_jax.rollout.request import (
  CancelledRequestError,
  Group,
  Request,
  RolloutError,
)

_orchestrator = jetstream_compat.orchestrator
# JetStream's own bounds: chunks and requests that wait between threads.
_BACKLOG_CHUNKS = 8
_BACKLOG_REQUESTS = 1


class LockstepQueue(queue.Queue):
  """Hands chunks over: `put` returns when the consumer is done with one."""

  def __init__(self):
    super().__init__(_BACKLOG_CHUNKS)
    self._is_consumed = threading.Event()
    self._is_held = False
    self._is_closed = False

  def put(self, item, block: bool = True, timeout: float | None = None) -> None:
    """Puts an item; waits until a chunk was worked through."""
    if not _is_chunk(item):
      super().put(item, block, timeout)
      return
    self._is_consumed.clear()
    super().put(item, block, timeout)
    if not self._is_closed:
      self._is_consumed.wait()

  def get(self, block: bool = True, timeout: float | None = None):
    """Gets an item; asking for it says that the last one is done."""
    if self._is_held:
      self._is_held = False
      self._is_consumed.set()
    item = super().get(block, timeout)
    self._is_held = _is_chunk(item)
    return item

  def close(self) -> None:
    """Lets producers pass from now on: the consumer is going away."""
    self._is_closed = True
    self._is_consumed.set()


class ExpectingQueue(queue.Queue):
  """Waits for requests that are still in the hands of another thread.

  JetStream decodes on when its queues look empty, also while a request is
  between two of them: a free row would idle through a whole chunk.
  """

  def __init__(self):
    super().__init__(_BACKLOG_REQUESTS)
    self._num_expected = 0
    self._is_closed = False

  def expect(self) -> None:
    """Announces one more item."""
    with self.mutex:
      self._num_expected += 1

  def get(self, block: bool = True, timeout: float | None = None):
    """Gets an item; also waits, whatever `block` says, for an expected one."""
    while True:
      is_expected = self._num_expected > 0 and not self._is_closed
      try:
        item = super().get(block or is_expected, timeout)
      except queue.Empty:
        if not is_expected:
          raise
        continue
      if item is not None:
        with self.mutex:
          self._num_expected -= 1
      return item

  def close(self) -> None:
    """Waits for nothing any more."""
    self._is_closed = True


def _is_chunk(item) -> bool:
  return item is not None and isinstance(item[1], token_forms.ChunkTokens)


class ReturnChannel:
  """Where JetStream reports on a request; the engine holds its tokens.

  Attributes:
    request: The request it belongs to.
    returned_ids: Tokens that JetStream passed on, without the stop token.
  """

  def __init__(
    self, request: Request, on_close: Callable[["ReturnChannel"], None]
  ):
    self.request = request
    self.returned_ids: list[int] = []
    self._on_close = on_close

  def add_result(self, samples) -> None:
    """Takes the tokens of one chunk."""
    self.returned_ids += samples[0].token_ids

  def close(self) -> None:
    """Takes the end of the request."""
    self._on_close(self)


class RolloutDriver(_orchestrator.Driver):  # type: ignore[name-defined]
  """Runs groups through JetStream's threads.

  One `run` at a time, or any number of `submit`s; not both at one time.
  """

  def __init__(self, engine: RolloutEngine):
    self.engine = engine
    self._changed = threading.Condition()
    self._pending: collections.deque[Group] = collections.deque()
    self._in_flight: dict[ReturnChannel, Group] = {}
    self._failure: BaseException | None = None
    # Whether one failure ends all that has not started.
    self._is_joint = True
    super().__init__(
      [engine],
      [engine],
      [engine.box],
      [engine.box],
      interleaved_mode=True,
      jax_padding=False,
    )

  # JetStream assigns its queues just before it starts its threads.
  @property
  def _detokenize_backlogs(self) -> list[LockstepQueue]:
    return self._lockstep_queues

  @_detokenize_backlogs.setter
  def _detokenize_backlogs(self, queues) -> None:
    self._lockstep_queues = [LockstepQueue() for _ in queues]

  @property
  def _generate_backlogs(self) -> dict[int, ExpectingQueue]:
    return self._expecting_queues

  @_generate_backlogs.setter
  def _generate_backlogs(self, queues) -> None:
    self._expecting_queues = {index: ExpectingQueue() for index in queues}

  def run(self, groups: Sequence[Group]) -> None:
    """Runs groups until each of their requests finished or failed.

    After a failure groups that have not started are failed as well.

    Args:
      groups: Groups in the order in which they start.

    Raises:
      RolloutError: The driver was stopped, or one of its threads failed.
    """
    self.drain()
    with self._changed:
      self._require_open()
      self._is_joint = True
      self.engine.ledger.open(groups)
      self._pending.extend(groups)
      self._start_groups()
    try:
      self.drain()
    except BaseException:
      # Interrupted: what runs may end, nothing new is started.
      with self._changed:
        self._fail_pending(RolloutError("the rollout was interrupted."))
      raise
    self._require_open()

  def submit(self, group: Group) -> None:
    """Adds a group to those that run, and returns at once.

    Its requests tell of tokens and of their end by `Request.on_progress`; a
    failure of theirs is no other group's. With a prefix store the group may go
    on from an earlier one, and leaves its own tokens there.

    Args:
      group: Of the sizes that the engine was last told to reserve.

    Raises:
      RolloutError: The driver was stopped, or one of its threads failed.
    """
    with self._changed:
      self._require_open()
      self._is_joint = False
      if self.engine.store.budget_tokens:
        self.engine.store.plan([group])
        group.is_kept = True
      self.engine.ledger.open([group])
      self._pending.append(group)
      self._start_groups()

  def cancel(self, request: Request) -> None:
    """Ends a submitted request early; safe to repeat, and after its end.

    It fails with CancelledRequestError: at once where its group has not
    started, else at the next chunk, which frees its row.
    """
    with self._changed:
      request.is_cancelled = True
      if request.group not in self._pending:
        return
      self.engine.ledger.fail(
        [request],
        CancelledRequestError("the request was cancelled."),
        is_waiting=True,
      )
      if not request.group.num_open:
        self._pending.remove(request.group)

  @property
  def failure(self) -> BaseException | None:
    """What closed the driver, or None while it is open."""
    return self._failure

  def drain(self) -> None:
    """Waits until nothing is in flight."""
    with self._changed:
      self._changed.wait_for(lambda: not (self._in_flight or self._pending))

  def stop(self) -> None:
    """Fails what is in flight and ends all threads; safe to repeat."""
    stopped = RolloutError("the rollout driver was stopped.")
    self._abort(stopped)
    super().stop()
    self.engine.ledger.abandon(self._failure or stopped)

  def _require_open(self) -> None:
    if self._failure is not None:
      raise RolloutError(
        f"the rollout driver is closed: {self._failure}; start a new one."
      ) from self._failure

  def _start_groups(self) -> None:
    """Submits the next groups while banks are left for them."""
    num_started = len({id(group) for group in self._in_flight.values()})
    while self._pending and num_started < self.engine.ledger.num_banks:
      group = self._pending.popleft()
      num_started += 1
      for request in group.requests:
        if request.is_ended:
          continue  # Cancelled before the group started.
        channel = ReturnChannel(request, self._on_close)
        self._in_flight[channel] = group
        self._generate_backlogs[0].expect()
        self.place_request_on_prefill_queue(
          _orchestrator.ActiveRequest(
            max_tokens=request.limit,
            return_channel=channel,
            prefill_content=group.prompt_ids,
            # Not empty, or JetStream would ask for a first token of its own.
            history_path="tokens",
            is_client_side_tokenization=True,
          )
        )

  def _on_close(self, channel: ReturnChannel) -> None:
    """Notes the end of a request; runs on JetStream's detokenize thread.

    The next group is submitted here, before the thread asks for another
    chunk: in lockstep the generate thread then finds it in the queue.
    """
    with self._changed:
      group = self._in_flight.pop(channel, None)
      if group is None:
        return
      if self._is_joint and channel.request.error is not None:
        self._fail_pending(channel.request.error)
      if not self._is_joint and group not in self._in_flight.values():
        self.engine.store.keep([group])
      self._start_groups()
      if not self._in_flight:
        self._changed.notify_all()

  def _fail_pending(self, error: BaseException) -> None:
    for group in self._pending:
      self.engine.ledger.fail(group.requests, error, is_waiting=True)
    self._pending.clear()

  def _abort(self, error: BaseException) -> None:
    """Closes the driver: fails every request and wakes who waits."""
    self.live = False
    with self._changed:
      self._failure = self._failure or error
      self._fail_pending(error)
      self.engine.ledger.fail(
        [channel.request for channel in self._in_flight], error
      )
      self._in_flight.clear()
      self._changed.notify_all()
    for chunks in self._lockstep_queues:
      chunks.close()
    for waiting in self._expecting_queues.values():
      waiting.close()

  def _guard(self, thread: Callable[[int], None], idx: int) -> None:
    """Runs a thread of JetStream's so that its failure closes the driver."""
    try:
      thread(idx)
    except Exception as error:  # noqa: BLE001 - who waits is told of it
      # A stopped driver empties its queues under its threads.
      if self._failure is None:
        self._abort(error)

  def _prefill_thread(self, idx: int) -> None:
    self._guard(super()._prefill_thread, idx)

  def _transfer_thread(self, idx: int) -> None:
    self._guard(super()._transfer_thread, idx)

  def _generate_thread(self, idx: int) -> None:
    self._guard(super()._generate_thread, idx)

  def _detokenize_thread(self, idx: int) -> None:
    self._guard(super()._detokenize_thread, idx)

  def _process_prefill_content(
    self, request, tokenizer, is_bos: bool, max_prefill_length: int
  ) -> tuple[np.ndarray, int]:
    """Returns the prompt as it is, with its request attached."""
    del tokenizer, is_bos, max_prefill_length
    wanted = request.return_channel.request
    return token_forms.tokens_of(wanted), wanted.group.prompt_length
