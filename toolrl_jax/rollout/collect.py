"""Prompts in, padded completions out: the one way into the rollout.

From a step's prompts to `types.Rollouts`, through JetStream's driver or the
plain loop. It checks what is asked before any work is done, and raises one
error for whatever failed. It knows neither text nor rewards.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from toolrl_jax import hosts, types
from toolrl_jax.model import decoder
from toolrl_jax.rollout import driver, finished, inline
from toolrl_jax.rollout import prompts as prompts_lib
from toolrl_jax.rollout.engine import RolloutEngine
from toolrl_jax.rollout.ledger import RolloutStats
from toolrl_jax.rollout.request import Group, RolloutError

_SMALLEST_COMPLETION_BUCKET = 64
_SMALLEST_PROMPT_BUCKET = 16


class RolloutServer:
  """Rolls prompts out with the policy it was last given."""

  def __init__(
    self,
    engine: RolloutEngine,
    runner: driver.RolloutDriver | inline.InlineLoop,
    *,
    is_alone: bool = False,
  ):
    """Serves an engine.

    Args:
      engine: The engine, on devices of this process.
      runner: What serves its requests.
      is_alone: Roll whole batches out here, whatever other processes there are.
    """
    self.engine = engine
    self._runner = runner
    self._is_alone = is_alone or hosts.count() == 1

  def alone(self) -> "RolloutServer":
    """Returns a server of the same engine for this process only."""
    return RolloutServer(self.engine, self._runner, is_alone=True)

  def rollout(
    self,
    prompts: types.PromptBatch | Sequence[Sequence[int]],
    *,
    group_size: int,
    max_tokens: int,
    temperature: float = 1.0,
    step: int = 0,
    completion_buckets: Sequence[int] = (),
    on_group: Callable[[int, types.Rollouts], None] | None = None,
    reuse_prefixes: bool = False,
    names: Sequence[str] = (),
    conversations: Sequence[str] = (),
  ) -> types.Rollouts:
    """Samples `group_size` completions of every prompt.

    A completion is named by (seed, step, prompt, sample index): the same in
    any order, chunk length and server at an equal number of slots. Prompts
    that stand in a batch more than once get different samples.

    In a run of several processes each rolls out its share of the prompts
    (`hosts.own_rows`), all have to call it alike, and all get all completions;
    `on_group` hears of the own share only.

    Args:
      prompts: Padded prompts with lengths, or lists of token ids. Groups with
        `is_real` False cost nothing and come back empty.
      group_size: Completions a prompt (G).
      max_tokens: Longest completion, the stop token included.
      temperature: Sampling temperature; 0 is greedy, with log-probabilities
        at temperature 1.
      step: Training step, part of the samples' names.
      completion_buckets: Lengths to pad to, rising; empty is powers of two
        from 64.
      on_group: Called as (index of the prompt, its rows [1, G, t]) as soon as
        all completions of a prompt have ended, t being the longest of them;
        on one thread beside the decoding, in the order in which prompts end.
        All calls have returned when the rollout returns.
      reuse_prefixes: Take the beginning of each prompt from the engine's
        store where it holds one, and put prompts and completions into it:
        the next turn of a conversation runs its new tokens only. The bits
        then depend on the rollouts of this kind since the last `sync`.
      names: A name for each prompt's samples in place of its tokens; none may
        stand twice. Empty: the tokens name them.
      conversations: Whose turn each prompt is; with `reuse_prefixes` a prompt
        sees its own conversation's tokens only, so that the bits depend on
        nothing else while the store holds all of them. Empty: one for all.

    Returns:
      Completions padded to the smallest bucket that holds the longest.

    Raises:
      ValueError: A prompt or a setting cannot be served.
      RolloutError: The engine or `on_group` failed.
    """
    batch = pad_prompts(prompts)
    _check_settings(group_size, max_tokens, temperature, step)
    _check_prompts(batch, self.engine, max_tokens)
    if reuse_prefixes and not self.engine.store.budget_tokens:
      raise ValueError(
        "reuse_prefixes needs a prefix store, got a store of 0 tokens; "
        "set config.rollout.prefix_store_tokens."
      )
    buckets = _buckets(completion_buckets, max_tokens)
    num_rows = len(batch.prompt_length)
    share = slice(num_rows) if self._is_alone else hosts.own_rows(num_rows)
    by_prompt = _make_groups(
      batch,
      range(num_rows)[share],
      _labels(names, batch, "names"),
      _labels(conversations, batch, "conversations"),
      group_size=group_size,
      limit=max_tokens,
      temperature=temperature,
      step=step,
      is_shared=self.engine.layout == "shared",
    )
    self._runner.drain()
    self.engine.reserve(
      prompt_size=batch.prompt_ids.shape[1],
      completion_size=_smallest(buckets, max_tokens),
      group_size=group_size,
    )
    groups = [group for groups in by_prompt for group in groups]
    if reuse_prefixes:
      self.engine.store.plan(groups)
      for group in groups:
        group.is_kept = True
    prompts_lib.run_together(groups, self.engine.prefill_rows)
    report = None if on_group is None else _reporter(by_prompt, on_group)
    with finished.reporting(by_prompt, report):
      self._runner.run(groups)
      _raise_failure(by_prompt, step)
    # In the order of submission: what the store holds does not depend on
    # which request ended first.
    self.engine.store.keep(groups)
    longest = max(
      (r.num_tokens for group in groups for r in group.requests), default=0
    )
    if not self._is_alone:
      longest = int(hosts.gather([longest]).max())
    own = _collect(
      by_prompt[share], group_size=group_size, size=_smallest(buckets, longest)
    )
    return own if self._is_alone else hosts.gather_rows(own, num_rows)

  def sync(self, params: decoder.Params, version: int) -> None:
    """Serves other parameters from the next rollout on.

    Args:
      params: Parameter pytree. It must stay alive and unwritten while it is
        served: do not donate it to an update.
      version: Number of the policy.
    """
    self._runner.drain()
    self.engine.swap(params, version)

  @property
  def stats(self) -> RolloutStats:
    """Counts since the last reset."""
    return self.engine.ledger.stats

  def reset_stats(self) -> None:
    """Sets all counts to 0."""
    self.engine.ledger.reset_stats()


@contextlib.contextmanager
def start(
  engine: RolloutEngine, server: str = "jetstream"
) -> Iterator[RolloutServer]:
  """Serves an engine until the end of the `with` block.

  Args:
    engine: Engine; no other server may use it meanwhile.
    server: "jetstream" for its driver's threads, "inline" for a plain loop.

  Yields:
    The server.

  Raises:
    ValueError: `server` is neither.
  """
  if server not in ("jetstream", "inline"):
    raise ValueError(
      f'server must be "jetstream" or "inline", got {server!r}; '
      "set config.rollout.server."
    )
  is_driver = server == "jetstream"
  runner = (driver.RolloutDriver if is_driver else inline.InlineLoop)(engine)
  try:
    yield RolloutServer(engine, runner)
  finally:
    runner.stop()


def pad_prompts(
  prompts: types.PromptBatch | Sequence[Sequence[int]],
) -> types.PromptBatch:
  """Pads lists of token ids to a power of two; a batch stays as it is."""
  if isinstance(prompts, types.PromptBatch):
    return prompts
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  size = _SMALLEST_PROMPT_BUCKET
  while size < max(lengths, default=0):
    size *= 2
  prompt_ids = np.zeros((len(prompts), size), np.int32)
  for row, prompt in zip(prompt_ids, prompts):
    row[: len(prompt)] = prompt
  return types.PromptBatch(prompt_ids, lengths, np.ones(len(prompts), bool))


def _check_settings(group_size, max_tokens, temperature, step) -> None:
  for name, value, least in (
    ("group_size", group_size, 1),
    ("max_completion_tokens", max_tokens, 1),
    ("temperature", temperature, 0),
  ):
    if not value >= least:
      raise ValueError(
        f"{name} must be at least {least}, got {value}; "
        f"set config.rollout.{name}."
      )
  if not 0 <= step < 2**32:
    raise ValueError(
      f"step must be in [0, 2**32), got {step}; it names the samples."
    )


def _check_prompts(
  batch: types.PromptBatch, engine: RolloutEngine, max_tokens: int
) -> None:
  """Refuses prompts that JetStream or the decoder would serve wrongly."""
  longest = engine.config.max_positions - max_tokens
  size, vocab_size = batch.prompt_ids.shape[1], engine.config.vocab_size
  for row in np.flatnonzero(batch.is_real):
    length = int(batch.prompt_length[row])
    if not 1 <= length <= min(size, longest):
      raise ValueError(
        f"a prompt must have 1 to {min(size, longest)} tokens beside "
        f"{max_tokens} completion tokens, prompt {row} has {length}; "
        "set config.data.max_prompt_tokens."
      )
    ids = batch.prompt_ids[row, :length]
    if ids.min() < 0 or ids.max() >= vocab_size:
      raise ValueError(
        f"token ids must be in [0, {vocab_size}), prompt {row} has "
        f"{ids.min()} to {ids.max()}; use the checkpoint's tokenizer."
      )


def _buckets(buckets: Sequence[int], max_tokens: int) -> tuple[int, ...]:
  """Returns rising bucket lengths whose last one holds `max_tokens`."""
  if not buckets:
    lengths = [_SMALLEST_COMPLETION_BUCKET]
    while lengths[-1] < max_tokens:
      lengths.append(2 * lengths[-1])
    return tuple(lengths)
  if max(buckets) < max_tokens:
    raise ValueError(
      f"the largest completion bucket must hold {max_tokens} tokens, got "
      f"{max(buckets)}; set config.rollout.completion_buckets."
    )
  return tuple(sorted(buckets))


def _smallest(buckets: Sequence[int], length: int) -> int:
  return next(bucket for bucket in buckets if bucket >= length)


def _labels(
  labels: Sequence[str], batch: types.PromptBatch, what: str
) -> Sequence[str]:
  """Returns a label a prompt, "" where none are given."""
  count = len(batch.prompt_length)
  if labels and len(labels) != count:
    raise ValueError(
      f"{what} must hold one for each of {count} prompts, got {len(labels)}."
    )
  return labels or [""] * count


def _make_groups(
  batch: types.PromptBatch,
  own: range,
  names: Sequence[str],
  conversations: Sequence[str],
  *,
  group_size: int,
  limit: int,
  temperature: float,
  step: int,
  is_shared: bool,
) -> list[list[Group]]:
  """Makes each prompt's groups: one, or one a sample when not shared.

  Masked prompts and those of other processes have none; the latter still count
  among equal prompts, so that the samples' names depend on no share.
  """
  seen: dict[bytes, int] = {}
  by_prompt: list[list[Group]] = []
  for row, (prompt_ids, length, is_real, name, conversation) in enumerate(
    zip(*batch, names, conversations, strict=True)
  ):
    content = name.encode() or prompt_ids[:length].tobytes()
    first = seen.get(content, 0)
    if is_real:
      seen[content] = first + group_size
    if not is_real or row not in own:
      by_prompt.append([])
      continue
    indices = range(first, first + group_size)
    by_prompt.append(
      [
        Group(
          prompt_ids,
          int(length),
          step=step,
          sample_indices=members,
          limit=limit,
          temperature=temperature,
          name=name,
          conversation=conversation,
        )
        for members in ([indices] if is_shared else [[i] for i in indices])
      ]
    )
  return by_prompt


def _raise_failure(by_prompt: Sequence[Sequence[Group]], step: int) -> None:
  errors = [
    request.error
    for groups in by_prompt
    for group in groups
    for request in group.requests
    if request.error is not None
  ]
  if errors:
    num_requests = sum(
      len(group.requests) for groups in by_prompt for group in groups
    )
    first = " ".join(str(errors[0]).split()) or type(errors[0]).__name__
    raise RolloutError(
      f"the rollout of step {step} failed in {len(errors)} of {num_requests} "
      f"requests: {first}"
    ) from errors[0]


def _reporter(
  by_prompt: Sequence[Sequence[Group]],
  on_group: Callable[[int, types.Rollouts], None],
) -> Callable[[int], None]:
  """Returns a call of `on_group` with the rows of a prompt."""

  def report(prompt: int) -> None:
    groups = by_prompt[prompt]
    lengths = [r.num_tokens for group in groups for r in group.requests]
    rows = _collect([groups], group_size=len(lengths), size=max(lengths))
    on_group(prompt, rows)

  return report


def _collect(
  by_prompt: Sequence[Sequence[Group]],
  *,
  group_size: int,
  size: int,
) -> types.Rollouts:
  """Pads the requests' tokens into arrays [B, G, T]."""
  requests = [
    [request for group in groups for request in group.requests]
    for groups in by_prompt
  ]
  shape = (len(by_prompt), group_size, size)
  rollouts = types.Rollouts(
    completion_ids=np.zeros(shape, np.int32),
    completion_mask=np.zeros(shape, bool),
    logprobs=np.zeros(shape, np.float32),
    truncated_logprobs=np.zeros(shape, np.float32),
    finish=np.full(shape[:2], types.FINISH_STOP, np.int32),
  )
  for prompt, row in enumerate(requests):
    for sample, request in enumerate(row):
      at = (prompt, sample, slice(request.num_tokens))
      ids, logprobs, truncated = request.columns()
      rollouts.completion_ids[at] = ids
      rollouts.completion_mask[at] = True
      rollouts.logprobs[at] = logprobs
      rollouts.truncated_logprobs[at] = truncated
      rollouts.finish[prompt, sample] = request.finish
  return rollouts
