import heapq
import threading

import jax
import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.rollout import (
  engine,
  inline,
  jetstream_compat,
  request,
  token_forms,
)

_token_utils = jetstream_compat.orchestrator.token_utils


def _group(batch, row=0, samples=1, limit=6):
  return request.Group(
    batch.prompt_ids[row], int(batch.prompt_length[row]), step=0,
    sample_indices=range(samples), limit=limit, temperature=1.0,
  )  # fmt: skip


def _walk(group, token_ids, *, limit, before=0):
  """Feeds one chunk of a row through JetStream's own reading of it."""
  wanted = group.requests[0]
  wanted.limit = limit
  zeros = np.zeros(before, np.float32)
  wanted.extend(zeros.astype(np.int32) + 50, zeros, zeros, stop_ids=(3,))
  count = len(token_ids)
  padded = np.array([token_ids + [9] * (4 - count)], np.int32)
  logprobs = np.zeros(count, np.float32)
  wanted.extend(padded[0, :count], logprobs, logprobs, stop_ids=(3,))
  chunk = token_forms.chunk_tokens(padded, np.array([count]), (wanted,))
  samples, complete = _token_utils.process_result_tokens(
    tokenizer=token_forms.StopTokenizer((3,)),
    slot=0,
    slot_max_length=limit,
    result_tokens=chunk.convert_to_numpy(),
    is_client_side_tokenization=True,
    complete=np.zeros(1, bool),
  )
  return samples[0].token_ids, bool(complete[0]), wanted.finish


@pytest.mark.parametrize(
  ("token_ids", "limit", "before", "expected"),
  [
    # A live row: every column counts and it goes on, token 0 included.
    ([5, 0, 6, 8], 9, 0, ([5, 0, 6, 8], False, None)),
    # An early exit of the loop leaves a live row with fewer columns.
    ([5, 6], 9, 4, ([5, 6], False, None)),
    # A stop token inside the chunk; JetStream leaves it out.
    ([5, 3], 9, 0, ([5], True, types.FINISH_STOP)),
    ([3], 9, 4, ([], True, types.FINISH_STOP)),
    # The limit inside the chunk, and exactly on its border.
    ([5, 6], 6, 4, ([5, 6], True, types.FINISH_LENGTH)),
    ([5, 6, 7, 8], 8, 4, ([5, 6, 7, 8], True, types.FINISH_LENGTH)),
    # A stop token as the last one allowed.
    ([5, 6, 7, 3], 8, 4, ([5, 6, 7], True, types.FINISH_STOP)),
  ],
)
def test_chunk_tokens_end_rows_as_jetstream_reads_them(
  batch, token_ids, limit, before, expected
):
  got = _walk(_group(batch), token_ids, limit=limit, before=before)
  assert got == expected


def test_chunk_tokens_of_a_failed_row_complete_it_empty(batch):
  group = _group(batch)
  group.requests[0].error = ValueError("failed")
  chunk = token_forms.chunk_tokens(
    np.zeros((1, 4), np.int32), np.zeros(1, np.int32), tuple(group.requests)
  )
  samples, complete = _token_utils.process_result_tokens(
    tokenizer=token_forms.StopTokenizer((3,)), slot=0, slot_max_length=6,
    result_tokens=chunk, is_client_side_tokenization=True,
    complete=np.zeros(1, bool),
  )  # fmt: skip
  assert samples[0].token_ids == [] and complete.all()


def test_stop_tokenizer_stops_at_stop_tokens_only():
  tokenizer = token_forms.StopTokenizer((3, 7))
  assert tokenizer.stop_tokens == {3, 7}
  with pytest.raises(ValueError, match="prompts must be token ids"):
    tokenizer.encode("text")


@pytest.mark.parametrize(
  ("slots", "group_size", "layout", "expected"),
  [
    (16, 8, "shared", 5),
    (64, 4, "shared", 26),
    (8, 8, "shared", 3),
    (3, 8, "shared", 3),
    (16, 1, "shared", 16),
    (16, 8, "repeated", 16),
    (1, 8, "shared", 1),
  ],
)
def test_num_banks_holds_a_full_batch_and_groups_that_are_ending(
  slots, group_size, layout, expected
):
  assert engine.num_banks(slots, group_size, layout) == expected


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"slots": 0}, "slots must be at least 1, got 0"),
    ({"group_size": 0}, "group_size must be at least 1"),
    ({"decode_chunk": 0}, "decode_chunk must be at least 1"),
    ({"refill": -1}, "refill must be at least 0"),
    ({"layout": "tree"}, "layout must be"),
    ({"stop_ids": (500,)}, "stop tokens must be below"),
  ],
)
def test_engine_refuses_settings_out_of_range(rolling, change, message):
  with pytest.raises(ValueError, match=message):
    rolling.engine(**change)


def test_prefill_returns_a_handle_that_jetstream_cannot_delete(rolling, batch):
  made = rolling.engine()
  made.reserve(prompt_size=32, completion_size=24, group_size=4)
  group = _group(batch, samples=4)
  made.ledger.open([group])
  handles = [
    made.prefill(
      params=made.box,
      padded_tokens=token_forms.tokens_of(wanted),
      true_length=9,
    )
    for wanted in group.requests
  ]
  assert made.ledger.stats.num_prefills == 1
  for handle in handles:
    jetstream_compat.delete_pytree(handle)
  assert [int(h[0]) for h in handles] == [r.id for r in group.requests]
  state = made.init_decode_state()
  for row, handle in enumerate(handles):
    state = made.insert(handle, state, row)
  # The bank holds the prompt now: its keys and values are not kept twice.
  assert group.bank == 0 and group.prefix.k is None
  assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_generate_ends_early_only_when_a_request_waits(rolling, batch):
  made = rolling.engine(decode_chunk=16, refill=1)
  made.reserve(prompt_size=32, completion_size=24, group_size=4)
  calls = []
  decode_chunk = made.programs.decode_chunk

  def record(params, state, num_banks, refill):
    calls.append((int(num_banks), int(refill)))
    return decode_chunk(params, state, num_banks, refill)

  made.programs = made.programs._replace(decode_chunk=record)
  inline.InlineLoop(made).run(
    [_group(batch, row, samples=4, limit=6) for row in (0, 1, 3)]
  )
  # The last group waits first; then nothing does, and chunks run through.
  assert calls[0] == (2, 1)
  assert calls[-1][1] > 1000
  # The lowest free bank is taken again.
  assert max(num_banks for num_banks, _ in calls) <= 3


def test_engine_keeps_the_precision_of_the_thread_that_made_it(rolling, batch):
  with jax.default_matmul_precision("highest"):
    made = rolling.engine()
  seen = []

  def prefill(*args):
    seen.append(jax.config.jax_default_matmul_precision)
    raise ValueError("enough")

  made.programs = made.programs._replace(prefill=prefill)
  group = _group(batch)
  made.ledger.open([group])
  thread = threading.Thread(
    target=lambda: made.prefill(
      params=made.box,
      padded_tokens=token_forms.tokens_of(group.requests[0]),
      true_length=9,
    )
  )
  thread.start()
  thread.join()
  assert seen == ["highest"]


def test_key_words_name_step_prompt_and_sample():
  ids = np.array([5, 6, 7], np.int32)
  words = request.key_words(ids, step=9, sample_index=2)
  assert words.tolist()[::3] == [9, 2]
  # Written down once: hash of the prompt's int32 bytes.
  assert words.tolist()[1:3] == [3694361714, 1127379007]
  longer = request.key_words(np.append(ids, 0), step=9, sample_index=2)
  assert longer.tolist()[1:3] != words.tolist()[1:3]


def test_cache_follows_the_buckets_of_the_rollout(rolling, batch, config):
  made = rolling.engine()
  loop = inline.InlineLoop(made)
  init_state, shapes = made.programs.init_state, []

  def recording(**sizes):
    state = init_state(**sizes)
    assert state.cache.prefix_v.shape == state.cache.prefix_k.shape
    assert state.cache.v.shape == state.cache.k.shape
    shapes.append((state.cache.prefix_k.shape, state.cache.k.shape))
    return state

  made.programs = made.programs._replace(init_state=recording)

  def run(prompt_size, completion_size, group_size):
    made.reserve(
      prompt_size=prompt_size,
      completion_size=completion_size,
      group_size=group_size,
    )
    ids = batch.prompt_ids[0, :prompt_size]
    loop.run(
      [
        request.Group(
          ids, 9, step=0, sample_indices=range(group_size), limit=3,
          temperature=1.0,
        )
      ]
    )  # fmt: skip
    # Between rollouts the memory is free for the update.
    assert loop._state is None
    return shapes.pop()

  # Layers, banks or rows, tokens, key heads, head size; 256 is the maximum.
  assert config.max_positions == 256
  assert run(32, 24, 4) == ((2, 5, 32, 2, 8), (2, 8, 24, 2, 8))
  assert run(16, 8, 1) == ((2, 8, 16, 2, 8), (2, 8, 8, 2, 8))


def _ideal_iterations(lengths, slots):
  """Returns the iterations of rows that are refilled as soon as they end."""
  rows = [0] * slots
  for length in lengths:
    heapq.heapreplace(rows, rows[0] + int(length))
  return max(rows)


@pytest.mark.parametrize("name", ["inline", "jetstream"])
def test_rollout_decodes_little_more_than_the_ideal(rolling, batch, name):
  many = types.PromptBatch(*(field[np.arange(20) % 5] for field in batch))
  settings = {"decode_chunk": 16, "refill": 1}
  rollouts, stats = rolling.rollout(many, name, settings=settings)
  lengths = rollouts.completion_mask.sum(-1).ravel()
  assert (lengths < 10).sum() > 10 and (lengths == 18).sum() > 20
  assert stats.num_iterations <= 1.1 * _ideal_iterations(lengths, 8)
