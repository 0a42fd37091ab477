"""Where each parameter lies on a (data, fsdp, tensor) mesh.

From a decoder's shape and a mesh to partition specs. Vocabulary, heads and
feed-forward width lie over `tensor`, the other matrix axis over `fsdp`,
batches over `data` and `fsdp`. The module does not know optimizers or losses.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from toolrl_jax import hosts
from toolrl_jax.model import decoder
from toolrl_jax.model.presets import DecoderConfig

AXES = ("data", "fsdp", "tensor")
BATCH_SPEC = PartitionSpec(("data", "fsdp"))

_COLUMN = PartitionSpec(None, "fsdp", "tensor")
_ROW = PartitionSpec(None, "tensor", "fsdp")
# Matrices by the module that holds them: [V, D] tables, [L, in, out] kernels.
# Biases follow the output axis of their kernel; norm scales are replicated.
_MATRIX_SPECS = {
  "embed": PartitionSpec("tensor", "fsdp"),
  "head": PartitionSpec("tensor", "fsdp"),
  "q_proj": _COLUMN,
  "k_proj": _COLUMN,
  "v_proj": _COLUMN,
  "gate_proj": _COLUMN,
  "up_proj": _COLUMN,
  "o_proj": _ROW,
  "down_proj": _ROW,
}


def make_mesh(
  data: int,
  fsdp: int,
  tensor: int,
  devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Makes the (data, fsdp, tensor) mesh.

  Args:
    data: Copies of the parameters; -1 takes what remains.
    fsdp: Shards of the parameters that also split the batch; -1 likewise.
    tensor: Shards of heads, vocabulary and feed-forward width; -1 likewise.
    devices: Devices of the mesh; all of all processes when None.

  Returns:
    The mesh, with automatic axes.

  Raises:
    ValueError: When the sizes do not multiply to the number of devices.
  """
  devices = hosts.devices() if devices is None else list(devices)
  sizes = [data, fsdp, tensor]
  fixed = math.prod(size for size in sizes if size != -1)
  if sizes.count(-1) == 1 and fixed > 0:
    sizes[sizes.index(-1)] = len(devices) // fixed
  if min(sizes) < 1 or math.prod(sizes) != len(devices):
    raise ValueError(
      "data x fsdp x tensor must equal the number of devices with at most one "
      f"-1, got {data} x {fsdp} x {tensor} for {len(devices)}; set config.mesh."
    )
  return Mesh(
    np.asarray(devices).reshape(sizes), AXES, axis_types=(AxisType.Auto,) * 3
  )


def param_specs(config: DecoderConfig, mesh: Mesh) -> Any:
  """Returns the partition spec of each parameter, as a pytree like them.

  A mesh axis that does not divide the array axis is skipped: the array is
  replicated over it. Projections to heads are split between heads only.
  """
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: _spec(
      [entry.key for entry in path], leaf.shape, config, mesh
    ),
    decoder.param_shapes(config),
  )


def param_shardings(config: DecoderConfig, mesh: Mesh) -> Any:
  """Returns the sharding of each parameter, as a pytree like them."""
  return jax.tree.map(
    lambda spec: NamedSharding(mesh, spec),
    param_specs(config, mesh),
    is_leaf=lambda x: isinstance(x, PartitionSpec),
  )


def host_shardings(config: DecoderConfig, mesh: Mesh) -> tuple[Any, Any]:
  """Returns where a whole copy of the parameters lies on each host.

  Over the devices of a host the copy is split as over a mesh of them alone:
  with the tensor axis of the run's mesh, and as much of its fsdp axis as fits.

  Args:
    config: Shape of the decoder.
    mesh: From `make_mesh`, over the devices of all processes.

  Returns:
    Shardings over all devices, which repeat each host's over the hosts, and
    those of this process over its own; pytrees like the parameters.

  Raises:
    ValueError: A tensor axis reaches over more than one host.
  """
  num_hosts, tensor = hosts.count(), mesh.shape["tensor"]
  per_host = mesh.devices.size // num_hosts
  if per_host % tensor:
    raise ValueError(
      f"the tensor axis must divide the {per_host} devices of a host, got "
      f"{tensor}; set config.mesh.tensor."
    )
  fsdp = math.gcd(mesh.shape["fsdp"], per_host // tensor)
  shape = (num_hosts, per_host // tensor // fsdp, fsdp, tensor)
  devices = mesh.devices.reshape(shape)
  everywhere = Mesh(devices, ("hosts", *AXES), axis_types=(AxisType.Auto,) * 4)
  here = Mesh(
    devices[jax.process_index()], AXES, axis_types=(AxisType.Auto,) * 3
  )
  specs = param_specs(config, here)
  is_spec = lambda x: isinstance(x, PartitionSpec)
  return tuple(
    jax.tree.map(
      lambda spec, where=where: NamedSharding(where, spec), specs,
      is_leaf=is_spec,
    )
    for where in (everywhere, here)
  )  # fmt: skip


def on_this_host(arrays: Any, here: Any) -> Any:
  """Returns this process's copy of arrays that are repeated over the hosts.

  Args:
    arrays: Pytree of arrays that lie as the first of `host_shardings`.
    here: Shardings over this process's devices, the second of them.

  Returns:
    The same arrays over the devices of this process; nothing is copied.
  """

  def take(x, sharding):
    by_device = {shard.device: shard.data for shard in x.addressable_shards}
    order = sharding.addressable_devices_indices_map(x.shape)
    return jax.make_array_from_single_device_arrays(
      x.shape, sharding, [by_device[device] for device in order]
    )

  return jax.tree.map(take, arrays, here)


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of arrays that lead with the batch axis."""
  return NamedSharding(mesh, BATCH_SPEC)


def num_batch_shards(mesh: Mesh) -> int:
  """Returns how many parts a batch is split into."""
  return mesh.shape["data"] * mesh.shape["fsdp"]


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding that puts a whole copy on every device."""
  return NamedSharding(mesh, PartitionSpec())


def _spec(
  path: list[str], shape: tuple[int, ...], config: DecoderConfig, mesh: Mesh
) -> PartitionSpec:
  """Returns the spec of one parameter."""
  module, leaf = path[-2:]
  if module not in _MATRIX_SPECS:
    return PartitionSpec()
  wanted = _MATRIX_SPECS[module]
  if leaf == "bias":
    wanted = PartitionSpec(wanted[0], wanted[2])
  units = _splittable_units(module, shape, config)
  axes = [
    axis if axis and size % mesh.shape[axis] == 0 else None
    for axis, size in zip(wanted, units, strict=True)
  ]
  return PartitionSpec(*axes)


def _splittable_units(
  module: str, shape: tuple[int, ...], config: DecoderConfig
) -> list[int]:
  """Returns how many parts each axis can be cut into: heads stay whole."""
  units = list(shape)
  if module == "q_proj":
    units[-1] = config.num_heads
  elif module in ("k_proj", "v_proj"):
    units[-1] = config.num_kv_heads
  elif module == "o_proj":
    units[-2] = config.num_heads
  return units
