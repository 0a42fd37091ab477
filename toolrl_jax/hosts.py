"""The processes of a run on many hosts, and what they tell one another.

A run on a slice is one process a host, started everywhere by the same command
and joined by `jax.distributed`. Host values that must be equal everywhere
(batches, rewards, what ends the run) are made from rows that each process
contributes; arrays over all devices are placed and read here. With one process
every function is its trivial case and starts no program. Knows nothing of what
the values mean.
"""

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

# A process that is silent for so long has died; the others then end.
_HEARTBEAT_SECS = 10
_JOIN_SECS = 300
_LEAVE_SECS = 30
_PROCESS_ID = "JAX_PROCESS_ID"


def connect(coordinator: str, num_processes: int, process_id: int) -> None:
  """Joins the processes of a run; to be called before any device is used.

  Args:
    coordinator: "" for one process; "auto" where JAX finds the others by
      itself, as on a TPU slice; else HOST:PORT of process 0.
    num_processes: Processes of the run; read with an address only.
    process_id: Number of this one, from 0; -1 reads JAX_PROCESS_ID.

  Raises:
    ValueError: The numbers do not fit, or the others cannot be reached.
  """
  if not coordinator:
    return
  given: dict[str, Any] = {}
  if coordinator != "auto":
    given = {
      "coordinator_address": coordinator,
      "num_processes": num_processes,
      "process_id": _process_id(process_id, num_processes),
    }
  try:
    jax.distributed.initialize(
      **given,
      initialization_timeout=_JOIN_SECS,
      heartbeat_timeout_seconds=_HEARTBEAT_SECS,
      shutdown_timeout_seconds=_LEAVE_SECS,
    )
  except (RuntimeError, ValueError, TypeError) as error:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(
      f"coordinator must be an address that all processes of the run reach, "
      f"got {coordinator!r}: {reason[:200]}; set config.mesh.coordinator."
    ) from error


def _process_id(given: int, num_processes: int) -> int:
  text = str(given) if given >= 0 else os.environ.get(_PROCESS_ID, "")
  if not text.isdecimal() or int(text) >= num_processes:
    raise ValueError(
      f"process_id must be in [0, {num_processes}), got {text or 'none'!r}; set "
      f"config.mesh.process_id or {_PROCESS_ID}, a different one in each process."
    )
  return int(text)


def count() -> int:
  """Returns the number of processes."""
  return jax.process_count()


def number() -> int:
  """Returns which process this is, from 0."""
  return jax.process_index()


def is_first() -> bool:
  """Whether this process writes what a run writes once."""
  return number() == 0


# ----- host values -----


def own_rows(num_rows: int) -> slice:
  """Returns the rows of a batch that are this process's share.

  Shares are contiguous, in the order of the processes, and differ by at most
  one row.

  Args:
    num_rows: Rows of the batch.
  """
  return _shares(num_rows)[number()]


def _shares(num_rows: int) -> list[slice]:
  bounds = [num_rows * i // count() for i in range(count() + 1)]
  return [slice(*pair) for pair in zip(bounds, bounds[1:])]


def gather_rows(tree: Any, num_rows: int) -> Any:
  """Joins the shares of all processes.

  Args:
    tree: Pytree of arrays of at most 32 bits an element, each leading with the
      rows of `own_rows(num_rows)`; other axes are equal in all processes.
    num_rows: Rows of the batch.

  Returns:
    The same with all rows, equal in all processes.
  """
  if count() == 1:
    return tree
  shares = _shares(num_rows)
  largest = max(share.stop - share.start for share in shares)

  def gather(own):
    own = np.asarray(own)
    missing = [(0, largest - len(own))] + [(0, 0)] * (own.ndim - 1)
    stacked = multihost_utils.process_allgather(np.pad(own, missing))
    parts = [
      part[: share.stop - share.start] for part, share in zip(stacked, shares)
    ]
    return np.concatenate(parts).astype(own.dtype)

  return jax.tree.map(gather, tree)


def gather(values: Sequence[float | int | bool]) -> np.ndarray:
  """Returns the numbers of every process, float32 [processes, values]."""
  own = np.asarray(values, np.float32)
  if count() == 1:
    return own[None]
  return np.asarray(multihost_utils.process_allgather(own))


def wait_for_all(name: str) -> None:
  """Returns when every process has come here."""
  if count() > 1:
    multihost_utils.sync_global_devices(name)


# ----- arrays over the devices of all processes -----


def devices() -> list[jax.Device]:
  """Returns all devices, those of a process beside one another."""
  return sorted(jax.devices(), key=lambda one: (one.process_index, one.id))


def place(x: Any, sharding: Sharding) -> jax.Array:
  """Puts an array that every process holds on devices of all of them."""
  if sharding.is_fully_addressable:
    return jax.device_put(x, sharding)
  if isinstance(x, jax.Array) and x.sharding == sharding:
    return x
  whole = np.asarray(x)
  return jax.make_array_from_callback(
    whole.shape, sharding, lambda index: whole[index]
  )


def fetch(x: Any) -> np.ndarray:
  """Returns a whole array on the host; every process has to call it."""
  if not isinstance(x, jax.Array) or x.is_fully_addressable:
    return np.asarray(x)
  if not x.is_fully_replicated:
    assert isinstance(x.sharding, NamedSharding)
    x = _replicate(x.sharding.mesh)(x)
  return np.asarray(x.addressable_data(0))


@functools.cache
def _replicate(mesh: Mesh):
  return jax.jit(
    lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec())
  )
