"""Where an engine's arrays lie: on the devices of its parameters.

From a parameter pytree to shardings of the cache and of all else, so that
every call of a program sees arrays placed alike and compiles once. It knows
nothing of requests.
"""

from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from toolrl_jax.model import decoder
from toolrl_jax.model.presets import DecoderConfig


class Placement(NamedTuple):
  """Shardings of an engine's arrays; hashable.

  Attributes:
    cache: Of keys and values [L, A, P, N, H]: key heads lie over the mesh's
      `tensor` axis where it divides them.
    rest: Of everything else: whole on every device.
  """

  cache: Sharding
  rest: Sharding


def of_params(params: decoder.Params, config: DecoderConfig) -> Placement:
  """Returns the placement that goes with parameters on a device or a mesh."""
  sharding = jax.tree.leaves(params)[0].sharding
  if not isinstance(sharding, NamedSharding):
    return Placement(sharding, sharding)
  mesh = sharding.mesh
  rest = NamedSharding(mesh, PartitionSpec())
  if "tensor" not in mesh.axis_names:
    return Placement(rest, rest)
  if config.num_kv_heads % mesh.shape["tensor"]:
    return Placement(rest, rest)
  spec = PartitionSpec(None, None, None, "tensor")
  return Placement(NamedSharding(mesh, spec), rest)


def shardings_of(params: decoder.Params) -> Any:
  """Returns the sharding of each parameter."""
  return jax.tree.map(lambda leaf: leaf.sharding, params)
