"""The update: a batch of groups to a new train state and its metrics.

`make_update_fns` alone places arrays and compiles; `training.step` holds the
plain functions it compiles, `training.blocks` says what is computed together.
Every update divides by the divisor of all its groups, wherever and whether
they are computed: a group without advantage has no gradient and is left out.
The module does not know text, rewards or how completions were sampled.
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

from toolrl_jax import hosts
from toolrl_jax.model import attention, decoder, sharding, splash
from toolrl_jax.model.presets import DecoderConfig
from toolrl_jax.training import batches, blocks
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
    logprobs: `logprobs(params, batch, is_needed=None)` scores the completions
      of the groups that are needed, bool [B], or of all; float32 [B, S, T] on
      the host, 0 elsewhere.
    params_for_engine: `params_for_engine(state)` copies the parameters, in the
      compute dtype, on their devices; the copy outlives the next update. With
      "pmap" it is the first replica, on its device alone; in a run of several
      processes a whole copy on the devices of each, made from device to device.
    options: The options they were made with.
  """

  init: Callable[[Any], TrainState]
  template: Callable[[Any], TrainState]
  place: Callable[[TrainState], TrainState]
  copy_params: Callable[[Any], Any]
  update: Callable[[TrainState, UpdateBatch], tuple[TrainState, Metrics]]
  logprobs: Callable[..., np.ndarray]
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
    batch = batch._replace(
      old_logprobs=fns.logprobs(
        state.params, batch, batches.has_gradient(batch, options)
      )
    )
  history: list[Metrics] = []
  for epoch in range(options.epochs_per_batch):
    parts = batches.split_groups(
      batch, options.minibatches, jax.random.fold_in(key, epoch)
    )
    for part in parts:
      state, metrics = fns.update(state, part)
      history.append(metrics)
      if not metrics["update/is_finite"]:
        return state, _summarise(history)
  return state, _summarise(history)


def _summarise(history: Sequence[Metrics]) -> Metrics:
  """Joins the metrics of several updates.

  Updates on no token at all say nothing: a mean leaves them out, and metrics
  that only they have are left out as a whole.
  """
  told = [row for row in history if row["update/loss_tokens"] > 0]
  summary = {}
  for name in history[0]:
    values = np.array([metrics[name] for metrics in history])
    if name.endswith("tokens"):
      summary[name] = float(values.sum())
    elif name.endswith("_max"):
      summary[name] = float(values.max())
    elif name == "update/is_finite":
      summary[name] = float(values.min())
    elif told:
      summary[name] = float(np.mean([row[name] for row in told]))
    elif name in ("update/loss", "update/grad_norm"):
      summary[name] = 0.0
  # Of packed tokens and of padded ones only the share matters.
  computed = summary.pop("update/padded_tokens")
  summary["update/padding_frac"] = 1.0 - summary["update/tokens"] / computed
  return summary


# ----- placement and compilation -----


class Programs(NamedTuple):
  """Compiled functions of blocks that lie on the devices.

  Attributes:
    step: `step(state, block)`: one block is the whole batch.
    start: `start(params, block)` are `step_lib.Sums` of zeros.
    add: `add(params, sums, block)` adds a block's; the old sums are reused.
    apply: `apply(state, sums)` takes the step of all blocks.
    score: `score(params, block)` scores completions, [R * g, S, T].
  """

  step: jax.stages.Wrapped
  start: jax.stages.Wrapped
  add: jax.stages.Wrapped
  apply: jax.stages.Wrapped
  score: Callable


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
  if strategy == "pmap":
    if hosts.count() > 1:
      raise ValueError(
        'strategy "pmap" is for one process, got '
        f'{hosts.count()}; set config.mesh.strategy="sharded".'
      )
    devices = jax.local_devices() if devices is None else list(devices)
    mesh = Mesh(np.asarray(devices), (_REPLICAS,))
    whole = NamedSharding(mesh, PartitionSpec())
    params = jax.tree.map(lambda _: whole, decoder.param_shapes(config))
    shardings = state_shardings(optimizer, params, whole)
    programs = _replicated_programs(config, optimizer, options, devices)
    num_shards, place = len(devices), _one_block_a_device
  elif strategy == "sharded" and mesh is not None:
    shardings = mesh_shardings(config, optimizer, mesh)
    programs = mesh_programs(config, optimizer, options, mesh)
    num_shards = sharding.num_batch_shards(mesh)
    where = sharding.batch_sharding(mesh)
    place = lambda block: jax.tree.map(lambda x: hosts.place(x, where), block)
  else:
    raise ValueError(
      f'strategy must be "pmap", or "sharded" with a mesh, got {strategy!r} '
      f"with {mesh}; set config.mesh.strategy."
    )
  is_replica = strategy == "pmap"
  is_spread = not is_replica and hosts.count() > 1
  return _placing_fns(
    programs,
    place,
    num_shards,
    optimizer,
    options,
    shardings,
    is_replica,
    sharding.host_shardings(config, mesh) if is_spread else None,
  )


def mesh_shardings(
  config: DecoderConfig, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
  """Returns the sharding of each leaf of a state over a mesh."""
  return state_shardings(
    optimizer,
    sharding.param_shardings(config, mesh),
    sharding.replicated(mesh),
  )


def mesh_programs(
  config: DecoderConfig,
  optimizer: optax.GradientTransformation,
  options: UpdateOptions,
  mesh: Mesh,
) -> Programs:
  """Compiles for parameters that are spread over a mesh.

  Args:
    config: Shape of the decoder.
    optimizer: From `state.make_optimizer`.
    options: Static choices.
    mesh: From `sharding.make_mesh`.

  Returns:
    Jitted programs; nothing is compiled before the first call.
  """
  shardings = mesh_shardings(config, optimizer, mesh)
  whole = sharding.replicated(mesh)
  sums: Any = (shardings.params, whole)
  fixed: dict[str, Any] = {
    "config": config,
    "options": options,
    "attend": _attention_of(mesh.devices.flat[0], mesh),
    "place": lambda x: jax.lax.with_sharding_constraint(
      x, sharding.batch_sharding(mesh)
    ),
  }
  return Programs(
    step=jax.jit(
      functools.partial(step_lib.take_step, optimizer=optimizer, **fixed),
      out_shardings=(shardings, whole),
      donate_argnums=0,
    ),
    start=jax.jit(
      functools.partial(step_lib.no_sums, **fixed),
      out_shardings=step_lib.Sums(*sums),
    ),
    add=jax.jit(
      functools.partial(step_lib.add_block, **fixed),
      out_shardings=step_lib.Sums(*sums),
      donate_argnums=1,
    ),
    apply=jax.jit(
      functools.partial(step_lib.apply_sums, optimizer=optimizer),
      out_shardings=(shardings, whole),
      # New moments and parameters take the old ones' place; nothing is left
      # for the sums.
      donate_argnums=0,
    ),
    score=jax.jit(
      functools.partial(step_lib.masked_logprobs, **fixed), out_shardings=whole
    ),
  )


def _attention_of(device: jax.Device, mesh: Mesh | None) -> decoder.Attend:
  """Returns the attention over whole groups of a kind of device."""
  if device.platform == "tpu":
    return functools.partial(splash.shared_prompt, mesh=mesh)
  return attention.shared_prompt


def _replicated_programs(
  config: DecoderConfig,
  optimizer: optax.GradientTransformation,
  options: UpdateOptions,
  devices: Sequence[jax.Device],
) -> Programs:
  """Compiles for whole parameters on every device."""
  fixed: dict[str, Any] = {
    "config": config,
    "options": options,
    "attend": _attention_of(devices[0], None),
  }
  replicas: dict[str, Any] = {"axis_name": _REPLICAS, "devices": devices}
  stepping: dict[str, Any] = {"optimizer": optimizer, "axis_name": _REPLICAS}
  stacked_score = jax.pmap(
    functools.partial(step_lib.masked_logprobs, **fixed),
    in_axes=(None, 0),
    **replicas,
  )

  def score(params, block):
    scored = stacked_score(params, block)
    return scored.reshape(-1, *scored.shape[2:])

  return Programs(
    # The state has no replica axis, so a checkpoint of it fits any strategy.
    step=jax.pmap(
      functools.partial(step_lib.take_step, **stepping, **fixed),
      in_axes=(None, 0),
      out_axes=(None, None),
      donate_argnums=0,
      **replicas,
    ),
    start=jax.pmap(
      functools.partial(step_lib.no_sums, **fixed),
      in_axes=(None, 0),
      **replicas,
    ),
    add=jax.pmap(
      functools.partial(step_lib.add_block, **fixed),
      in_axes=(None, 0, 0),
      donate_argnums=1,
      **replicas,
    ),
    apply=jax.pmap(
      functools.partial(step_lib.apply_sums, **stepping),
      in_axes=(None, 0),
      out_axes=(None, None),
      donate_argnums=0,
      **replicas,
    ),
    score=score,
  )


def _placing_fns(
  programs: Programs,
  place: Callable[[blocks.Block], blocks.Block],
  num_shards: int,
  optimizer: optax.GradientTransformation,
  options: UpdateOptions,
  shardings: TrainState,
  is_replica: bool,
  engine_shardings: tuple[Any, Any] | None,
) -> UpdateFns:
  """Wraps compiled functions with the placement of their arguments."""
  # Compiled, so that no moment ever exists whole on one device.
  init_opt_state = jax.jit(optimizer.init, out_shardings=shardings.opt_state)
  # An explicit copy: jit hands untouched inputs through, and the next update
  # would delete them under the engine.
  cast = lambda x: jnp.array(x, options.compute_dtype, copy=True)
  where = (
    {} if engine_shardings is None else {"out_shardings": engine_shardings[0]}
  )
  copy = jax.jit(lambda params: jax.tree.map(cast, params), **where)
  arrange = functools.partial(
    blocks.arrange,
    num_shards=num_shards,
    layout=options.layout,
    micro_groups=options.micro_groups,
    is_packed=options.is_packed,
  )

  # device_put hands the first replica's buffer through, so copied here, too.
  spread_copy = jax.jit(
    lambda params: jax.tree.map(lambda x: jnp.array(x, copy=True), params),
    out_shardings=shardings.params,
  )

  def copy_params(params):
    return spread_copy(jax.tree.map(hosts.place, params, shardings.params))

  def init(params):
    params = jax.tree.map(hosts.place, params, shardings.params)
    count = hosts.place(jnp.zeros((), jnp.int32), shardings.step)
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
    is_computed = batches.has_gradient(batch, options)
    arranged = arrange(
      batch,
      is_computed=is_computed,
      idle_divisor=batches.divisor_of(batch, ~is_computed, options),
    )
    placed = [place(block) for block in arranged.blocks]
    if len(placed) == 1:
      state, metrics = programs.step(state, placed[0])
    else:
      sums = programs.start(state.params, placed[0])
      for block in placed:
        sums = programs.add(state.params, sums, block)
      state, metrics = programs.apply(state, sums)
    row = {k: float(v) for k, v in jax.device_get(metrics).items()}
    row["update/tokens"] = float(arranged.num_tokens)
    row["update/padded_tokens"] = float(arranged.num_computed)
    return state, row

  def logprobs(params, batch, is_needed=None):
    is_scored = np.asarray(batch.completion_mask).any(axis=(1, 2))
    if is_needed is not None:
      is_scored &= is_needed
    arranged = arrange(batch, is_computed=is_scored)
    scored = np.zeros(batch.completion_mask.shape, np.float32)
    for block, rows in zip(arranged.blocks, arranged.rows):
      got = np.asarray(programs.score(params, place(block)))
      rows = rows.reshape(-1)
      scored[rows[rows >= 0]] = got[rows >= 0]
    return scored

  def params_for_engine(state):
    first = lambda x: x.addressable_data(0) if is_replica else x
    copied = copy(jax.tree.map(first, state.params))
    if engine_shardings is None:
      return copied
    return sharding.on_this_host(copied, engine_shardings[1])

  return UpdateFns(
    init=init,
    template=template,
    place=lambda state: jax.tree.map(hosts.place, state, shardings),
    copy_params=copy_params,
    update=update,
    logprobs=logprobs,
    params_for_engine=params_for_engine,
    options=options,
  )


def _one_block_a_device(block: blocks.Block) -> blocks.Block:
  """Gives each replica a block with one row: leaves [devices, 1, ...]."""
  return jax.tree.map(lambda x: np.asarray(x)[:, None], block)


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
