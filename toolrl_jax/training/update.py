"""The update: a batch of groups to a new train state and its metrics.

`make_update_fns` alone places arrays and compiles; `training.step` holds the
plain functions it compiles. Every update divides by the divisor of all its
groups, wherever they are computed. The module does not know text, rewards or
how completions were sampled.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from toolrl_jax.model import decoder, sharding
from toolrl_jax.model.presets import DecoderConfig
from toolrl_jax.training import batches
from toolrl_jax.training import step as step_lib
from toolrl_jax.training.state import TrainState
from toolrl_jax.training.step import UpdateOptions
from toolrl_jax.types import UpdateBatch

Strategy = Literal["pmap", "sharded"]
Metrics = dict[str, float]
_REPLICAS = "replicas"


class UpdateFns(NamedTuple):
  """Compiled functions of one strategy.

  Attributes:
    init: `init(params)` makes the first state, on the devices, once, before
      the loop. It takes the parameters over: `update` deletes their arrays.
    template: `template(params)` is the first state as shapes, dtypes and
      shardings, for `RunCheckpoints.restore_latest`; nothing is computed.
    place: `place(state)` puts a state on the devices; takes it over as `init`.
    copy_params: `copy_params(params)` puts a copy of parameters on the devices,
      for a reference policy.
    update: `update(state, batch)` takes one optimizer step; returns the new
      state and metrics as floats. The old state's arrays are reused.
    logprobs: `logprobs(params, batch)` scores the completions; float32
      [B, S, T] on the host, 0 on padding.
    params_for_engine: `params_for_engine(state)` copies the parameters, in the
      compute dtype, on their devices; the copy outlives the next update. With
      "pmap" it is the first replica, on its device alone.
    options: The options they were made with.
  """

  init: Callable[[Any], TrainState]
  template: Callable[[Any], TrainState]
  place: Callable[[TrainState], TrainState]
  copy_params: Callable[[Any], Any]
  update: Callable[[TrainState, UpdateBatch], tuple[TrainState, Metrics]]
  logprobs: Callable[[Any, UpdateBatch], np.ndarray]
  params_for_engine: Callable[[TrainState], Any]
  options: UpdateOptions


# ----- all updates of a batch -----


def run_updates(
  fns: UpdateFns,
  state: TrainState,
  batch: UpdateBatch,
  *,
  key: Array,
  reference_params: Any = None,
  is_old_given: bool = False,
) -> tuple[TrainState, Metrics]:
  """Runs every update of one batch: passes, mini-batches, one step each.

  Old log-probabilities are those of the policy that starts the first update.
  A single update takes its own; else they are computed here, in one forward
  pass, unless the batch brings them. It stops at the first update that is not
  finite, which leaves the state as it was.

  Args:
    fns: Compiled functions.
    state: Placed state; its arrays are reused.
    batch: Groups to train on.
    key: A `jax.random.key` that orders groups for mini-batches.
    reference_params: From `fns.copy_params`, read when `options.kl_coef` is
      not 0; None where `batch.reference_logprobs` are filled in.
    is_old_given: Whether `batch.old_logprobs` are filled in.

  Returns:
    The state after the last update, and metrics: sums of token counts, maxima
    of names in `_max`, the least `is_finite`, means over updates of the rest.
  """
  options = fns.options
  if options.kl_coef and reference_params is not None:
    batch = batch._replace(
      reference_logprobs=fns.logprobs(reference_params, batch)
    )
  if not options.is_own_old and not is_old_given:
    batch = batch._replace(old_logprobs=fns.logprobs(state.params, batch))
  history: list[Metrics] = []
  for epoch in range(options.epochs_per_batch):
    parts = batches.split_groups(
      batch, options.minibatches, jax.random.fold_in(key, epoch)
    )
    for part in parts:
      state, metrics = fns.update(state, part)
      metrics["update/tokens"] = float(
        batches.count_tokens(part, options.layout)
      )
      history.append(metrics)
      if not metrics["update/is_finite"]:
        return state, _summarise(history)
  return state, _summarise(history)


def _summarise(history: Sequence[Metrics]) -> Metrics:
  """Joins the metrics of several updates."""
  summary = {}
  for name in history[0]:
    values = np.array([metrics[name] for metrics in history])
    if name.endswith("tokens"):
      joined = values.sum()
    elif name.endswith("_max"):
      joined = values.max()
    elif name == "update/is_finite":
      joined = values.min()
    else:
      joined = values.mean()
    summary[name] = float(joined)
  return summary


# ----- placement and compilation -----


def make_update_fns(
  config: DecoderConfig,
  optimizer: optax.GradientTransformation,
  *,
  options: UpdateOptions,
  strategy: Strategy,
  mesh: Mesh | None = None,
  devices: Sequence[jax.Device] | None = None,
) -> UpdateFns:
  """Compiles the update for one strategy.

  "pmap" keeps whole parameters on every device and splits groups over them.
  "sharded" is `jax.jit` over a (data, fsdp, tensor) mesh. A batch that does
  not divide is filled up with groups of weight 0. Both agree with one device
  to rounding.

  Args:
    config: Shape of the decoder.
    optimizer: From `state.make_optimizer`.
    options: Static choices.
    strategy: Which of the two.
    mesh: From `sharding.make_mesh`; needed by "sharded" only.
    devices: Devices of "pmap"; all local ones when None.

  Returns:
    The functions.

  Raises:
    ValueError: When an option is out of range, the strategy has no such name
      or it lacks its mesh.
  """
  step_lib.check_options(options)
  step: Callable = functools.partial(
    step_lib.take_step, optimizer=optimizer, config=config, options=options
  )
  score: Callable = functools.partial(
    step_lib.masked_logprobs, config=config, options=options
  )
  if strategy == "pmap":
    devices = jax.local_devices() if devices is None else list(devices)
    mesh = Mesh(np.asarray(devices), (_REPLICAS,))
    whole = NamedSharding(mesh, PartitionSpec())
    params = jax.tree.map(lambda _: whole, decoder.param_shapes(config))
    shardings = state_shardings(optimizer, params, whole)
    to_devices: Callable = functools.partial(_stacked, num_devices=len(devices))
    step, score = _pmapped(step, score, devices)
  elif strategy == "sharded" and mesh is not None:
    params = sharding.param_shardings(config, mesh)
    shardings = state_shardings(optimizer, params, sharding.replicated(mesh))
    to_devices = functools.partial(_spread, mesh=mesh)
    step, score = _jitted(step, score, shardings, mesh)
  else:
    raise ValueError(
      f'strategy must be "pmap", or "sharded" with a mesh, got {strategy!r} '
      f"with {mesh}; set config.mesh.strategy."
    )
  is_replica = strategy == "pmap"
  return _placing_fns(
    step, score, to_devices, optimizer, options, shardings, is_replica
  )


def _pmapped(
  step: Callable, score: Callable, devices: Sequence[jax.Device]
) -> tuple[Callable, Callable]:
  """Compiles for replicated parameters."""
  common: dict[str, Any] = {
    "axis_name": _REPLICAS,
    "in_axes": (None, 0),
    "devices": devices,
  }
  # The state has no replica axis, so a checkpoint of it fits any strategy.
  step = jax.pmap(
    functools.partial(step, axis_name=_REPLICAS),
    out_axes=(None, None),
    donate_argnums=0,
    **common,
  )
  stacked_score = jax.pmap(score, **common)

  def flat_score(params, batch):
    scored = stacked_score(params, batch)
    return scored.reshape(-1, *scored.shape[2:])

  return step, flat_score


def _jitted(
  step: Callable, score: Callable, shardings: TrainState, mesh: Mesh
) -> tuple[Callable, Callable]:
  """Compiles for parameters that are spread over a mesh."""
  num_shards = sharding.num_batch_shards(mesh)
  whole = sharding.replicated(mesh)
  step = jax.jit(
    functools.partial(step, num_shards=num_shards),
    out_shardings=(shardings, whole),
    donate_argnums=0,
  )
  score = jax.jit(
    functools.partial(score, num_shards=num_shards), out_shardings=whole
  )
  return step, score


def _placing_fns(
  step: Callable,
  score: Callable,
  to_devices: Callable[[UpdateBatch], UpdateBatch],
  optimizer: optax.GradientTransformation,
  options: UpdateOptions,
  shardings: TrainState,
  is_replica: bool,
) -> UpdateFns:
  """Wraps compiled functions with the placement of their arguments."""
  # Compiled, so that no moment ever exists whole on one device.
  init_opt_state = jax.jit(optimizer.init, out_shardings=shardings.opt_state)
  # An explicit copy: jit hands untouched inputs through, and the next update
  # would delete them under the engine.
  cast = lambda x: jnp.array(x, options.compute_dtype, copy=True)
  copy = jax.jit(lambda params: jax.tree.map(cast, params))

  def init(params):
    params = jax.device_put(params, shardings.params)
    count = jax.device_put(jnp.zeros((), jnp.int32), shardings.step)
    return TrainState(count, params, init_opt_state(params))

  def template(params):
    state = TrainState(
      jax.ShapeDtypeStruct((), jnp.int32),
      params,
      jax.eval_shape(optimizer.init, params),
    )
    describe = lambda x, where: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=where
    )
    return jax.tree.map(describe, state, shardings)

  def update(state, batch):
    state, metrics = step(state, to_devices(batch))
    return state, {k: float(v) for k, v in jax.device_get(metrics).items()}

  def logprobs(params, batch):
    scored = np.asarray(score(params, to_devices(batch)))
    return scored[: len(batch.prompt_length)]

  def params_for_engine(state):
    first = lambda x: x.addressable_data(0) if is_replica else x
    return copy(jax.tree.map(first, state.params))

  return UpdateFns(
    init=init,
    template=template,
    place=lambda state: jax.device_put(state, shardings),
    copy_params=lambda params: jax.device_put(
      params, shardings.params, may_alias=False
    ),
    update=update,
    logprobs=logprobs,
    params_for_engine=params_for_engine,
    options=options,
  )


def _spread(batch: UpdateBatch, mesh: Mesh) -> UpdateBatch:
  """Fills a batch up and spreads its groups over a mesh."""
  batch = batches.fill_up(batch, sharding.num_batch_shards(mesh))
  return jax.device_put(batch, sharding.batch_sharding(mesh))


def _stacked(batch: UpdateBatch, num_devices: int) -> UpdateBatch:
  """Fills a batch up and gives each device its groups, [devices, B / devices]."""
  split = lambda x: np.asarray(x).reshape(num_devices, -1, *np.shape(x)[1:])
  return UpdateBatch(*(split(x) for x in batches.fill_up(batch, num_devices)))


def state_shardings(
  optimizer: optax.GradientTransformation,
  param_shardings: Any,
  whole: Any,
) -> TrainState:
  """Returns the sharding of each leaf of a state; moments lie as parameters.

  Args:
    optimizer: The optimizer whose state is placed.
    param_shardings: Sharding of each parameter.
    whole: Sharding of scalars.

  Returns:
    A TrainState of shardings.
  """
  # The structure of the state does not depend on the parameters' shapes.
  stand_ins = jax.tree.map(
    lambda _: jax.ShapeDtypeStruct((1,), jnp.float32), param_shardings
  )
  moments = optax.tree_utils.tree_map_params(
    optimizer,
    lambda _, param_sharding: param_sharding,
    jax.eval_shape(optimizer.init, stand_ins),
    param_shardings,
    transform_non_params=lambda _: whole,
  )
  return TrainState(whole, param_shardings, moments)
