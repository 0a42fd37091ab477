"""Packed = padded, accumulated = whole, and what both cost."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.data import dataset, prompt
from toolrl_jax.model import sharding, tokenizer
from toolrl_jax.training import blocks, state, step, update
from toolrl_jax.types import UpdateBatch

pytestmark = pytest.mark.usefixtures("quick_compile")

OPTIONS = step.UpdateOptions(
  remat="none", chunk_tokens=64, max_tokens=40, has_entropy=True, minibatches=2
)


def _unequal_batch(random_batch, *, dtype=np.float32, batch=6):
  """Groups of unequal length, so that packing pays at this small size."""
  drawn = random_batch(3, batch=batch, kept=3, prompt=200, size=40, dtype=dtype)
  length = np.resize([3, 200, 50, 17, 120, 1], batch).astype(np.int32)
  return drawn._replace(
    prompt_length=length,
    prompt_ids=drawn.prompt_ids * (np.arange(200) < length[:, None]),
  )


def _sums(params, arranged, config, options):
  add = jax.jit(
    functools.partial(step.add_block, config=config, options=options)
  )
  sums = step.no_sums(
    params, arranged.blocks[0], config=config, options=options
  )
  for block in arranged.blocks:
    sums = add(params, sums, block)
  return step.loss_and_grads(sums)


def _assert_close(one, other, rtol):
  np.testing.assert_allclose(one[0], other[0], rtol=rtol)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, rtol=0, atol=rtol * float(np.abs(b).max())
    ),
    one[1],
    other[1],
  )


@pytest.mark.parametrize("layout", ["shared", "repeated"])
def test_packed_and_accumulated_equal_the_whole_padded_batch_in_float64(
  tiny_config, tiny_params, random_batch, layout
):
  options = OPTIONS._replace(
    compute_dtype="float64", kl_coef=0.1, entropy_coef=0.01, layout=layout
  )
  with jax.enable_x64(True):
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tiny_params)
    batch = _unequal_batch(random_batch, dtype=np.float64)
    arrange = functools.partial(blocks.arrange, batch, layout=layout)
    whole = arrange(num_shards=1, is_packed=False)
    packed = arrange(num_shards=1)
    accumulated = arrange(num_shards=2, micro_groups=2)
    assert whole.blocks[0].packing is None
    assert packed.blocks[0].packing is not None
    assert len(accumulated.blocks) == 2
    expected = _sums(params, whole, tiny_config, options)
    assert expected[0].dtype == jnp.float64
    for arranged in (packed, accumulated):
      got = _sums(params, arranged, tiny_config, options)
      _assert_close(got, expected, 1e-9)


def test_packed_leaves_are_within_float32_rounding(
  tiny_config, tiny_params, random_batch
):
  batch = _unequal_batch(random_batch)
  packed, whole = (
    _sums(
      tiny_params,
      blocks.arrange(batch, num_shards=1, layout="shared", is_packed=is_packed),
      tiny_config,
      OPTIONS,
    )
    for is_packed in (True, False)
  )
  size = lambda x: float(np.sqrt((np.asarray(x, np.float64) ** 2).sum()))
  norm = np.sqrt(sum(size(g) ** 2 for g in jax.tree.leaves(whole[1])))
  errors = jax.tree.map(lambda a, b: size(a - b), packed[1], whole[1])
  assert max(jax.tree.leaves(errors)) <= 1e-5 * norm


@functools.cache
def _fns(config, options, strategy="sharded", num_devices=1):
  devices = jax.devices()[:num_devices]
  is_pmap = strategy == "pmap"
  return update.make_update_fns(
    config,
    state.make_optimizer(1e-3),
    options=options,
    strategy=strategy,
    mesh=None if is_pmap else sharding.make_mesh(-1, 1, 1, devices),
    devices=devices,
  )


@pytest.mark.parametrize(
  ("strategy", "num_devices"), [("sharded", 1), ("sharded", 2), ("pmap", 2)]
)
def test_accumulated_updates_equal_whole_ones(
  tiny_config, tiny_params, random_batch, strategy, num_devices
):
  whole = _fns(tiny_config, OPTIONS._replace(is_packed=False))
  parts = _fns(
    tiny_config, OPTIONS._replace(micro_groups=2), strategy, num_devices
  )
  states = [fns.init(tiny_params) for fns in (whole, parts)]
  for seed in range(3):
    batch = _unequal_batch(random_batch)
    batch = batch._replace(advantage=np.roll(batch.advantage, seed, axis=0))
    rows = []
    for index, fns in enumerate((whole, parts)):
      states[index], row = fns.update(states[index], batch)
      rows.append(row)
    padding = [row.pop("update/padded_tokens") for row in rows]
    assert padding[0] != padding[1]
    for name, value in rows[0].items():
      np.testing.assert_allclose(rows[1][name], value, rtol=1e-4, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5),
    states[1].params,
    states[0].params,
  )
  scored = [
    fns.logprobs(now.params, batch) for fns, now in zip((whole, parts), states)
  ]
  np.testing.assert_allclose(scored[1], scored[0], atol=1e-4)
  assert not scored[1][~batch.completion_mask].any()


def test_update_without_flat_groups_equals_the_one_with_them(
  tiny_config, tiny_params, random_batch
):
  batch = _unequal_batch(random_batch)
  batch.advantage[[0, 3]] = 0
  skipping = _fns(tiny_config, OPTIONS)
  # A coefficient this small changes nothing but the skipping.
  computing = _fns(tiny_config, OPTIONS._replace(entropy_coef=1e-30))
  states, rows = zip(
    *(fns.update(fns.init(tiny_params), batch) for fns in (skipping, computing))
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6),
    states[0].params,
    states[1].params,
  )
  np.testing.assert_allclose(
    rows[0]["update/loss"], rows[1]["update/loss"], rtol=1e-5
  )
  np.testing.assert_allclose(
    rows[0]["update/grad_norm"], rows[1]["update/grad_norm"], rtol=1e-5
  )
  saved = (batch.prompt_length + batch.completion_mask.sum((1, 2)))[[0, 3]]
  assert rows[1]["update/tokens"] - rows[0]["update/tokens"] == saved.sum()


def test_update_on_groups_without_contrast_steps_on_zeros(
  tiny_config, tiny_params, random_batch
):
  fns = _fns(tiny_config, OPTIONS)
  batch = _unequal_batch(random_batch)
  current, _ = fns.update(fns.init(tiny_params), batch)
  before = jax.tree.map(np.array, current.params)
  flat = batch._replace(advantage=np.zeros_like(batch.advantage))
  current, row = fns.update(current, flat)
  assert current.step == 2 and row["update/grad_norm"] == 0.0
  assert row["update/loss"] == row["update/tokens"] == 0.0
  # The moments still move the parameters, as with all groups computed.
  assert not np.array_equal(
    current.params["embed"]["table"], before["embed"]["table"]
  )


def test_arrange_gives_every_group_one_place_and_even_blocks(random_batch):
  batch = _unequal_batch(random_batch, batch=24)
  arranged = blocks.arrange(
    batch, num_shards=2, layout="shared", micro_groups=4
  )
  rows = np.concatenate([rows.reshape(-1) for rows in arranged.rows])
  assert sorted(rows[rows >= 0]) == list(range(24))
  loads = [
    sum(batch.prompt_length[i] + batch.completion_mask[i].sum() for i in block)
    for round_rows in arranged.rows
    for block in round_rows
  ]
  assert max(loads) <= 1.15 * np.mean(loads)
  assert arranged.num_tokens == sum(loads)
  again = blocks.arrange(batch, num_shards=2, layout="shared", micro_groups=4)
  jax.tree.map(np.testing.assert_array_equal, arranged.blocks, again.blocks)


def test_arrange_leaves_out_groups_and_keeps_their_divisor(random_batch):
  batch = _unequal_batch(random_batch)
  arranged = blocks.arrange(
    batch,
    num_shards=2,
    layout="shared",
    is_computed=np.array([0, 1, 0, 0, 1, 1], bool),
    idle_divisor=5.0,
  )
  (block,), (rows,) = arranged.blocks, arranged.rows
  assert sorted(rows[rows >= 0]) == [1, 4, 5]
  assert block.idle_divisor.tolist() == [5.0, 0.0]
  assert (block.groups.weight[rows < 0] == 0).all()


@pytest.mark.parametrize(
  ("num_tokens", "steps", "expected"),
  [(0, 8, 512), (1, 8, 512), (257, 8, 512), (1024, 8, 1024), (1025, 8, 1536),
   (2049, 8, 2560),
   (4097, 8, 4608), (4097, 4, 5120)],
)  # fmt: skip
def test_capacity_rounds_up_to_few_sizes(num_tokens, steps, expected):
  assert blocks.capacity(num_tokens, steps_per_octave=steps) == expected


def test_padding_of_the_toolrl_rows_is_small(shared_dir):
  """At most 15 % of the computed tokens are padding, with real lengths."""
  rows = dataset.load(str(shared_dir / "data/toolrl/test.parquet"))
  text = tokenizer.load("bundled:tiny")
  prompts = [
    prompt.encode(example, text, template="toolrl") for example in rows.examples
  ]
  answers = [
    text(target, add_special_tokens=False)["input_ids"]
    for target in rows.targets
  ]
  order = np.argsort([len(ids) for ids in prompts])
  rng = np.random.default_rng(0)
  tokens = computed = 0
  for chosen in np.array_split(order, len(order) // 16):
    batch = _batch_of_lengths(
      [len(prompts[i]) for i in chosen],
      # Rollouts of one prompt differ in length, too.
      [
        [math.ceil(len(answers[i]) * rng.uniform(0.5, 1.5)) for _ in range(4)]
        for i in chosen
      ],
    )
    arranged = blocks.arrange(
      batch, num_shards=2, layout="shared", micro_groups=4
    )
    tokens += arranged.num_tokens
    computed += arranged.num_computed
    assert all(block.packing is not None for block in arranged.blocks)
  padding = 1 - tokens / computed
  assert padding <= 0.15, padding
  padded = sum(
    16 * (size + 4 * longest)
    for size, longest in _padded_sizes(prompts, answers, order)
  )
  assert tokens / padded < 1 - padding


def _batch_of_lengths(prompt_length, completion_length):
  """A batch of tokens that are all 1, of given lengths."""
  length = np.array(completion_length)
  mask = np.arange(length.max()) < length[..., None]
  start = np.array(prompt_length, np.int32)
  zeros = np.zeros(mask.shape, np.float32)
  return UpdateBatch(
    prompt_ids=(np.arange(start.max()) < start[:, None]).astype(np.int32),
    prompt_length=start,
    completion_ids=mask.astype(np.int32),
    completion_mask=mask,
    old_logprobs=zeros,
    rollout_logprobs=zeros,
    reference_logprobs=zeros,
    advantage=np.ones(length.shape, np.float32),
    weight=np.ones(length.shape, np.float32),
  )


def _padded_sizes(prompts, answers, order):
  for chosen in np.array_split(order, len(order) // 16):
    yield (
      max(len(prompts[i]) for i in chosen),
      max(len(answers[i]) for i in chosen),
    )
