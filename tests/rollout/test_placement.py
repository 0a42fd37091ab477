import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from toolrl_jax import types
from toolrl_jax.model import sharding
from toolrl_jax.rollout import collect, placement
from toolrl_jax.training import metrics


def _mesh(fsdp, tensor):
  return sharding.make_mesh(1, fsdp, tensor, jax.devices()[: fsdp * tensor])


def _place(params, config, mesh):
  return jax.device_put(params, sharding.param_shardings(config, mesh))


@pytest.mark.parametrize(
  ("fsdp", "tensor", "spec"),
  [
    (2, 1, PartitionSpec(None, None, None, "tensor")),
    (1, 2, PartitionSpec(None, None, None, "tensor")),
    # Two key heads do not divide by four.
    (1, 4, PartitionSpec()),
  ],
)
def test_of_params_splits_the_cache_between_key_heads(
  config, params, fsdp, tensor, spec
):
  mesh = _mesh(fsdp, tensor)
  placed = placement.of_params(_place(params, config, mesh), config)
  assert placed.cache == jax.NamedSharding(mesh, spec)
  assert placed.rest == jax.NamedSharding(mesh, PartitionSpec())


@pytest.mark.parametrize(
  ("name", "axes"),
  [
    ("inline", None),
    ("jetstream", None),
    ("inline", (2, 1)),
    ("jetstream", (1, 2)),
  ],
)
def test_nothing_compiles_after_the_first_rollout_of_each_bucket(
  rolling, config, params, other_params, batch, plain, name, axes
):
  mesh = None if axes is None else _mesh(*axes)
  if mesh is None:
    # As drawn, parameters are bound to no device; later ones may be.
    first, second = params, jax.device_put(other_params, jax.devices()[0])
  else:
    first, second = (_place(x, config, mesh) for x in (params, other_params))
  short = types.PromptBatch(batch.prompt_ids[:, :16], *batch[1:])
  short = short._replace(is_real=batch.prompt_length <= 16)

  def serve(server):
    rollouts = rolling.serve(server, batch)
    rolling.serve(
      server, short, group_size=1, max_tokens=5, completion_buckets=(8,)
    )
    return rollouts

  engine = rolling.engine(params=first)
  with collect.start(engine, name) as server:
    serve(server)
    counter = metrics.CompilationCounter()
    serve(server)
    server.sync(second, 1)
    serve(server)
    server.sync(first, 2)
    rollouts = serve(server)
    assert counter.take() == 0
    counter.close()
  is_equal = (rollouts.completion_ids == plain[0].completion_ids).all(-1)
  assert (~is_equal).sum() <= 1
  assert engine.box.decode_params["layers"][0]["q_proj"][
    "kernel"
  ].sharding.is_equivalent_to(
    jax.NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    if mesh is not None
    else jax.sharding.SingleDeviceSharding(jax.devices()[0]),
    2,
  )


def test_decoding_from_stacked_layers_gives_the_same(rolling, batch, plain):
  rollouts, _ = rolling.rollout(batch, settings={"is_unstacked": False})
  is_equal = (rollouts.completion_ids == plain[0].completion_ids).all(-1)
  assert (~is_equal).sum() <= 1
  np.testing.assert_allclose(
    rollouts.logprobs[is_equal], plain[0].logprobs[is_equal], atol=1e-5
  )
