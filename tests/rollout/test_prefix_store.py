import numpy as np
import pytest

from toolrl_jax.rollout import collect, prefix_store

SERVERS = ("inline", "jetstream")
STORE = {"prefix_store_tokens": 400}


def _cache(ids):
  """Numbers that tell the token and the place: [1, n, 1, 1]."""
  values = np.asarray(ids, np.float32) + 100 * np.arange(len(ids))
  return values.reshape(1, -1, 1, 1)


def _add(store, ids):
  ids = np.array(ids, np.int32)
  store.add(ids, _cache(ids), -_cache(ids))


def _find(store, ids):
  found = store.find(np.array(ids, np.int32))
  return None if found is None else (found.token_ids.tolist(), found.num_tokens)


def test_find_returns_the_longest_shared_beginning():
  store = prefix_store.PrefixStore(100)
  _add(store, [1, 2, 3, 4])
  _add(store, [1, 2, 9])
  assert _find(store, [1, 2, 3, 4, 5, 6]) == ([1, 2, 3, 4], 4)
  assert _find(store, [1, 2, 3, 7]) == ([1, 2, 3, 4], 3)
  assert _find(store, [1, 2, 9, 9]) == ([1, 2, 9], 3)
  assert _find(store, [2, 2, 3]) is None
  # The last token of a prompt has to run. Of equals the one used last.
  assert _find(store, [1, 2, 3]) == ([1, 2, 9], 2)
  assert _find(store, [1]) is None


def test_add_replaces_what_it_continues():
  store = prefix_store.PrefixStore(100)
  _add(store, [1, 2])
  _add(store, [1, 2, 3])
  assert store.num_tokens == 3
  found = store.find(np.array([1, 2, 3, 4], np.int32))
  np.testing.assert_array_equal(found.k[0, :, 0, 0], [1, 102, 203])
  np.testing.assert_array_equal(found.v, -found.k)


def test_add_drops_what_was_used_longest_ago():
  store = prefix_store.PrefixStore(6)
  _add(store, [1, 1])
  _add(store, [2, 2])
  _add(store, [3, 3])
  assert _find(store, [1, 1, 1]) is not None
  _add(store, [4, 4])
  assert store.num_tokens == 6
  assert _find(store, [2, 2, 2]) is None
  assert _find(store, [1, 1, 1]) is not None
  _add(store, [5] * 7)
  assert store.num_tokens == 6
  store.clear()
  assert store.num_tokens == 0 and _find(store, [1, 1, 1]) is None


def _turns(rolling, name, *, is_reusing, settings=None, kept=None):
  """Rolls three turns of two conversations out; returns all and the counts."""
  generator = np.random.default_rng(3)
  said = [generator.integers(0, 120, size).tolist() for size in (30, 41)]
  turns, counts = [], []
  engine = rolling.engine(**{**STORE, **(settings or {})})
  with collect.start(engine, name) as server:
    for turn in range(3):
      server.reset_stats()
      rollouts = rolling.serve(
        server, said, group_size=1, temperature=0.0, max_tokens=12, step=turn,
        reuse_prefixes=is_reusing,
      )  # fmt: skip
      counts.append(server.stats)
      turns.append(rollouts)
      for index, conversation in enumerate(said):
        mask = rollouts.completion_mask[index, 0]
        conversation += rollouts.completion_ids[index, 0][mask].tolist()
        conversation += generator.integers(0, 120, 5 + index).tolist()
    if kept is not None:
      kept.append(server.engine.store.num_tokens)
  return turns, counts


@pytest.fixture(scope="module")
def reused(rolling):
  """Three turns that reuse prefixes, on the inline server."""
  return _turns(rolling, "inline", is_reusing=True)


def test_next_turn_runs_its_new_tokens_only_and_answers_the_same(
  rolling, reused
):
  turns, counts = reused
  expected, plain_counts = _turns(rolling, "inline", is_reusing=False)
  for got, wanted in zip(turns, expected):
    np.testing.assert_array_equal(got.completion_ids, wanted.completion_ids)
    np.testing.assert_allclose(got.logprobs, wanted.logprobs, atol=2e-5)
  assert [count.num_reused_tokens for count in plain_counts] == [0, 0, 0]
  assert [count.num_prefills for count in counts] == [2, 2, 2]
  # All of the turn before: its prompts of 30 and 41 tokens and its answers.
  said = 30 + 41 + turns[0].completion_mask.sum()
  assert counts[0].num_reused_tokens == 0
  assert counts[1].num_reused_tokens == said
  said += 5 + 6 + turns[1].completion_mask.sum()
  assert counts[2].num_reused_tokens == said


@pytest.mark.parametrize(
  ("name", "settings"),
  [
    ("inline", {"decode_chunk": 16, "refill": 1}),
    ("jetstream", {}),
    ("jetstream", {"decode_chunk": 1}),
  ],
  ids=str,
)
def test_reused_bits_do_not_depend_on_server_or_chunk(
  rolling, reused, assert_same, name, settings
):
  turns, counts = _turns(rolling, name, is_reusing=True, settings=settings)
  for got, wanted in zip(turns, reused[0]):
    assert_same(got, wanted)
  for got, wanted in zip(counts, reused[1]):
    assert got.num_reused_tokens == wanted.num_reused_tokens


def test_store_stays_within_its_budget_and_small_ones_reuse_less(
  rolling, reused
):
  kept = []
  settings = {"prefix_store_tokens": 60}
  turns, counts = _turns(
    rolling, "inline", is_reusing=True, settings=settings, kept=kept
  )
  assert kept[0] <= 60
  assert counts[1].num_reused_tokens < reused[1][1].num_reused_tokens
  for got, wanted in zip(turns, reused[0]):
    np.testing.assert_array_equal(got.completion_ids, wanted.completion_ids)


@pytest.mark.parametrize("name", SERVERS)
def test_samples_of_a_group_share_a_stored_beginning(rolling, name):
  prompt = np.random.default_rng(5).integers(0, 120, 40).tolist()
  longer = [*prompt, 5, 6]
  with collect.start(rolling.engine(**STORE), name) as server:
    rolling.serve(server, [prompt], reuse_prefixes=True)
    # Four samples are kept; what they share is found in each of them.
    reused = rolling.serve(server, [longer], reuse_prefixes=True)
    assert server.stats.num_reused_tokens == 40
    plain = rolling.serve(server, [longer])
    assert server.stats.num_reused_tokens == 40
  is_equal = (reused.completion_ids == plain.completion_ids).all(-1)
  assert (~is_equal).sum() <= 1
  np.testing.assert_allclose(
    reused.logprobs[is_equal], plain.logprobs[is_equal], atol=2e-5
  )


@pytest.mark.parametrize("name", SERVERS)
def test_sync_forgets_the_keys_of_older_weights(
  rolling, assert_same, other_params, name
):
  prompt = np.random.default_rng(6).integers(0, 120, 40).tolist()
  longer = [*prompt, 5, 6]
  expected, _ = rolling.rollout([longer], settings={"params": other_params})
  with collect.start(rolling.engine(**STORE), name) as server:
    rolling.serve(server, [prompt], reuse_prefixes=True)
    assert server.engine.store.num_tokens > 40
    server.sync(other_params, 1)
    assert server.engine.store.num_tokens == 0
    got = rolling.serve(server, [longer], reuse_prefixes=True)
    assert server.stats.num_reused_tokens == 0
  assert_same(got, expected)


def test_rollout_refuses_to_reuse_prefixes_without_a_store(rolling, batch):
  with (
    collect.start(rolling.engine(), "inline") as server,
    pytest.raises(ValueError, match="reuse_prefixes needs a prefix store"),
  ):
    rolling.serve(server, batch, reuse_prefixes=True)
