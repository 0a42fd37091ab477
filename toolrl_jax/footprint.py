"""What a compiled program needs of one chip of a TPU slice.

From a slice's name to descriptions of its chips, and from a lowered program to
the bytes that a chip must hold, by compiling it with libtpu on a machine that
need not have a TPU. The module does not know configurations or models.
"""

import contextlib
import importlib.util
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from toolrl_jax import configuration, lowering, step_bound

_GIB = 2**30
# What the runtime keeps of a chip for itself, in bytes: libtpu compiles for
# 15.75 of a v5e's 16 GiB.
_RESERVED = _GIB // 4
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# What the compiler says when a program exceeds the chip's memory.
_EXCEEDED = re.compile(
  # As libtpu 0.0.5x says it, arguments included, and as older ones do.
  r"memory required for [^(]*\(([\d.]+)([KMGT])\)|Used ([\d.]+)([KMGT]) of"
)
# Without them libtpu asks the cloud's metadata server and complains at length.
_OFF_CLOUD = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  # Nothing runs on a chip, so plans need not wait for each other.
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class Topology(NamedTuple):
  """A TPU slice.

  Attributes:
    name: As given, "v5e:4x4".
    devices: Descriptions of its chips.
    memory: Bytes of one chip.
    chip: Its peak figures; None where they are not known.
  """

  name: str
  devices: Sequence[jax.Device]
  memory: int
  chip: step_bound.Chip | None = None

  @property
  def num_hosts(self) -> int:
    """Hosts of the slice."""
    return len({device.process_index for device in self.devices})


class Footprint(NamedTuple):
  """What one program needs of one chip, in bytes.

  Attributes:
    name: The program.
    arguments: What it takes.
    outputs: What it gives, in memory of its own.
    donated: Outputs that take the place of arguments.
    temporaries: Its largest need while it runs.
    code: The program itself.
    beside: What lies there meanwhile and is not its argument.
    total: All of them, `donated` aside.
    is_fit: Whether the total is within what the runtime leaves of the memory.
    compile_secs: Seconds that the compilation took.
  """

  name: str
  arguments: int
  outputs: int
  donated: int
  temporaries: int
  code: int
  beside: int
  total: int
  is_fit: bool
  compile_secs: float


def topology(name: str) -> Topology:
  """Describes a TPU slice that need not be there.

  Args:
    name: Generation and chips along each axis: "v5e:4x4", "v5p:2x2x2"; "local"
      is what this machine has.

  Returns:
    Its chips.

  Raises:
    UsageError: No such slice, or libtpu is not installed.
  """
  if name == "local":
    return _local()
  generation, _, layout = name.partition(":")
  if generation not in step_bound.CHIPS or not re.fullmatch(
    r"\d+(x\d+)+", layout
  ):
    raise configuration.UsageError(
      f"--topology must be one of {', '.join(step_bound.CHIPS)} with its "
      f"chips, as in v5e:4x4 or v5p:2x2x2, or local, got {name!r}."
    )
  if importlib.util.find_spec("libtpu") is None:
    raise configuration.UsageError(
      "toolrl-plan needs libtpu, which is not installed; run it with "
      "`uv run --extra plan toolrl-plan ...`."
    )
  sides = [int(side) for side in layout.split("x")]
  try:
    with _environment(_OFF_CLOUD):
      described = topologies.get_topology_desc(
        platform="tpu",
        topology_name=name,
        chips_per_host_bounds=_host_bounds(sides),
      )
  except (RuntimeError, ValueError) as error:
    raise configuration.UsageError(
      f"--topology={name} is no slice that libtpu knows: {error}"
    ) from error
  chip = step_bound.CHIPS[generation]
  return Topology(name, described.devices, chip.memory_gib * _GIB, chip)


def _local() -> Topology:
  """Describes the devices of this machine; processors share its memory."""
  devices = jax.devices()
  limit = (devices[0].memory_stats() or {}).get("bytes_limit")
  if limit is None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = pages // len(devices)
  # What the runtime keeps is counted below for every chip.
  return Topology("local", devices, int(limit) + _RESERVED)


def _host_bounds(sides: Sequence[int]) -> list[int]:
  """Returns the chips of one host along three axes: 2 x 2, or fewer."""
  return [min(2, side) for side in sides[:2]] + [1] * (3 - len(sides[:2]))


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
  """Sets environment variables that are not set, for a while."""
  added = {name: x for name, x in values.items() if name not in os.environ}
  os.environ.update(added)
  try:
    yield
  finally:
    for name in added:
      del os.environ[name]


def measure(program: lowering.Program, memory: int) -> Footprint:
  """Compiles a program and reads what it needs of a chip.

  Args:
    program: What to compile.
    memory: Bytes of the chip.

  Returns:
    Its need. Where the compiler refuses, it is taken from its message: then
    all but `beside` and `total` stand under `temporaries`.

  Raises:
    UsageError: The compiler fails for another reason.
  """
  started = time.perf_counter()
  try:
    compiled = program.lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    secs = time.perf_counter() - started
    used = _EXCEEDED.search(str(error))
    if used is None:
      raise configuration.UsageError(
        f"{program.name} does not compile: {str(error)[:300]}"
      ) from error
    number, unit = used[1] or used[3], used[2] or used[4]
    need = int(float(number) * _UNITS[unit])
    total = need + program.beside
    return Footprint(
      program.name, 0, 0, 0, need, 0, program.beside, total, False, secs
    )
  secs = time.perf_counter() - started
  found: Any = compiled.memory_analysis()
  donated = found.alias_size_in_bytes
  own = Footprint(
    name=program.name,
    arguments=found.argument_size_in_bytes,
    outputs=found.output_size_in_bytes - donated,
    donated=donated,
    temporaries=found.temp_size_in_bytes,
    code=found.generated_code_size_in_bytes,
    beside=program.beside,
    total=0,
    is_fit=False,
    compile_secs=secs,
  )
  total = own.arguments + own.outputs + own.temporaries + own.code + own.beside
  return own._replace(total=total, is_fit=total <= memory - _RESERVED)
