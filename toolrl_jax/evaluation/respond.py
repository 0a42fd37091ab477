"""Answers many conversations at once with one rollout server.

From conversations to their outcomes. In each round every open conversation
says what it wants answered, and all prompts of one bucket are one rollout; so
the decode rows are full as long as more conversations are open than there are
rows. A sample is named by (seed, item, turn, step), its prompt runs alone, and
a conversation sees only its own stored tokens: what it gets does not depend on
which others are open (bit for bit at an equal number of rows, while the prefix
store holds all of them). Those that wait for somebody outside stand aside, and
come back when they were told. Knows neither benchmarks nor files.
"""

import concurrent.futures
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import transformers
from absl import logging

from toolrl_jax import types
from toolrl_jax.data import padding, prompt
from toolrl_jax.evaluation import conversation
from toolrl_jax.evaluation.protocol import Protocol
from toolrl_jax.model import tokenizer as tokenizer_lib
from toolrl_jax.parsing import tool_calls
from toolrl_jax.rollout import collect

# Services that are asked at the same time.
_MAX_WAITING = 16


class Ended(NamedTuple):
  """A conversation that came to its end.

  Attributes:
    id: Item id.
    outcome: What the conversation returned; {} when it failed.
    error: Why it failed, one line; empty when it did not.
    num_answers: Answers that the model gave.
    num_prompt_tokens: Tokens of all prompts.
    num_tokens: Tokens of all answers.
    num_cut: Answers that ended at the token limit.
    num_over_long: Prompts that were too long to be answered.
    num_extended: Prompts that went on from the tokens of the one before.
    num_rebuilt: Prompts that had to be encoded again from their text.
    secs: Its share of the seconds of the rollouts that it took part in.
  """

  id: str
  outcome: Mapping[str, Any]
  error: str
  num_answers: int
  num_prompt_tokens: int
  num_tokens: int
  num_cut: int
  num_over_long: int
  num_extended: int
  num_rebuilt: int
  secs: float


@dataclasses.dataclass
class _Open:
  """A conversation under way; counts are those of `Ended`."""

  id: str
  generator: conversation.Conversation
  secs: float = 0.0
  ask: conversation.Ask | None = None
  waits_for: concurrent.futures.Future | None = None
  prompt_ids: Sequence[int] = ()
  prompt_text: str = ""
  # What was run and sampled before, by whose part it was.
  before: dict[str, prompt.Started] = dataclasses.field(default_factory=dict)
  outcome: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  error: str = ""
  counts: dict[str, int] = dataclasses.field(
    default_factory=lambda: dict.fromkeys(
      (name for name in Ended._fields if name.startswith("num_")), 0
    )
  )

  @property
  def is_ended(self) -> bool:
    return self.ask is None and self.waits_for is None

  @property
  def key(self) -> str:
    """Names whose tokens these are, in this conversation."""
    assert self.ask is not None
    is_agent = self.ask.speaker == "agent"
    return self.id if is_agent else f"{self.id}\0{self.ask.speaker}"

  def count(self, **more: int) -> None:
    if self.ask is None or self.ask.speaker != "agent":
      return
    for name, number in more.items():
      self.counts[f"num_{name}"] += number

  def end(self) -> Ended:
    return Ended(
      self.id,
      self.outcome,
      self.error,
      secs=round(self.secs, 3),
      **self.counts,
    )


class Responder:
  """Answers conversations under one protocol."""

  def __init__(
    self,
    server: collect.RolloutServer,
    tokenizer: transformers.PreTrainedTokenizerBase,
    protocol: Protocol,
    *,
    stop_ids: Sequence[int],
    prompt_buckets: Sequence[int] = (),
    completion_buckets: Sequence[int] = (),
    max_open: int = 0,
  ):
    """Prepares; nothing runs yet.

    Args:
      server: With the weights to be scored; its top-p and top-k are those of
        the protocol.
      tokenizer: The checkpoint's.
      protocol: How the model is asked.
      stop_ids: Tokens that end an answer.
      prompt_buckets: Bucket lengths of prompts; empty is powers of two.
      completion_buckets: Bucket lengths of answers; empty is powers of two.
      max_open: Most conversations open at one time; 0 is four a decode row.
    """
    self._server, self._tokenizer = server, tokenizer
    self._protocol, self._stops = protocol, frozenset(stop_ids)
    self._prompt_buckets = prompt_buckets or padding.default_buckets(
      protocol.max_prompt_tokens
    )
    self._completion_buckets = completion_buckets
    self._max_open = max_open or 4 * server.engine.slots
    self._is_storing = server.engine.store.budget_tokens > 0

  def respond(
    self,
    items: Sequence[tuple[str, Callable[[], conversation.Conversation]]],
    *,
    seed: int,
    on_end: Callable[[Sequence[Ended]], None],
  ) -> None:
    """Takes every conversation to its end.

    Args:
      items: Item id, unique, and what starts its conversation.
      seed: Part of the names of all samples.
      on_end: Called after each round with the conversations that ended.

    Raises:
      RolloutError: The engine failed; conversations that had ended were
        reported.
    """
    to_start = iter(items)
    running: list[_Open] = []
    pool = concurrent.futures.ThreadPoolExecutor(_MAX_WAITING)
    try:
      while True:
        running += self._start(to_start, self._max_open - len(running), pool)
        if not running:
          return
        self._hear(running, pool)
        for bucket, members in self._by_bucket(running).items():
          self._answer(members, bucket, seed, pool)
        on_end([one.end() for one in running if one.is_ended])
        running = [one for one in running if not one.is_ended]
    finally:
      pool.shutdown(wait=False, cancel_futures=True)

  def _start(self, to_start: Iterator, room: int, pool) -> list[_Open]:
    started = []
    for _, (item_id, start) in zip(range(room), to_start):
      one = _Open(item_id, start())
      self._advance(one, functools.partial(next, one.generator), pool)
      started.append(one)
    return started

  def _hear(self, running: Sequence[_Open], pool) -> None:
    """Tells conversations what came from outside.

    Waits for the first of it where nobody has anything else to do.
    """
    futures = [one.waits_for for one in running if one.waits_for is not None]
    if futures and all(one.ask is None for one in running):
      concurrent.futures.wait(
        futures, return_when=concurrent.futures.FIRST_COMPLETED
      )
    for one in running:
      if one.waits_for is not None and one.waits_for.done():
        came, one.waits_for = one.waits_for, None
        failure = came.exception()
        self._advance(
          one,
          functools.partial(one.generator.send, came.result())
          if failure is None
          else functools.partial(one.generator.throw, failure),
          pool,
        )

  def _advance(
    self,
    one: _Open,
    go_on: Callable[[], conversation.Ask | conversation.Wait],
    pool: concurrent.futures.Executor,
  ) -> None:
    """Lets a conversation go on to the next that has to be waited for."""
    while True:
      one.ask = None
      try:
        wanted = go_on()
        if isinstance(wanted, conversation.Wait):
          one.waits_for = pool.submit(wanted.call)
          return
        one.ask = wanted
        self._encode(one, wanted)
      except StopIteration as stop:
        one.outcome = stop.value or {}
        return
      except Exception as error:  # noqa: BLE001 - one item, not the run
        one.ask, one.error = None, _one_line(error)
        logging.warning("item %s failed: %s", one.id, one.error)
        return
      if len(one.prompt_ids) <= self._protocol.max_prompt_tokens:
        return
      one.count(over_long=1)
      go_on = functools.partial(
        one.generator.send, self._read("", is_cut=True, one=one)
      )

  def _encode(self, one: _Open, ask: conversation.Ask) -> None:
    """Gives a conversation its next prompt."""
    example = types.Example(
      one.id, ask.messages, ask.tools, types.Gold(), ask.verbatim
    )
    protocol, started = self._protocol, one.before.get(ask.speaker)
    is_agent = ask.speaker == "agent"
    encoded = prompt.encode_next(
      example,
      self._tokenizer,
      started=started,
      template=protocol.template if is_agent else "native",
      thinking=protocol.thinking,
      system=protocol.system if is_agent else "",
      wrap_tools=protocol.tool_docs != "raw",
    )
    if started is not None:
      one.count(extended=encoded.is_extension, rebuilt=not encoded.is_extension)
    one.prompt_ids, one.prompt_text = encoded.prompt_ids, encoded.text

  def _by_bucket(self, running: Sequence[_Open]) -> dict[int, list[_Open]]:
    by_bucket: dict[int, list[_Open]] = {}
    for one in running:
      if one.ask is not None:
        bucket = padding.bucket_for(len(one.prompt_ids), self._prompt_buckets)
        by_bucket.setdefault(bucket, []).append(one)
    return dict(sorted(by_bucket.items()))

  def _answer(
    self, members: Sequence[_Open], bucket: int, seed: int, pool
  ) -> None:
    """Runs one prompt of each member and tells it the answer."""
    batch = padding.batch(
      [one.prompt_ids for one in members],
      buckets=[bucket],
      num_groups=len(members),
    )
    start = time.monotonic()
    rollouts = self._server.rollout(
      batch,
      group_size=1,
      max_tokens=self._protocol.max_new_tokens,
      temperature=self._protocol.temperature,
      completion_buckets=self._completion_buckets,
      reuse_prefixes=self._is_storing,
      names=[
        f"{seed}/{one.key}/{one.ask.turn}/{one.ask.step}"
        for one in members
        if one.ask is not None
      ],
      conversations=[one.key for one in members] if self._is_storing else (),
    )
    texts = tokenizer_lib.texts(rollouts, self._tokenizer, [*self._stops])
    share = (time.monotonic() - start) / len(members)
    for row, (one, (text,)) in enumerate(zip(members, texts)):
      length = int(rollouts.completion_mask[row, 0].sum())
      ids = rollouts.completion_ids[row, 0, :length].tolist()
      if ids and ids[-1] in self._stops:
        ids = ids[:-1]
      is_cut = int(rollouts.finish[row, 0]) == types.FINISH_LENGTH
      answer = self._read(text, is_cut=is_cut, one=one, num_tokens=length)
      one.count(answers=1, prompt_tokens=len(one.prompt_ids), tokens=length)
      one.count(cut=is_cut)
      one.secs += share
      if one.ask is not None:
        one.before[one.ask.speaker] = prompt.Started(
          one.prompt_text + text, [*one.prompt_ids, *ids]
        )
      self._advance(one, functools.partial(one.generator.send, answer), pool)

  def _read(
    self, text: str, *, is_cut: bool, one: _Open, num_tokens: int = 0
  ) -> conversation.Answer:
    return conversation.Answer(
      text,
      tool_calls.parse_completion(text, style=self._protocol.completion),
      is_cut=is_cut,
      num_prompt_tokens=len(one.prompt_ids),
      num_tokens=num_tokens,
    )


def _one_line(error: BaseException) -> str:
  text = " ".join(str(error).split())
  return f"{type(error).__name__}: {text}" if text else type(error).__name__
