import jax
import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.rollout import collect, inline
from toolrl_jax.rollout.request import Group, RolloutError

SERVERS = ("inline", "jetstream")


def _log_softmax(x):
  x = np.asarray(x, np.float64)
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _take(values, ids):
  return np.take_along_axis(values, ids[..., None], -1)[..., 0]


@pytest.mark.parametrize("name", SERVERS)
def test_rollout_greedy_equals_full_forward_argmax(
  rolling, batch, teacher_logits, name
):
  rollouts, _ = rolling.rollout(batch, name, temperature=0.0)
  logits = teacher_logits(batch, rollouts)
  mask = rollouts.completion_mask
  top = np.sort(logits, -1)[..., -2:]
  is_close = mask & (top[..., 1] - top[..., 0] < 1e-4)
  assert is_close.sum() <= 2
  is_argmax = logits.argmax(-1) == rollouts.completion_ids
  assert is_argmax[mask & ~is_close].all()
  # All samples of a greedy group are one completion, scored at temperature 1.
  assert (rollouts.completion_ids == rollouts.completion_ids[:, :1]).all()
  expected = _take(_log_softmax(logits), rollouts.completion_ids)
  np.testing.assert_allclose(rollouts.logprobs[mask], expected[mask], atol=1e-5)


def test_rollout_greedy_is_the_same_in_both_servers(
  rolling, batch, assert_same
):
  loop, _ = rolling.rollout(batch, "inline", temperature=0.0)
  driver, _ = rolling.rollout(batch, "jetstream", temperature=0.0)
  assert_same(loop, driver)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_rollout_logprobs_equal_teacher_forced_ones(
  rolling, batch, teacher_logits, temperature
):
  rollouts, _ = rolling.rollout(batch, temperature=temperature)
  scaled = teacher_logits(batch, rollouts) / temperature
  expected = _take(_log_softmax(scaled), rollouts.completion_ids)
  mask = rollouts.completion_mask
  np.testing.assert_allclose(rollouts.logprobs[mask], expected[mask], atol=1e-5)
  np.testing.assert_array_equal(rollouts.logprobs, rollouts.truncated_logprobs)
  assert (rollouts.logprobs[~mask] == 0).all()


def test_rollout_truncated_logprobs_equal_those_of_the_kept_tokens(
  rolling, batch, teacher_logits
):
  settings = {"top_p": 0.9, "top_k": 10}
  rollouts, _ = rolling.rollout(batch, settings=settings)
  full = _log_softmax(teacher_logits(batch, rollouts))
  order = np.sort(full, -1)[..., ::-1]
  weights = np.exp(full) * (full >= order[..., 9:10])
  ranked = np.sort(weights, -1)[..., ::-1]
  share = ranked.cumsum(-1) / ranked.sum(-1, keepdims=True)
  last = _take(ranked, (share < 0.9).sum(-1))
  kept = np.where(weights >= last[..., None], weights, 0)
  with np.errstate(divide="ignore"):
    expected = np.log(kept / kept.sum(-1, keepdims=True))
  mask = rollouts.completion_mask
  ids = rollouts.completion_ids
  # Only chosen from what is kept, and scored under both distributions.
  assert np.isfinite(_take(expected, ids)[mask]).all()
  np.testing.assert_allclose(
    rollouts.truncated_logprobs[mask], _take(expected, ids)[mask], atol=1e-5
  )
  np.testing.assert_allclose(
    rollouts.logprobs[mask], _take(full, ids)[mask], atol=1e-5
  )


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
  "settings",
  [
    {"decode_chunk": 1},
    {"decode_chunk": 4, "refill": 0},
    {"decode_chunk": 16, "refill": 1},
  ],
  ids=str,
)
def test_rollout_bits_do_not_depend_on_chunk_refill_or_server(
  rolling, batch, plain, assert_same, name, settings
):
  rollouts, _ = rolling.rollout(batch, name, settings=settings)
  assert_same(rollouts, plain[0])


@pytest.mark.parametrize("name", SERVERS)
def test_rollout_bits_do_not_depend_on_the_order_of_prompts(
  rolling, batch, plain, assert_same, name
):
  order = np.array([3, 0, 4, 2, 1])
  moved = types.PromptBatch(*(field[order] for field in batch))
  rollouts, _ = rolling.rollout(moved, name)
  assert_same(rollouts, types.Rollouts(*(field[order] for field in plain[0])))


def test_run_bits_do_not_depend_on_the_order_inside_a_group(
  rolling, batch, plain
):
  engine = rolling.engine()
  engine.reserve(prompt_size=32, completion_size=24, group_size=4)
  group = Group(
    batch.prompt_ids[3], 20, step=2, sample_indices=[2, 0, 3, 1], limit=18,
    temperature=1.0,
  )  # fmt: skip
  inline.InlineLoop(engine).run([group])
  for request, sample in zip(group.requests, (2, 0, 3, 1)):
    ids, logprobs, _ = request.columns()
    mask = plain[0].completion_mask[3, sample]
    np.testing.assert_array_equal(ids, plain[0].completion_ids[3, sample][mask])
    np.testing.assert_array_equal(logprobs, plain[0].logprobs[3, sample][mask])


@pytest.mark.parametrize("slots", [3, 16])
def test_rollout_at_other_slot_counts_differs_by_rounding_only(
  rolling, batch, plain, slots
):
  rollouts, _ = rolling.rollout(batch, settings={"slots": slots})
  base = plain[0]
  is_equal = (rollouts.completion_ids == base.completion_ids).all(-1)
  # A token flips where its uniform number falls between two roundings.
  assert (~is_equal).sum() <= 1
  np.testing.assert_allclose(
    rollouts.logprobs[is_equal], base.logprobs[is_equal], atol=1e-5
  )


@pytest.mark.parametrize(
  "change", [{"step": 3}, {"settings": {"seed": 6}}], ids=str
)
def test_rollout_of_another_step_or_seed_differs(rolling, batch, plain, change):
  rollouts, _ = rolling.rollout(batch, **change)
  is_equal = (rollouts.completion_ids == plain[0].completion_ids).all(-1)
  assert is_equal.sum() <= 2


def test_rollout_samples_a_repeated_prompt_anew(rolling, batch, plain):
  twice = types.PromptBatch(*(field[[3, 3]] for field in batch))
  rollouts, _ = rolling.rollout(twice)
  np.testing.assert_array_equal(
    rollouts.completion_ids[0], plain[0].completion_ids[3]
  )
  rows = {row.tobytes() for row in rollouts.completion_ids.reshape(8, -1)}
  assert len(rows) == 8


def test_rollout_runs_one_prefill_a_group(rolling, batch, plain):
  assert plain[1].num_prefills == 5
  _, stats = rolling.rollout(batch, "jetstream")
  assert stats.num_prefills == 5


@pytest.mark.parametrize("name", SERVERS)
def test_rollout_of_repeated_layout_prefills_every_request(
  rolling, batch, plain, name
):
  settings = {"layout": "repeated"}
  rollouts, stats = rolling.rollout(batch, name, settings=settings)
  assert stats.num_prefills == 5 * 4
  base = plain[0]
  is_equal = (rollouts.completion_ids == base.completion_ids).all(-1)
  assert (~is_equal).sum() <= 1
  np.testing.assert_allclose(
    rollouts.logprobs[is_equal], base.logprobs[is_equal], atol=1e-5
  )


@pytest.mark.parametrize("name", SERVERS)
def test_rollout_of_single_samples_fills_all_rows(rolling, batch, name):
  # Held-out evaluation: one completion a prompt, on an engine made for four.
  order = np.arange(15) % 5
  many = types.PromptBatch(*(field[order] for field in batch))
  rollouts, stats = rolling.rollout(
    many, name, group_size=1, temperature=0.0, max_tokens=1
  )
  # 15 prompts of one token on 8 rows: two waves. Five banks would take three.
  assert stats.num_iterations == 2
  assert stats.num_prefills == 15
  assert (rollouts.completion_ids[:5] == rollouts.completion_ids[5:10]).all()


@pytest.mark.parametrize("name", SERVERS)
def test_rollout_leaves_masked_groups_empty_and_free(
  rolling, batch, plain, assert_same, name
):
  is_real = np.array([True, False, False, True, False])
  lengths = np.where(is_real, batch.prompt_length, 0).astype(np.int32)
  masked = batch._replace(is_real=is_real, prompt_length=lengths)
  rollouts, stats = rolling.rollout(masked, name)
  assert stats.num_prefills == 2
  assert not rollouts.completion_mask[~is_real].any()
  assert not rollouts.completion_ids[~is_real].any()
  assert_same(
    types.Rollouts(*(field[is_real] for field in rollouts)),
    types.Rollouts(*(field[is_real] for field in plain[0])),
  )


@pytest.mark.parametrize("name", SERVERS)
def test_rollout_of_masked_groups_only_does_no_work(rolling, batch, name):
  rollouts, stats = rolling.rollout(
    batch._replace(is_real=np.zeros(5, bool)), name, completion_buckets=(8, 24)
  )
  assert rollouts.completion_ids.shape == (5, 4, 8)
  assert not rollouts.completion_mask.any()
  assert stats.num_prefills == stats.num_generate_calls == 0


def test_rollout_tells_how_each_completion_ended(plain):
  rollouts = plain[0]
  lengths = rollouts.completion_mask.sum(-1)
  last = _take(rollouts.completion_ids, np.maximum(lengths - 1, 0))
  is_stop = np.isin(last, (3, 7, 11))
  assert 0 < is_stop.sum() < is_stop.size
  assert (rollouts.finish[is_stop] == types.FINISH_STOP).all()
  assert (rollouts.finish[~is_stop] == types.FINISH_LENGTH).all()
  assert (lengths[~is_stop] == 18).all()
  # Stopped inside a chunk of 4 as well as at its end, and never run past it.
  assert (lengths[is_stop] % 4 != 0).any()
  before = rollouts.completion_mask.copy()
  np.put_along_axis(before, lengths[..., None] - 1, False, -1)
  assert not np.isin(rollouts.completion_ids, (3, 7, 11))[before].any()


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("max_tokens", [1, 4, 8])
def test_rollout_ends_at_the_limit_also_on_the_border_of_a_chunk(
  rolling, batch, plain, name, max_tokens
):
  rollouts, stats = rolling.rollout(batch, name, max_tokens=max_tokens)
  base = plain[0]
  np.testing.assert_array_equal(
    rollouts.completion_mask[..., :max_tokens],
    base.completion_mask[..., :max_tokens],
  )
  np.testing.assert_array_equal(
    rollouts.logprobs[..., :max_tokens], base.logprobs[..., :max_tokens]
  )
  assert not rollouts.completion_mask[..., max_tokens:].any()
  # A row that ends on the border is free at once: no chunk runs empty.
  assert stats.num_iterations <= 3 * max_tokens


@pytest.mark.parametrize("name", SERVERS)
def test_rollout_pads_to_the_smallest_bucket_that_holds_the_longest(
  rolling, batch, plain, assert_same, name
):
  # The decode state changes its sizes between the rollouts of one engine.
  with collect.start(rolling.engine(), name) as server:
    first = rolling.serve(server, batch, completion_buckets=(24, 4))
    short = rolling.serve(
      server, batch, max_tokens=3, completion_buckets=(4, 24)
    )
    single = rolling.serve(server, batch, group_size=1)
    again = rolling.serve(server, batch)
  assert short.completion_ids.shape == (5, 4, 4)
  assert single.completion_ids.shape == (5, 1, 24)
  assert_same(first, plain[0])
  assert_same(again, plain[0])


def test_default_buckets_are_powers_of_two_from_64():
  assert collect._buckets((), 3) == (64,)
  assert collect._buckets((), 200) == (64, 128, 256)


@pytest.mark.parametrize("name", SERVERS)
def test_sync_gives_what_a_fresh_engine_gives(
  rolling, batch, plain, assert_same, other_params, params, name
):
  expected, _ = rolling.rollout(batch, settings={"params": other_params})
  with collect.start(rolling.engine(), name) as server:
    assert_same(rolling.serve(server, batch), plain[0])
    server.sync(other_params, 1)
    assert server.engine.box.version == 1
    assert_same(rolling.serve(server, batch), expected)
    server.sync(params, 2)
    assert_same(rolling.serve(server, batch), plain[0])


def test_sync_refuses_while_requests_are_in_flight(rolling, batch, params):
  engine = rolling.engine()
  group = Group(
    batch.prompt_ids[0], 9, step=0, sample_indices=[0], limit=4,
    temperature=1.0,
  )  # fmt: skip
  engine.ledger.open([group])
  with pytest.raises(RolloutError, match="1 requests in flight must not swap"):
    engine.swap(params, 1)
  with pytest.raises(RolloutError, match="must not change its sizes"):
    engine.reserve(prompt_size=32, completion_size=24, group_size=4)


def test_servers_decode_the_same_chunks(rolling, batch, plain):
  # No run-ahead: JetStream's own queue would decode chunks for ended rows.
  _, stats = rolling.rollout(batch, "jetstream")
  assert stats == plain[1]
  tokens = plain[0].completion_mask.sum()
  assert stats.num_tokens == tokens
  assert stats.occupancy_frac == tokens / (stats.num_iterations * 8)


def test_stats_start_again_after_a_reset(rolling, batch):
  with collect.start(rolling.engine(), "inline") as server:
    rolling.serve(server, batch)
    first = server.stats
    server.reset_stats()
    assert server.stats.num_tokens == 0
    rolling.serve(server, batch)
    assert server.stats == first


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"group_size": 0}, "group_size must be at least 1, got 0"),
    ({"max_tokens": 0}, "max_completion_tokens must be at least 1"),
    ({"temperature": -0.5}, "temperature must be at least 0"),
    ({"temperature": float("nan")}, "temperature must be at least 0"),
    ({"step": -1}, "step must be in"),
    ({"max_tokens": 25}, "largest completion bucket must hold 25 tokens"),
    ({"max_tokens": 230, "completion_buckets": ()}, "prompt 1 has 32"),
  ],
)
def test_rollout_refuses_settings_before_any_work(
  rolling, batch, change, message
):
  with collect.start(rolling.engine(), "inline") as server:
    with pytest.raises(ValueError, match=message):
      rolling.serve(server, batch, **change)
    assert server.stats.num_prefills == 0


@pytest.mark.parametrize(
  ("prompts", "message"),
  [
    ([[5], []], "prompt 1 has 0"),
    ([[5] * 250], "prompt 0 has 250"),
    ([[5, 120]], "prompt 0 has 5 to 120"),
    ([[-1]], "token ids must be in"),
  ],
)
def test_rollout_refuses_prompts_before_any_work(rolling, prompts, message):
  with collect.start(rolling.engine(), "jetstream") as server:
    with pytest.raises(ValueError, match=message):
      rolling.serve(server, prompts)
    assert server.stats.num_prefills == 0


def test_rollout_takes_lists_of_token_ids(rolling, batch, plain, assert_same):
  prompts = [
    ids[:length].tolist()
    for ids, length in zip(batch.prompt_ids, batch.prompt_length)
  ]
  rollouts, _ = rolling.rollout(prompts)
  assert_same(rollouts, plain[0])


def test_start_refuses_an_unknown_server(rolling):
  with (
    pytest.raises(ValueError, match='"jetstream" or "inline"'),
    collect.start(rolling.engine(), "grpc"),
  ):
    pass


@pytest.mark.parametrize("name", SERVERS)
def test_rollout_serves_sharded_parameters(rolling, batch, plain, params, name):
  mesh = jax.make_mesh(
    (2,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  spec = jax.sharding.PartitionSpec

  def shard(leaf):
    last = "tensor" if leaf.ndim == 3 and leaf.shape[-1] % 2 == 0 else None
    axes = (*[None] * (leaf.ndim - 1), last)
    return jax.device_put(leaf, jax.sharding.NamedSharding(mesh, spec(*axes)))

  settings = {"params": jax.tree.map(shard, params)}
  rollouts, stats = rolling.rollout(batch, name, settings=settings)
  assert stats.num_prefills == 5
  base = plain[0]
  is_equal = (rollouts.completion_ids == base.completion_ids).all(-1)
  assert (~is_equal).sum() <= 1
  np.testing.assert_allclose(
    rollouts.logprobs[is_equal], base.logprobs[is_equal], atol=1e-5
  )
