"""The JetStream engine over the shared-prompt decoder.

From requests (token ids, limit, temperature) to tokens with log-probabilities.
It knows neither text nor rewards, and leaves the order of requests to the
servers. JetStream's API is bent in three places:

1. `prefill` returns the request's id. JetStream deletes what `prefill` returns
   after `insert`; the real prefix stays with the request's group, so a prompt
   is computed once however many requests continue it. The prompts that a
   rollout runs together are computed when the first of them is needed.
2. `generate` returns several tokens a row, decoded in one compiled loop.
3. No method raises for what happens on the device: the requests concerned
   fail, and the server reports them.

Layout "shared" keeps each prompt once, in one of a few banks that the rows of
its group name. Where there would be as many banks as rows, and in the layout
"repeated", each row owns a bank.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from toolrl_jax.model import decoder
from toolrl_jax.model.presets import DecoderConfig
from toolrl_jax.rollout import (
  decode_loop,
  jetstream_compat,
  policy,
  prefix_store,
  prompts,
  sampling,
  token_forms,
)
from toolrl_jax.rollout import ledger as ledger_lib
from toolrl_jax.rollout import request as requests_lib

_NEVER = np.iinfo(np.int32).max


class RolloutEngine(jetstream_compat.SingleEngine):
  """Prefills prompts once a group and decodes rows in chunks.

  Attributes:
    slots: Decode rows (R).
    group_size: Rollouts a prompt that the banks are made for (G).
    layout: "shared" or "repeated".
    prefill_rows: Prompts that run in one call.
    box: The served parameters and their version.
    store: Conversations of these parameters, for their next turn.
    ledger: Who is in flight.
    programs: The compiled device programs.
  """

  def __init__(
    self,
    config: DecoderConfig,
    params: decoder.Params,
    *,
    slots: int,
    group_size: int,
    decode_chunk: int = 16,
    refill: int = 4,
    layout: str = "shared",
    prefill_rows: int = 1,
    prefix_store_tokens: int = 0,
    is_unstacked: bool = True,
    top_p: float = 1.0,
    top_k: int = 0,
    stop_ids: Sequence[int] = (),
    seed: int = 0,
    compute_dtype: Any = jnp.float32,
  ):
    """Keeps the parameters and prepares the programs.

    Args:
      config: Shape of the decoder.
      params: Parameter pytree; neither donated nor deleted here.
      slots: Decode rows (R), at least 1.
      group_size: Rollouts a prompt (G) that most rollouts will ask for.
      decode_chunk: Most tokens a decode call gives each row, at least 1.
      refill: A call ends early when this many rows ended and a request
        waits; 0 is never.
      layout: "shared" computes a group's prompt once, "repeated" once a
        request.
      prefill_rows: Prompts that run in one call, at least 1; short calls are
        filled up.
      prefix_store_tokens: Most tokens whose keys and values are kept on the
        host for the next turn; 0 is off.
      is_unstacked: Decode from a copy of the weights in the compute dtype,
        with the layers taken apart: faster, for the memory of the copy.
      top_p: Nucleus, in (0, 1]; 1 is off.
      top_k: Most probable tokens kept; 0 is off.
      stop_ids: Tokens that end a completion.
      seed: Seed of all samples, in [0, 2**32).
      compute_dtype: Dtype of the matrix products and of the cache.

    Raises:
      ValueError: A setting is out of its range.
    """
    if layout not in ("shared", "repeated"):
      raise ValueError(
        f'layout must be "shared" or "repeated", got {layout!r}; '
        "set config.rollout.layout."
      )
    for name, value, least in (
      ("slots", slots, 1),
      ("group_size", group_size, 1),
      ("decode_chunk", decode_chunk, 1),
      ("refill", refill, 0),
      ("prefill_rows", prefill_rows, 1),
      ("prefix_store_tokens", prefix_store_tokens, 0),
    ):
      if value < least:
        raise ValueError(
          f"{name} must be at least {least}, got {value}; "
          f"set config.rollout.{name}."
        )
    if not 0 <= seed < 2**32:
      raise ValueError(
        f"seed must be in [0, 2**32), got {seed}; set config.seed."
      )
    self.config = config
    self.slots, self.group_size, self.layout = slots, group_size, layout
    self.options = sampling.make_options(
      top_p=top_p, top_k=top_k, stop_ids=stop_ids,
      vocab_size=config.vocab_size,
    )  # fmt: skip
    self.seed = seed
    self.prefill_rows = prefill_rows
    self.store = prefix_store.PrefixStore(prefix_store_tokens)
    self._decode_chunk, self._refill = decode_chunk, refill
    dtype = jnp.dtype(compute_dtype)
    self.box = policy.PolicyBox(
      params, config, compute_dtype=dtype, is_unstacked=is_unstacked
    )
    self.programs = decode_loop.make_programs(
      config, self.options, num_steps=decode_chunk, compute_dtype=dtype,
      placed=self.box.placed,
    )  # fmt: skip
    # Contexts are thread-local in JAX, and the driver calls from threads.
    self._precision = jax.config.jax_default_matmul_precision
    self.ledger = ledger_lib.RequestLedger(slots)
    self._sizes: tuple[int, int] | None = None

  # --- what the servers need beside JetStream's API ---

  def reserve(
    self, *, prompt_size: int, completion_size: int, group_size: int
  ) -> None:
    """Sets the sizes of the next rollout; nothing may be in flight.

    The decode state is made anew only when a size changes.

    Args:
      prompt_size: Prompt bucket (P).
      completion_size: Completion bucket (T).
      group_size: Rollouts a prompt (G) of the next rollout.

    Raises:
      RolloutError: Requests are in flight.
    """
    self.ledger.require_idle("change its sizes")
    self.ledger.set_banks(num_banks(self.slots, group_size, self.layout))
    self._sizes = (prompt_size, completion_size)

  def swap(self, params: decoder.Params, version: int) -> None:
    """Serves other parameters from now on; nothing may be in flight.

    Args:
      params: Parameter pytree of the same shapes; whoever made it must not
        donate or delete it while it is served.
      version: Number of the policy, kept as `box.version`.

    Raises:
      RolloutError: Requests are in flight.
    """
    jax.block_until_ready(params)
    self.ledger.require_idle("swap its parameters")
    self.store.clear()  # its numbers are of the old weights
    self.box.replace(params, version)

  # --- JetStream's API ---

  def prefill(
    self,
    *,
    params: policy.PolicyBox,
    existing_prefix=None,
    padded_tokens,
    true_length,
  ) -> np.ndarray:
    """Runs a group's prompt unless that is done; returns the request's id.

    A failure fails the request; its id still travels on to `insert`, because
    the driver has no other way to end it.
    """
    del existing_prefix, true_length
    request = padded_tokens.request
    group = request.group
    try:
      if request.is_cancelled:
        raise requests_lib.CancelledRequestError("the request was cancelled.")
      if not request.is_ended and group.prefix is None:
        with self._context():
          self._run_prompts(params.params, group)
    except Exception as error:  # noqa: BLE001 - becomes a failed request
      self.ledger.fail([request], error)
    # A NumPy leaf: JetStream deletes the jax arrays of a prefix.
    return np.array([self.ledger.hand_out(request)], np.int64)

  def insert(self, prefix, decode_state, slot: int):
    """Puts a request on a row; its prompt into a bank if it is the first."""
    request = self.ledger.seat(int(prefix[0]), slot)
    if request.is_ended:
      return decode_state
    try:
      with self._context():
        return self._insert(request, decode_state, slot)
    except Exception as error:  # noqa: BLE001 - becomes a failed request
      self.ledger.fail([request], error)
      if decode_state is not None and not _is_deleted(decode_state):
        return decode_state
      # The call that failed had consumed the state.
      self.ledger.fail_seated(error)
      return None

  def generate(self, params: policy.PolicyBox, decode_state):
    """Decodes a chunk; a failure fails all that the state held."""
    num_new = np.zeros(self.slots, np.int32)
    token_ids = np.zeros((self.slots, self._decode_chunk), np.int32)
    try:
      with self._context():
        decode_state = self._without_cancelled(decode_state)
        if self.ledger.live():
          decode_state, chunk = self._generate(
            params.decode_params, decode_state
          )
          self._record(chunk, decode_state)
          token_ids, num_new = chunk.token_ids, chunk.num_tokens
    except Exception as error:  # noqa: BLE001 - becomes failed requests
      self.ledger.fail_seated(error)
      jetstream_compat.delete_pytree(decode_state)
      decode_state = None
    rows = self.ledger.clear_ended_rows()
    if decode_state is not None and self.ledger.is_idle:
      # Until the next rollout the update needs the memory more.
      jetstream_compat.delete_pytree(decode_state)
      decode_state = None
    return decode_state, token_forms.chunk_tokens(token_ids, num_new, rows)

  def init_decode_state(self, *args, **kwargs) -> Any:
    """Returns no state: `insert` makes one of the reserved sizes."""
    del args, kwargs
    return None  # noqa: RET501

  def load_params(self, *args, **kwargs) -> policy.PolicyBox:
    """Returns the box of the served parameters."""
    del args, kwargs
    return self.box

  def build_tokenizer(self, metadata) -> token_forms.StopTokenizer:
    """Returns the tokenizer that knows the stop tokens."""
    del metadata
    return token_forms.StopTokenizer(self.options.stop_ids)

  @property
  def max_concurrent_decodes(self) -> int:
    """Decode rows."""
    return self.slots

  @property
  def max_prefill_length(self) -> int:
    """Longest context; prompts are checked before they are submitted."""
    return self.config.max_positions

  # --- private ---

  def _context(self):
    if self._precision is None:
      return contextlib.nullcontext()
    return jax.default_matmul_precision(self._precision)

  def _run_prompts(
    self, params: decoder.Params, group: requests_lib.Group
  ) -> None:
    """Runs the prompts of a group and its mates, or the rest of its own."""
    if group.stored is not None:
      members: Sequence[requests_lib.Group] = [group]
      prefix = self.programs.extend(params, *prompts.extension_arguments(group))
      self.ledger.count(num_reused_tokens=group.stored.num_tokens)
    else:
      members = group.mates
      prefix = self.programs.prefill(
        params, *prompts.prompt_rows(members, self.prefill_rows)
      )
    open_groups = [member for member in members if member.num_open]
    for member in open_groups:
      member.prefix = prefix
    self.ledger.count(num_prefills=len(open_groups), num_prefill_calls=1)

  def _insert(self, request: requests_lib.Request, state, row: int):
    state = self._state_of_sizes(state)
    group, prefix, ledger = request.group, request.group.prefix, self.ledger
    if ledger.is_row_banked:
      bank = row
      state = self._write(state, group, bank)
      if group.num_uninserted == 0:
        group.prefix = None
    elif group.bank is None:
      bank = ledger.free_bank()
      state = self._write(state, group, bank)
      ledger.take_bank(group, bank)
      # The bank holds the prompt now; its siblings need the logits only.
      group.prefix = prefix._replace(k=None, v=None)
    else:
      bank = group.bank
    return self.programs.start_row(
      state, np.int32(row), np.int32(bank), prefix.logits,
      np.int32(group.prefix_row), np.int32(request.limit),
      np.float32(request.temperature), np.uint32(self.seed), request.key_words,
    )  # fmt: skip

  def _write(self, state, group: requests_lib.Group, bank: int):
    return self.programs.write_bank(
      state, group.prefix.k, group.prefix.v, np.int32(group.prefix_row),
      np.int32(group.prompt_length), np.int32(bank),
    )  # fmt: skip

  def _state_of_sizes(self, state):
    """Returns the state, or an idle one of the reserved sizes."""
    sizes = (self.ledger.num_banks, *self._sizes)
    if state is not None:
      banks, prompt_size = state.cache.prefix_k.shape[1:3]
      if sizes == (banks, prompt_size, state.cache.k.shape[2]):
        return state
      # Freed first: two states may not fit. No row runs on it, since sizes
      # change only while the engine is idle.
      jetstream_compat.delete_pytree(state)
    return self.programs.init_state(
      slots=self.slots, num_banks=sizes[0], prompt_size=sizes[1],
      completion_size=sizes[2],
    )  # fmt: skip

  def _generate(self, params: decoder.Params, state):
    """Decodes a chunk and waits for it: device errors surface here."""
    refill = self._refill if self.ledger.num_waiting else 0
    state, chunk = self.programs.decode_chunk(
      params, state, np.int32(self.ledger.num_used_banks()),
      np.int32(refill or _NEVER),
    )  # fmt: skip
    return state, jax.device_get(chunk)

  def _without_cancelled(self, state):
    """Ends the cancelled requests and idles their rows."""
    rows = self.ledger.end_cancelled()
    if not rows:
      return state
    return self.programs.stop_rows(state, np.isin(np.arange(self.slots), rows))

  def _record(
    self, chunk: decode_loop.Chunk, state: decode_loop.DecodeState
  ) -> None:
    """Hands each row's new tokens to its request."""
    for row, request in enumerate(self.ledger.rows):
      if request is None or request.is_ended:
        continue
      count = int(chunk.num_tokens[row])
      new_ids = np.asarray(chunk.token_ids[row, :count])
      request.extend(
        new_ids,
        np.asarray(chunk.logprobs[row, :count]),
        np.asarray(chunk.truncated_logprobs[row, :count]),
        stop_ids=self.options.stop_ids,
      )
      if request.is_ended:
        if request.group.is_kept:
          request.kept = self._read(request, state, row)
        self.ledger.close(request)
      request.tell(new_ids)
    self.ledger.count(
      num_generate_calls=1,
      num_iterations=int(chunk.num_iterations),
      num_tokens=int(chunk.num_tokens.sum()),
    )

  def _read(
    self, request: requests_lib.Request, state, row: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Copies the keys and values of a prompt and its completion."""
    bank = row if request.group.bank is None else request.group.bank
    cache = self.programs.read_row(state, np.int32(row), np.int32(bank))
    return decode_loop.real_tokens(
      cache, request.group.prompt_length, request.num_tokens
    )


def num_banks(slots: int, group_size: int, layout: str) -> int:
  """Returns how many prompts a decode state holds at one time.

  A full batch of whole groups, half as many that are down to their longest
  completions, one that is ending and one that is starting; as many as rows
  when that is no fewer. Without the half, rows wait for banks: a fifth more
  iterations at 64 rows and completions whose lengths spread by half.
  """
  if layout == "repeated" or group_size == 1:
    return slots
  return min(slots, -(-slots // group_size) * 3 // 2 + 2)


def _is_deleted(tree) -> bool:
  return any(leaf.is_deleted() for leaf in jax.tree.leaves(tree))
