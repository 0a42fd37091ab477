"""What travels through a rollout: groups of requests, and their failure.

A group is one prompt with the requests that share its keys and values. The
engine fills the records in; the servers decide when a group starts. Nothing
here knows of devices, threads or text.
"""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, UInt32

from toolrl_jax import types


class RolloutError(RuntimeError):
  """A rollout that did not complete; its cause is the engine's error."""


class CancelledRequestError(RolloutError):
  """A request that nobody waits for any more."""


def key_words(
  prompt_ids: Int[np.ndarray, " P"], *, step: int, sample_index: int
) -> UInt32[np.ndarray, " 4"]:
  """Returns the words that, with the seed, name one sample of a run.

  Args:
    prompt_ids: Real tokens of the prompt.
    step: Training step.
    sample_index: Which sample of this prompt in this step.

  Returns:
    Step, two words of the prompt's hash, and the sample index.
  """
  content = np.ascontiguousarray(prompt_ids, np.int32).tobytes()
  digest = hashlib.blake2b(content, digest_size=8).digest()
  first, second = np.frombuffer(digest, np.uint32)
  return np.array([step, first, second, sample_index], np.uint32)


class Request:
  """One completion: what is asked for, and what came of it.

  Attributes:
    id: Different for every request of a process.
    group: The group whose prompt it continues.
    key_words: Names the sample; see `key_words`.
    limit: Most completion tokens, at least 1.
    temperature: Sampling temperature; 0 is greedy.
    finish: types.FINISH_STOP, types.FINISH_LENGTH, or None while it runs.
    error: What failed it, or None.
    kept: Keys and values of prompt and completion, [L, n, N, H] each, when
      its group is kept.
    is_cancelled: Ends with CancelledRequestError at the next chunk.
    on_progress: Called with the new tokens, without any when it failed, and
      whether this is the end; on a thread of the server's, must not wait.
  """

  _ids = itertools.count()

  def __init__(
    self, group: "Group", *, words: np.ndarray, limit: int, temperature: float
  ):
    self.id = next(self._ids)
    self.group = group
    self.key_words = words
    self.limit = limit
    self.temperature = temperature
    self.finish: int | None = None
    self.error: BaseException | None = None
    self.kept: tuple[np.ndarray, np.ndarray] | None = None
    self.is_cancelled = False
    self.on_progress: Callable[[Sequence[int], bool], None] | None = None
    self.num_tokens = 0
    self._chunks: list[tuple[np.ndarray, ...]] = []

  @property
  def is_ended(self) -> bool:
    """Whether it finished or failed."""
    return self.finish is not None or self.error is not None

  def extend(
    self,
    completion_ids: Int[np.ndarray, " t"],
    logprobs: np.ndarray,
    truncated_logprobs: np.ndarray,
    *,
    stop_ids: Sequence[int],
  ) -> None:
    """Appends a chunk of tokens and notes whether they end the request."""
    self._chunks.append((completion_ids, logprobs, truncated_logprobs))
    self.num_tokens += len(completion_ids)
    if len(completion_ids) and int(completion_ids[-1]) in stop_ids:
      self.finish = types.FINISH_STOP
    elif self.num_tokens >= self.limit:
      self.finish = types.FINISH_LENGTH

  def tell(self, new_ids: Int[np.ndarray, " t"] | None = None) -> None:
    """Tells who listens of new tokens, and of the end if it has ended."""
    if self.on_progress is not None:
      self.on_progress(
        [] if new_ids is None else new_ids.tolist(), self.is_ended
      )

  def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, logprobs and truncated logprobs, each [num_tokens]."""
    ids, logprobs, truncated = zip(*self._chunks)
    return (
      np.concatenate(ids),
      np.concatenate(logprobs),
      np.concatenate(truncated),
    )


class Group:
  """One prompt and the requests that share its keys and values.

  Attributes:
    prompt_ids: Prompt padded to its bucket, int32 [P].
    prompt_length: Real tokens of it.
    conversation: Whose turn it is, or "".
    requests: One a sample.
    mates: Groups whose prompts run in the same call, itself among them.
    stored: What a prefix store holds of the prompt, or None.
    is_kept: The keys and values of its requests are wanted afterwards.
    on_end: Called when the last request has ended; must not wait.
    prefix: The engine's prefill of the prompt while somebody needs it.
    prefix_row: Row of the prompt in it.
    bank: Bank of the engine's cache that holds the prompt, or None.
    num_uninserted: Requests that have no decode row yet.
    num_open: Requests that have not ended.
  """

  def __init__(
    self,
    prompt_ids: Int[np.ndarray, " P"],
    prompt_length: int,
    *,
    step: int,
    sample_indices: Sequence[int],
    limit: int,
    temperature: float,
    name: str = "",
    conversation: str = "",
  ):
    self.prompt_ids = np.asarray(prompt_ids, np.int32)
    self.prompt_length = prompt_length
    self.conversation = conversation
    named = self.prompt_ids[:prompt_length]
    if name:
      # Stands for the tokens; the prompt has no part in the samples' names.
      digest = hashlib.blake2b(name.encode(), digest_size=32).digest()
      named = np.frombuffer(digest, np.int32)
    self.requests = [
      Request(
        self,
        words=key_words(named, step=step, sample_index=index),
        limit=limit,
        temperature=temperature,
      )
      for index in sample_indices
    ]
    self.mates: Sequence[Group] = (self,)
    self.stored: Any = None
    self.is_kept = False
    self.on_end: Callable[[], None] | None = None
    self.prefix: Any = None
    self.prefix_row = 0
    self.bank: int | None = None
    self.num_uninserted = len(self.requests)
    self.num_open = len(self.requests)
