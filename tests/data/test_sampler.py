"""The streak filter, its order and its state."""

import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from toolrl_jax.data import sampler


def make(num_prompts=1, **changes):
  settings = {"prompts_per_step": 1, "num_epochs": 12, "seed": 3} | changes
  ids = [f"row:{i}" for i in range(num_prompts)]
  return sampler.PromptSampler(ids, **settings)


def visited_epochs(prompts, outcomes):
  """Epochs in which the one prompt is visited; outcome of each epoch given."""
  epochs = []
  while (batch := prompts.next_batch()) is not None:
    epochs.append(batch.epoch)
    prompts.observe(batch.indices, np.array([outcomes(batch.epoch)]))
  return epochs


def test_next_batch_gives_every_prompt_once_an_epoch():
  prompts = make(7, prompts_per_step=3, num_epochs=2)
  batches = [prompts.next_batch() for _ in range(6)]
  assert [len(batch.indices) for batch in batches] == [3, 3, 1, 3, 3, 1]
  assert [batch.step for batch in batches] == [0, 1, 2, 3, 4, 5]
  assert [batch.epoch for batch in batches] == [0, 0, 0, 1, 1, 1]
  is_last = [batch.is_last_of_epoch for batch in batches]
  assert is_last == [False, False, True, False, False, True]
  for first in (0, 3):
    given = np.concatenate([b.indices for b in batches[first : first + 3]])
    assert sorted(given.tolist()) == list(range(7))
  assert prompts.next_batch() is None
  assert prompts.next_batch() is None


def test_next_batch_stops_at_max_steps():
  prompts = make(4, max_steps=3)
  assert [prompts.next_batch() is None for _ in range(5)] == [
    False,
    False,
    False,
    True,
    True,
  ]


def test_next_batch_orders_each_epoch_differently_but_repeatably():
  orders = []
  for _ in range(2):
    prompts = make(30, prompts_per_step=30, num_epochs=2)
    orders.append([prompts.next_batch().indices.tolist() for _ in range(2)])
  assert orders[0] == orders[1]
  assert orders[0][0] != orders[0][1]


def test_next_batch_keeps_the_order_of_the_others_when_some_are_left_out():
  plain = make(20, prompts_per_step=20, num_epochs=2)
  plain.next_batch()
  full = plain.next_batch().indices.tolist()
  filtered = make(20, prompts_per_step=20, num_epochs=2, streak=1)
  batch = filtered.next_batch()
  filtered.observe(batch.indices, batch.indices % 2 == 0)
  batch = filtered.next_batch()
  assert batch.indices.tolist() == [i for i in full if i % 2]
  assert batch.num_skipped == 10


# Epochs 0 to 11; a prompt that is always solved.
@pytest.mark.parametrize(
  ("streak", "reentry", "expected"),
  [
    (0, "skip_epoch", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    (1, "skip_epoch", [0, 2, 4, 6, 8, 10]),
    (2, "skip_epoch", [0, 1, 3, 4, 6, 7, 9, 10]),
    (3, "skip_epoch", [0, 1, 2, 4, 5, 6, 8, 9, 10]),
    (1, "permanent", [0]),
    (3, "permanent", [0, 1, 2]),
    (1, "probe", [0, 4, 8]),
    (2, "probe", [0, 1, 5, 9]),
  ],
)
def test_streak_visits_an_always_solved_prompt(streak, reentry, expected):
  prompts = make(streak=streak, reentry=reentry, probe_every_epochs=4)
  assert visited_epochs(prompts, lambda epoch: True) == expected


def test_streak_returns_after_a_failed_probe():
  # k = 1, probe every 4: solved at 0, left out 1-3, probe at 4 fails, so
  # visited at 5; solved there, left out 6-8, probe at 9 solved, out to 12.
  prompts = make(streak=1, reentry="probe", probe_every_epochs=4)
  assert visited_epochs(prompts, lambda epoch: epoch != 4) == [0, 4, 5, 9]


def test_streak_is_reset_by_an_unsolved_visit():
  # k = 2: solved, unsolved, solved, solved -> left out of epoch 4 only.
  solved = [True, False, True, True] + [False] * 8
  prompts = make(streak=2, reentry="skip_epoch")
  visited = visited_epochs(prompts, lambda epoch: solved[epoch])
  assert visited == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]


def test_streak_never_leaves_out_an_unsolved_prompt():
  for reentry in ("skip_epoch", "permanent", "probe"):
    prompts = make(streak=1, reentry=reentry)
    assert visited_epochs(prompts, lambda epoch: False) == list(range(12))


def test_probe_every_epoch_leaves_nothing_out():
  prompts = make(streak=1, reentry="probe", probe_every_epochs=1)
  assert visited_epochs(prompts, lambda epoch: True) == list(range(12))


def test_observe_takes_effect_only_at_the_next_epoch():
  prompts = make(2, streak=1, num_epochs=2)
  first = prompts.next_batch()
  prompts.observe(np.array([0, 1], np.int32), np.array([True, True]))
  second = prompts.next_batch()
  assert (first.epoch, second.epoch) == (0, 0)
  assert {int(first.indices[0]), int(second.indices[0])} == {0, 1}


def test_empty_epoch_passes_and_all_prompts_return():
  prompts = make(4, prompts_per_step=4, streak=1, num_epochs=3)
  batch = prompts.next_batch()
  prompts.observe(batch.indices, np.ones(4, bool))
  batch = prompts.next_batch()
  assert (batch.epoch, batch.step, batch.num_skipped) == (2, 1, 0)
  assert len(batch.indices) == 4


def test_permanent_run_ends_when_nothing_can_return():
  prompts = make(2, streak=1, reentry="permanent", num_epochs=10**9)
  for _ in range(2):
    batch = prompts.next_batch()
    prompts.observe(batch.indices, np.ones(1, bool))
  assert prompts.next_batch() is None


def test_lengths_group_prompts_of_similar_length():
  rng = np.random.default_rng(0)
  lengths = rng.integers(100, 2000, size=640)
  spreads = []
  for given in (None, lengths):
    prompts = make(640, prompts_per_step=16, num_epochs=1, lengths=given)
    batches = []
    while (batch := prompts.next_batch()) is not None:
      batches.append(batch.indices)
    assert sorted(np.concatenate(batches).tolist()) == list(range(640))
    spreads.append(np.mean([np.ptp(lengths[batch]) for batch in batches]))
  # Sorted in windows of 8 batches, a batch spans about an eighth.
  assert spreads[1] < spreads[0] / 5


def test_lengths_leave_the_short_batch_last():
  prompts = make(
    10, prompts_per_step=4, num_epochs=1, lengths=list(range(10, 20))
  )
  sizes = []
  while (batch := prompts.next_batch()) is not None:
    sizes.append(len(batch.indices))
  assert sizes == [4, 4, 2]


def test_metrics_count_visits_after_solved_ones():
  # Solved in visits 1, 1, 0, 1, 1: after one solved visit 1 (yes), 2 (no),
  # 4 (yes): 2 of 3. After two solved visits: visit 2 (no): 0 of 1.
  prompts = make(num_epochs=5)
  solved = [True, True, False, True, True]
  visited_epochs(prompts, lambda epoch: solved[epoch])
  metrics = prompts.metrics()
  assert metrics["filter/stay_1_frac"] == pytest.approx(2 / 3)
  assert metrics["filter/stay_2_frac"] == 0.0
  assert metrics["filter/skipped_prompts"] == 0.0


def test_metrics_leave_out_what_was_never_measured():
  assert make().metrics() == {"filter/skipped_prompts": 0.0}


def test_max_steps_left_counts_down_without_the_filter():
  prompts = make(7, prompts_per_step=3, num_epochs=2)
  left = [prompts.max_steps_left()]
  while prompts.next_batch() is not None:
    left.append(prompts.max_steps_left())
  assert left == [6, 5, 4, 3, 2, 1, 0]
  assert make(7, max_steps=2).max_steps_left() == 2


@st.composite
def runs(draw):
  num_prompts = draw(st.integers(1, 9))
  settings = {
    "prompts_per_step": draw(st.integers(1, 4)),
    "streak": draw(st.integers(0, 3)),
    "reentry": draw(st.sampled_from(["skip_epoch", "permanent", "probe"])),
    "probe_every_epochs": draw(st.integers(1, 3)),
    "num_epochs": draw(st.integers(1, 6)),
    "seed": draw(st.integers(0, 5)),
    "lengths": draw(
      st.none() | st.lists(st.integers(1, 9), min_size=9, max_size=9)
    ),
  }
  if settings["lengths"] is not None:
    settings["lengths"] = settings["lengths"][:num_prompts]
  return num_prompts, settings


def play(prompts, outcomes, num_batches):
  """Plays up to a number of batches; some of them are never observed."""
  trace = []
  while len(trace) < num_batches:
    batch = prompts.next_batch()
    if batch is None:
      break
    is_observed, bits = outcomes[batch.step % len(outcomes)]
    solved = np.array([bits >> int(i) & 1 for i in batch.indices], bool)
    if is_observed:
      prompts.observe(batch.indices, solved)
    trace.append(batch._replace(indices=batch.indices.tolist()))
  return trace


@hypothesis.given(
  run=runs(),
  outcomes=st.lists(
    st.tuples(st.booleans(), st.integers(0, 511)), min_size=1, max_size=6
  ),
  stop=st.integers(0, 20),
  is_json=st.booleans(),
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_restore_continues_bit_for_bit(run, outcomes, stop, is_json):
  num_prompts, settings = run
  whole = make(num_prompts, **settings)
  expected = play(whole, outcomes, 10**6)
  first = make(num_prompts, **settings)
  trace = play(first, outcomes, stop)
  state = first.state()
  if is_json:
    state = json.loads(json.dumps(state, default=lambda array: array.tolist()))
  second = make(num_prompts, **settings)
  second.restore(state)
  assert second.digest() == first.digest()
  trace += play(second, outcomes, 10**6)
  assert trace == expected
  assert second.digest() == whole.digest()


def test_state_between_batch_and_observation_continues():
  first, second = (make(4, streak=1, prompts_per_step=2) for _ in range(2))
  batch = first.next_batch()
  second.restore(first.state())
  for prompts in (first, second):
    prompts.observe(batch.indices, np.ones(2, bool))
  assert first.digest() == second.digest()


def test_state_is_a_copy():
  prompts = make(3, streak=1)
  state = prompts.state()
  batch = prompts.next_batch()
  prompts.observe(batch.indices, np.ones(1, bool))
  assert state["streak"].tolist() == [0, 0, 0]
  assert state["step"] == 0


def test_restore_refuses_other_data_and_allows_more_epochs():
  state = make(3).state()
  with pytest.raises(ValueError, match="ids_sha256"):
    make(4).restore(state)
  with pytest.raises(ValueError, match="streak=0, got 1"):
    make(3, streak=1).restore(state)
  with pytest.raises(ValueError, match="lengths_sha256"):
    make(3, lengths=[1, 2, 3]).restore(state)
  make(3, num_epochs=99, max_steps=7).restore(state)


def test_digest_changes_with_every_observation():
  prompts = make(3, streak=2)
  digests = {prompts.digest()}
  batch = prompts.next_batch()
  digests.add(prompts.digest())
  prompts.observe(batch.indices, np.ones(1, bool))
  digests.add(prompts.digest())
  assert len(digests) == 3
  assert all(len(digest) == 64 for digest in digests)


@pytest.mark.parametrize(
  "changes",
  [
    {"prompts_per_step": 0},
    {"streak": -1},
    {"probe_every_epochs": 0},
    {"num_epochs": 0},
    {"max_steps": -1},
    {"seed": -1},
    {"lengths": [1]},
  ],
)
def test_settings_out_of_range_are_refused(changes):
  with pytest.raises(ValueError, match="must"):
    make(2, **changes)


def test_ids_must_be_unique():
  with pytest.raises(ValueError, match="no id twice"):
    sampler.PromptSampler(["a", "a"], prompts_per_step=1)


def test_observe_refuses_unknown_indices():
  with pytest.raises(ValueError, match="pass the batch's own"):
    make(2).observe(np.array([2], np.int32), np.array([True]))


def test_sampler_not_shuffled_keeps_the_order_and_leaves_out_the_solved():
  order = sampler.PromptSampler(
    list("abcde"),
    prompts_per_step=2,
    streak=1,
    num_epochs=2,
    is_shuffled=False,
    lengths=[5, 4, 3, 2, 1],
  )
  seen = []
  while (batch := order.next_batch()) is not None:
    seen.append(batch.indices.tolist())
    order.observe(batch.indices, batch.indices == 1)
  assert seen == [[0, 1], [2, 3], [4], [0, 2], [3, 4]]
