import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.model import decoder, sharding
from toolrl_jax.training import state, step, update

pytestmark = pytest.mark.usefixtures("quick_compile")

LEARNING_RATE = 1e-3
OPTIONS = step.UpdateOptions(
  remat="none", chunk_tokens=16, max_tokens=5, has_entropy=False, minibatches=2
)


_METRICS = {
  "update/loss_tokens": 1.0,
  "update/tokens": 1.0,
  "update/padded_tokens": 1.0,
}


def _fns(config, strategy, sizes, num_devices, options=OPTIONS):
  devices = jax.devices()[:num_devices]
  mesh = sharding.make_mesh(*sizes, devices) if sizes else None
  return update.make_update_fns(
    config,
    state.make_optimizer(LEARNING_RATE, weight_decay=0.01),
    options=options,
    strategy=strategy,
    mesh=mesh,
    devices=devices,
  )


@pytest.fixture(scope="module")
def one_device(tiny_config):
  return _fns(tiny_config, "sharded", (1, 1, 1), 1)


@pytest.fixture(scope="module")
def after_five_steps(tiny_params, random_batch, one_device):
  """What one device makes of five batches."""
  return _five_steps(one_device, tiny_params, random_batch)


def _five_steps(fns, params, random_batch):
  current = fns.init(params)
  rows = []
  # Seven groups do not divide over the devices: one more is masked.
  for seed in range(5):
    current, metrics = fns.update(current, random_batch(seed, batch=7))
    rows.append(metrics)
  logprobs = fns.logprobs(current.params, random_batch(9, batch=7))
  engine = jax.tree.map(np.asarray, fns.params_for_engine(current))
  return jax.tree.map(np.asarray, current), rows, logprobs, engine


@pytest.mark.parametrize(
  ("strategy", "sizes", "num_devices"),
  [
    ("pmap", None, 8),
    ("sharded", (4, 1, 2), 8),
    ("sharded", (4, 2, 1), 8),
  ],
)
def test_update_strategies_agree_after_five_steps(
  tiny_config,
  tiny_params,
  random_batch,
  after_five_steps,
  strategy,
  sizes,
  num_devices,
):
  expected, rows, logprobs, _ = after_five_steps
  fns = _fns(tiny_config, strategy, sizes, num_devices)
  got, got_rows, got_logprobs, engine = _five_steps(
    fns, tiny_params, random_batch
  )
  assert got.step == expected.step == 5
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5),
    got.params,
    expected.params,
  )
  for row, got_row in zip(rows, got_rows):
    assert row.keys() == got_row.keys()
    got_row["update/padded_tokens"] = row["update/padded_tokens"]
    for name, value in row.items():
      np.testing.assert_allclose(got_row[name], value, rtol=1e-4, atol=1e-5)
  assert got_logprobs.shape == (7, 3, 5)
  np.testing.assert_allclose(got_logprobs, logprobs, atol=1e-4)
  jax.tree.map(np.testing.assert_array_equal, engine, got.params)


def test_update_moves_the_policy_towards_the_advantage(
  tiny_params, random_batch, one_device
):
  batch = random_batch(batch=7)
  advantage = np.where(np.arange(3) == 0, 1.0, -0.5).astype(np.float32)
  batch = batch._replace(advantage=np.tile(advantage, (7, 1)))
  current = one_device.init(tiny_params)
  before = one_device.logprobs(current.params, batch).sum(-1)
  batch = batch._replace(
    old_logprobs=one_device.logprobs(current.params, batch)
  )
  for _ in range(3):
    current, metrics = one_device.update(current, batch)
  after = one_device.logprobs(current.params, batch).sum(-1)
  gain = (after - before)[:, 0].mean() - (after - before)[:, 1:].mean()
  assert gain > 0.1
  assert metrics["update/kl_nats"] > 0


def test_update_reuses_the_state_and_leaves_copies_alone(
  tiny_params, random_batch, one_device
):
  current = one_device.init(tiny_params)
  engine = one_device.params_for_engine(current)
  reference = one_device.copy_params(current.params)
  before = jax.tree.map(np.array, engine)
  after, _ = one_device.update(current, random_batch(batch=7))
  assert all(x.is_deleted() for x in jax.tree.leaves(current.params))
  jax.tree.map(np.testing.assert_array_equal, engine, before)
  jax.tree.map(np.testing.assert_array_equal, reference, before)
  assert not np.array_equal(
    after.params["embed"]["table"], before["embed"]["table"]
  )


@pytest.mark.parametrize(
  ("strategy", "sizes"), [("pmap", None), ("sharded", (1, 2, 1))]
)
def test_reference_outlives_updates_on_two_devices(
  tiny_config, tiny_params, random_batch, strategy, sizes
):
  fns = _fns(tiny_config, strategy, sizes, 2)
  params = jax.tree.map(jnp.asarray, tiny_params)
  reference = fns.copy_params(params)
  current, batch = fns.init(params), random_batch(batch=4)
  scored = [fns.logprobs(reference, batch)]
  for _ in range(2):
    current, _ = fns.update(current, batch)
    scored.append(fns.logprobs(reference, batch))
  np.testing.assert_array_equal(scored[0], scored[1])
  np.testing.assert_array_equal(scored[0], scored[2])


def test_params_for_engine_of_pmap_is_one_device_in_the_compute_dtype(
  tiny_config, tiny_params
):
  options = OPTIONS._replace(compute_dtype="bfloat16")
  fns = _fns(tiny_config, "pmap", None, 4, options)
  table = fns.params_for_engine(fns.init(tiny_params))["embed"]["table"]
  assert table.sharding.device_set == {jax.devices()[0]}
  assert table.dtype == jnp.bfloat16


def test_template_describes_the_state(tiny_config, tiny_params):
  fns = _fns(tiny_config, "sharded", (1, 2, 2), 4)
  current = fns.init(tiny_params)
  template = fns.template(decoder.param_shapes(tiny_config))

  def check(x, described):
    assert (x.shape, x.dtype) == (described.shape, described.dtype)
    assert x.sharding.is_equivalent_to(described.sharding, x.ndim)

  jax.tree.map(check, current, template)
  kernel = current.params["layers"]["q_proj"]["kernel"]
  moments = [
    x
    for x in jax.tree.leaves(current.opt_state)
    if x.shape == kernel.shape and x.sharding == kernel.sharding
  ]
  assert len(moments) >= 2


def test_run_updates_takes_every_minibatch_of_every_pass(
  tiny_params, random_batch, one_device
):
  fns = one_device._replace(
    options=OPTIONS._replace(minibatches=1, epochs_per_batch=2)
  )
  batch = random_batch(batch=7)
  current, metrics = update.run_updates(
    fns, fns.init(tiny_params), batch, key=jax.random.key(0)
  )
  assert current.step == 2
  num_tokens = int(batch.completion_mask.sum())
  assert metrics["update/loss_tokens"] == 2 * num_tokens
  assert metrics["update/tokens"] == 2 * (
    num_tokens + int(batch.prompt_length.sum())
  )
  # By hand: old log-probabilities of the start, then two steps.
  expected = fns.init(tiny_params)
  batch = batch._replace(old_logprobs=fns.logprobs(expected.params, batch))
  for _ in range(2):
    expected, last = fns.update(expected, batch)
  jax.tree.map(np.testing.assert_array_equal, current.params, expected.params)
  assert last["update/kl_nats"] > 0


def test_run_updates_minibatches_see_each_group_once(
  tiny_params, random_batch, one_device
):
  seen = []

  def record(current, part):
    seen.extend(row.tobytes() for row in part.completion_ids)
    return current, _METRICS | {"update/is_finite": 1.0}

  fns = one_device._replace(
    update=record, options=OPTIONS._replace(minibatches=7)
  )
  batch = random_batch(batch=7)
  update.run_updates(fns, fns.init(tiny_params), batch, key=jax.random.key(0))
  assert sorted(seen) == sorted(x.tobytes() for x in batch.completion_ids)
  assert seen != [x.tobytes() for x in batch.completion_ids]


def test_run_updates_takes_means_over_updates_with_tokens(
  tiny_params, random_batch, one_device
):
  batch = random_batch(batch=4)
  # Three groups only fill the batch: their mini-batches say nothing.
  batch.weight[1:] = 0
  fns = one_device._replace(options=OPTIONS._replace(minibatches=4))
  _, several = update.run_updates(
    fns, fns.init(tiny_params), batch, key=jax.random.key(0)
  )
  assert several["update/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
  batch.weight[:] = 0
  current, nothing = update.run_updates(
    fns, fns.init(tiny_params), batch, key=jax.random.key(0)
  )
  assert current.step == 0
  assert nothing["update/loss"] == nothing["update/grad_norm"] == 0.0
  assert "update/ratio_mean" not in nothing


def test_run_updates_stops_at_the_first_update_that_is_not_finite(
  tiny_params, random_batch, one_device
):
  batch = random_batch(batch=7)
  batch = batch._replace(advantage=batch.advantage * np.float32(np.nan))
  fns = one_device._replace(
    options=OPTIONS._replace(minibatches=1, epochs_per_batch=3)
  )
  current, metrics = update.run_updates(
    fns, fns.init(tiny_params), batch, key=jax.random.key(0)
  )
  assert metrics["update/is_finite"] == 0 and current.step == 0


def test_make_update_fns_rejects_sharded_without_mesh(tiny_config):
  with pytest.raises(ValueError, match='"sharded" with a mesh'):
    _fns(tiny_config, "sharded", None, 1)
