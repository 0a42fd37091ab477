"""Serves prompts as they arrive, beside those that run.

From the tokens of one prompt to the tokens of its samples, a chunk at a time,
on an asyncio event loop; JetStream's driver runs them on its threads. Decides
who is admitted: the rows of the engine and a bounded number that waits. A
sample is named by (engine's seed, request's seed, prompt, sample index), so
what it gets depends on nothing that runs beside it. Knows no text.
"""

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from toolrl_jax.rollout.driver import RolloutDriver
from toolrl_jax.rollout.engine import RolloutEngine
from toolrl_jax.rollout.request import Group, RolloutError


class RequestError(ValueError):
  """A request that cannot be served as it is; the text says why."""


class PromptTooLongError(RequestError):
  """A prompt with more tokens than the server takes."""


class BusyError(RolloutError):
  """No room now; the same request may be served later."""


class DrainingError(RolloutError):
  """The server finishes what it has and takes nothing new."""


class Tokens(NamedTuple):
  """What one sample gained.

  Attributes:
    sample: Index of the sample.
    token_ids: Its new tokens; the last one may be an end token.
    finish: types.FINISH_STOP or types.FINISH_LENGTH, None while it goes on.
  """

  sample: int
  token_ids: Sequence[int]
  finish: int | None


class Generation:
  """The samples of one prompt under way.

  Attributes:
    running: Samples that the driver has not ended.
    wanted: Samples whose end has neither been heard nor been asked for.
  """

  def __init__(self, group: Group, driver: RolloutDriver):
    self._group, self._driver = group, driver
    self._news: asyncio.Queue[tuple[int, Sequence[int], bool]] = asyncio.Queue()
    self.running = set(range(len(group.requests)))
    self.wanted = set(self.running)

  def note(self, sample: int, token_ids: Sequence[int], is_end: bool) -> None:
    """Takes what the driver tells; on the event loop."""
    if is_end:
      self.running.discard(sample)
    self._news.put_nowait((sample, token_ids, is_end))

  async def tokens(self) -> AsyncIterator[Tokens]:
    """Yields the tokens of all samples until each has ended.

    Raises:
      RolloutError: The engine failed, or the server was stopped.
    """
    while self.wanted:
      sample, token_ids, is_end = await self._news.get()
      if sample not in self.wanted:
        continue  # Cancelled.
      request = self._group.requests[sample]
      if is_end:
        self.wanted.discard(sample)
        if request.error is not None:
          text = " ".join(str(request.error).split())
          raise RolloutError(
            f"the request failed: {text or type(request.error).__name__}"
          ) from request.error
      yield Tokens(sample, token_ids, request.finish if is_end else None)

  def cancel(self, sample: int | None = None) -> None:
    """Ends one sample, or all; nothing more is heard of it."""
    samples = [*self.wanted] if sample is None else [sample]
    for index in samples:
      self.wanted.discard(index)
      self._driver.cancel(self._group.requests[index])


class OnlineRollout:
  """Admits requests to the rows of one engine.

  Attributes:
    engine: The engine; only this server may use it.
    driver: What runs its requests.
    prompt_buckets: Lengths that prompts are padded to.
    max_prompt_tokens: Longest prompt.
    max_tokens: Longest completion, the end token included.
    is_draining: Nothing new is taken.
  """

  def __init__(
    self,
    engine: RolloutEngine,
    driver: RolloutDriver,
    *,
    prompt_buckets: Sequence[int],
    max_tokens: int,
    max_waiting: int,
  ):
    """Reserves the engine's sizes.

    Args:
      engine: An idle engine.
      driver: Its driver.
      prompt_buckets: Lengths that prompts are padded to; the largest is the
        longest prompt.
      max_tokens: Longest completion.
      max_waiting: Most samples that wait while all rows are taken, at least 0.
    """
    self.engine, self.driver = engine, driver
    self.max_prompt_tokens, self.max_tokens = max(prompt_buckets), max_tokens
    self._open: set[Generation] = set()
    self._num_held = 0
    self.is_draining = False
    self.prompt_buckets = tuple(prompt_buckets)
    self._max_waiting = max_waiting
    self._idle = asyncio.Event()
    self._idle.set()
    # Prompts here have one sample as a rule: a bank a row.
    engine.reserve(
      prompt_size=self.max_prompt_tokens,
      completion_size=max_tokens,
      group_size=1,
    )

  def start(
    self,
    prompt_ids: Sequence[int],
    *,
    num_samples: int = 1,
    max_tokens: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
  ) -> Generation:
    """Admits a prompt; to be called on the event loop that hears of it.

    Args:
      prompt_ids: Tokens of the prompt.
      num_samples: Samples of it, at most the engine's rows.
      max_tokens: Longest completion; None is the server's limit.
      temperature: Sampling temperature; 0 is greedy.
      seed: Any integer, part of the samples' names.

    Returns:
      The samples under way; who leaves early cancels them.

    Raises:
      RequestError: It cannot be served.
      BusyError: Too many wait.
      DrainingError: The server is ending.
      RolloutError: The driver is closed.
    """
    limit = self.max_tokens if max_tokens is None else max_tokens
    self._check(prompt_ids, num_samples, limit)
    if self.is_draining:
      raise DrainingError("the server is shutting down; ask another one.")
    self._require_room(num_samples)
    group = self._group(prompt_ids, num_samples, limit, temperature, seed)
    generation = Generation(group, self.driver)
    loop = asyncio.get_running_loop()
    for sample, request in enumerate(group.requests):
      hear = functools.partial(self._hear, generation, sample)
      request.on_progress = functools.partial(_pass_on, loop, hear)
    # An open driver takes any group.
    self.driver.submit(group)
    self._open.add(generation)
    self._idle.clear()
    return generation

  @property
  def num_open(self) -> int:
    """Samples that run or wait."""
    return sum(len(generation.running) for generation in self._open)

  @contextlib.contextmanager
  def place_held(self, num_samples: int) -> Iterator[None]:
    """Keeps places for samples whose prompt is still being made.

    Args:
      num_samples: Samples that `start` will be asked for afterwards.

    Raises:
      RequestError: There will never be so many.
      BusyError: There are no such places now.
    """
    _check_number("samples", num_samples, self.engine.slots)
    self._require_room(num_samples)
    self._num_held += num_samples
    try:
      yield
    finally:
      self._num_held -= num_samples

  def _require_room(self, num_samples: int) -> None:
    # Who was cancelled is out at the next chunk.
    num_taken = self._num_held + sum(
      len(generation.running & generation.wanted) for generation in self._open
    )
    if num_taken + num_samples > self.engine.slots + self._max_waiting:
      raise BusyError(
        f"{num_taken} samples run or wait, and {self.engine.slots} rows "
        f"and {self._max_waiting} places to wait are all there is; try again "
        "later."
      )

  async def drain(self, secs: float) -> bool:
    """Takes nothing new and waits for what runs.

    Args:
      secs: Most seconds to wait, at least 0.

    Returns:
      Whether all came to its end in time.
    """
    self.is_draining = True
    try:
      await asyncio.wait_for(self._idle.wait(), secs)
    except TimeoutError:
      return False
    return True

  def _check(
    self, prompt_ids: Sequence[int], num_samples: int, max_tokens: int
  ) -> None:
    config = self.engine.config
    _check_number("samples", num_samples, self.engine.slots)
    _check_number("completion tokens", max_tokens, self.max_tokens)
    longest = min(self.max_prompt_tokens, config.max_positions - max_tokens)
    if len(prompt_ids) > longest:
      raise PromptTooLongError(
        f"a prompt must have at most {longest} tokens beside {max_tokens} "
        f"completion tokens, got {len(prompt_ids)}."
      )
    if not len(prompt_ids) or not all(
      0 <= token_id < config.vocab_size for token_id in prompt_ids
    ):
      raise RequestError(
        "a prompt must be one or more token ids of at least 0 and below "
        f"{config.vocab_size}."
      )

  def _group(
    self,
    prompt_ids: Sequence[int],
    num_samples: int,
    limit: int,
    temperature: float,
    seed: int,
  ) -> Group:
    size = min(size for size in self.prompt_buckets if size >= len(prompt_ids))
    padded = np.zeros(size, np.int32)
    padded[: len(prompt_ids)] = prompt_ids
    digest = hashlib.blake2b(padded.tobytes()).hexdigest()
    return Group(
      padded,
      len(prompt_ids),
      step=0,
      sample_indices=range(num_samples),
      limit=limit,
      temperature=temperature,
      name=f"{seed}/{digest}",
    )

  def _hear(
    self,
    generation: Generation,
    sample: int,
    token_ids: Sequence[int],
    is_end: bool,
  ) -> None:
    generation.note(sample, token_ids, is_end)
    if not generation.running:
      self._open.discard(generation)
    if not self._open:
      self._idle.set()


def _pass_on(loop, hear, token_ids: Sequence[int], is_end: bool) -> None:
  """Passes news from the driver's thread to the event loop."""
  # A loop that ended has nobody who waits.
  if not loop.is_closed():
    loop.call_soon_threadsafe(hear, token_ids, is_end)


def _check_number(what: str, value: int, most: int) -> None:
  if not 1 <= value <= most:
    raise RequestError(
      f"the number of {what} must be in [1, {most}], got {str(value)[:20]}."
    )
