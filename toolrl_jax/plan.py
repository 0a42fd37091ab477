"""The command `toolrl-plan`: what a configuration needs on a TPU slice.

    toolrl-plan --config=FILE --topology=v5e:4x4 [--json] [--try] \
      [--utilisation=0.4] [--config.x.y=z ...]

Compiles the update, prefill and decode programs of a run for chips that need
not be there, on any CPU machine with libtpu (the extra `plan`), and prints for
each what a chip must hold, the seconds that a step takes at least, and the
matrix FLOPs of the update with the prompt computed once and once a rollout. The
topology `local` is what this machine has. With --try a plan that does not fit is
made again with smaller micro-batches, recomputation, fewer decode rows and a
tensor axis, until it does. No parameters are loaded or drawn: the model
is the `config.json` in `config.model.path`, or a preset; where nothing lies at
that path, the preset whose name the folder's name starts with. A mistake ends
with one line and status 2.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax
import tqdm
from absl import flags
from jax.sharding import Mesh

from toolrl_jax import (
  command_line,
  configuration,
  footprint,
  lowering,
  parts,
  step_bound,
)
from toolrl_jax.model import flops, presets, sharding, source, weights
from toolrl_jax.rollout import sampling
from toolrl_jax.training.state import TrainState

_GIB = 2**30

USAGE = """\
toolrl-plan: what a configuration needs on a TPU slice, before it is paid for.

  toolrl-plan --config=FILE --topology=NAME [--json] [--try]
    [--utilisation=0.4] [--config.section.field=VALUE ...]

  --config        a recipe; nothing at its paths is needed: the model is the
                  config.json in config.model.path or, where nothing lies there,
                  the preset that the folder is named after
  --topology      v5e:4x4, v6e:2x4, v5p:2x2x2, ... (chips along each axis), or
                  local: what this machine has
  --try           where it does not fit: looks for the nearest change that does
                  (smaller micro-batches, recomputation, fewer decode rows, a
                  tensor axis), one more compilation each
  --utilisation   share of the chips' peak to assume for the seconds, above 0
                  and at most 1
  --json          prints an object in place of the tables

Examples:
  toolrl-plan --config=configs/toolrl_qwen25_3b.py --topology=v5e:4x4 --try
  toolrl-plan --config=configs/efficient_multi_qwen3_4b.py \\
    --topology=v5e:4x4 --config.rollout.slots=16

Compiles update, prefill and decode ahead of time, minutes for a real model, on
any CPU machine with the extra `plan`: uv run --extra plan toolrl-plan ...
Prints what each needs of a chip in GiB, what a chip keeps, the least seconds of
a step, and the update's matrix FLOPs with the prompt once and repeated; the
columns stand in docs/plan.md. Writes no file. Status: 0 printed, also where it
does not fit; 2 a mistake."""

# Least completion tokens whose logits exist at a time, of those that are tried.
_SMALLEST_CHUNK = 512
# Schedules need a number of steps; nothing compiled depends on it.
_ANY_STEPS = 1_000_000


class LayoutFlops(NamedTuple):
  """Matrix FLOPs of one group's update in one layout.

  Attributes:
    layout: "shared" or "repeated".
    parts: From the closed formula, over the pairs that the mask lets through.
    layer_ratio: One layer by the compiler's count over the same by formula.
  """

  layout: Literal["shared", "repeated"]
  parts: flops.GroupFlops
  layer_ratio: float


class Plan(NamedTuple):
  """What the command prints.

  Attributes:
    topology: The slice.
    mesh: Size of each mesh axis.
    model: Name or path of the model.
    num_params: Its parameters.
    sizes: Sizes of the largest step.
    num_blocks: Micro-steps of an optimizer step.
    footprints: Need of each program.
    layouts: FLOPs, "shared" first.
    held: Bytes a chip by what they are: parameters, optimizer, engine's
      weights, keys and values.
    bound: The least that a step takes; None where the chip's peak is unknown.
    changes: Overrides that make it fit, where it was asked for and does not by
      itself; None where none were found or looked for.
  """

  topology: footprint.Topology
  mesh: dict[str, int]
  model: str
  num_params: int
  sizes: lowering.Sizes
  num_blocks: int
  footprints: list[footprint.Footprint]
  layouts: list[LayoutFlops]
  held: dict[str, int] = {}  # noqa: RUF012
  bound: step_bound.StepBound | None = None
  changes: list[str] | None = None

  @property
  def is_fit(self) -> bool:
    """Whether every program fits."""
    return all(row.is_fit for row in self.footprints)


# ----- the command -----


def run(argv: Sequence[str] | None = None) -> None:
  """Runs the command; a user's mistake ends with one line and status 2.

  Args:
    argv: Program name and arguments. None: those of the process.
  """
  argv = list(sys.argv if argv is None else argv)
  if any(argument in ("--help", "-h") for argument in argv[1:]):
    sys.stdout.write(f"{USAGE}\n")
    return
  # The command reads its flags itself; absl would say that it logs too early.
  flags.FLAGS.mark_as_parsed()
  # The chips of a slice are only described; the host computes shapes.
  try:
    arguments, rest = _parse(argv[1:])
    if arguments.topology != "local":
      jax.config.update("jax_platforms", "cpu")
    config, _ = command_line.load([argv[0], *rest, "--workdir=."], USAGE)
    if arguments.topology == "local":
      parts.prepare_devices(config)
    slice_ = footprint.topology(arguments.topology)
    plan = make_plan(config, slice_, utilisation=arguments.utilisation)
    if arguments.is_tried and not plan.is_fit:
      plan = nearest_fit(config, plan, utilisation=arguments.utilisation)
  except configuration.UsageError as error:
    sys.stderr.write(f"toolrl-plan: {' '.join(str(error).split())}\n")
    sys.exit(2)
  text = json.dumps(as_json(plan)) if arguments.json else as_table(plan)
  sys.stdout.write(f"{text}\n")


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  parser = command_line.FlagParser(
    prog="toolrl-plan", allow_abbrev=False, add_help=False
  )
  parser.add_argument("--topology")
  parser.add_argument("--json", action="store_true")
  parser.add_argument("--try", action="store_true", dest="is_tried")
  parser.add_argument("--utilisation", type=float, default=0.4)
  arguments, rest = parser.parse_known_args(argv)
  if not arguments.topology:
    raise configuration.UsageError(
      "--topology is required, none was given; try --topology=v5e:4x4."
    )
  if not 0 < arguments.utilisation <= 1:
    raise configuration.UsageError(
      "--utilisation must be in (0, 1], a share of the chip's peak, got "
      f"{arguments.utilisation}."
    )
  return arguments, rest


# ----- the plan -----


def make_plan(
  config: ml_collections.ConfigDict,
  slice_: footprint.Topology,
  *,
  utilisation: float = 0.4,
) -> Plan:
  """Compiles the programs of a configuration for a slice.

  Args:
    config: A checked configuration.
    slice_: From `footprint.topology`.
    utilisation: Share of the chip's peak that is assumed, in (0, 1].

  Returns:
    What each program needs, and the FLOPs of the update.

  Raises:
    UsageError: The model, the mesh or the optimizer does not fit.
  """
  model, decoder_config = model_shape(config)
  mesh = _mesh(config, decoder_config, slice_.devices)
  sizes = _sizes(config)
  options = parts.update_options(config)
  optimizer = parts.optimizer(config, _ANY_STEPS)
  state = lowering.train_state(
    decoder_config, optimizer, options=options, mesh=mesh,
    param_dtype=jnp.dtype(config.model.param_dtype),
  )  # fmt: skip
  engine = _engine(config, decoder_config, sizes, state)
  programs = _programs(
    config, decoder_config, optimizer, sizes, mesh, state, engine
  )
  held = _held(state, engine)
  return Plan(
    topology=slice_,
    mesh=dict(mesh.shape),
    model=model,
    num_params=sum(x.size for x in jax.tree.leaves(state.params)),
    sizes=sizes,
    num_blocks=lowering.update_block(sizes, options=options, mesh=mesh)[1],
    footprints=[
      footprint.measure(program, slice_.memory)
      for program in _named_while_compiled(programs)
    ],
    layouts=[
      _layout_flops(decoder_config, sizes, options._replace(layout=layout))
      for layout in ("shared", "repeated")
    ],
    held=held,
    bound=None
    if slice_.chip is None
    else step_bound.step_bound(
      decoder_config,
      sizes,
      groups_per_step=config.sampler.prompts_per_step,
      epochs_per_batch=config.loss.epochs_per_batch,
      layouts=(config.rollout.layout, config.loss.layout),
      chip=slice_.chip,
      num_chips=len(slice_.devices),
      num_engines=slice_.num_hosts * mesh.shape["tensor"],
      engine_bytes=held.get("engine", 0) + held.get("keys and values", 0),
      utilisation=utilisation,
    ),
  )


def _named_while_compiled(
  programs: Sequence[lowering.Program],
) -> Iterator[lowering.Program]:
  """Yields the programs; a terminal shows which one compiles."""
  with tqdm.tqdm(
    total=len(programs), unit="program", leave=False, disable=None
  ) as bar:
    for program in programs:
      bar.set_description(f"compiling {program.name}")
      yield program
      bar.update()


def _held(state: TrainState, engine: tuple[Any, Any] | None) -> dict[str, int]:
  """Returns the bytes a chip of what a run keeps."""
  held = {
    "parameters": lowering.bytes_per_device(state.params),
    "optimizer": lowering.bytes_per_device(state.opt_state),
  }
  if engine is None:
    return held
  params, rows = engine
  return held | {
    "engine": lowering.bytes_per_device(params),
    "keys and values": lowering.bytes_per_device(rows),
  }


def _engine(
  config: ml_collections.ConfigDict,
  decoder_config: presets.DecoderConfig,
  sizes: lowering.Sizes,
  state: TrainState,
) -> tuple[Any, Any] | None:
  """Describes the weights and rows of the engine; only GRPO needs one."""
  if config.algorithm != "grpo":
    return None
  dtype = jnp.dtype(config.model.compute_dtype)
  params = lowering.engine_params(state, dtype)
  rows = lowering.decode_rows(
    decoder_config, sizes, params=params, layout=config.rollout.layout,
    compute_dtype=dtype,
  )  # fmt: skip
  return params, rows


# ----- the nearest change that fits -----


def nearest_fit(
  config: ml_collections.ConfigDict, plan: Plan, *, utilisation: float
) -> Plan:
  """Tries changes, the cheapest first, each on top of those before it.

  Args:
    config: The configuration that does not fit.
    plan: Its plan.
    utilisation: As in `make_plan`.

  Returns:
    The first plan that fits, with its `changes`; the given one where none does.
  """
  changed = config.copy_and_resolve_references()
  changes: list[str] = []
  found = plan
  while change := _next_change(changed, found):
    name, value = change
    section, field = name.split(".")
    changed[section][field] = value
    changes.append(f"--config.{name}={value}")
    sys.stderr.write(f"does not fit; tries {' '.join(changes)}\n")
    found = make_plan(changed, plan.topology, utilisation=utilisation)
    if found.is_fit:
      return found._replace(changes=changes)
  return plan


def _next_change(
  config: ml_collections.ConfigDict, plan: Plan
) -> tuple[str, Any] | None:
  """Returns the next field to change for what does not fit, and its value."""
  failing = {row.name.split()[0] for row in plan.footprints if not row.is_fit}
  if "update" in failing:
    if config.loss.micro_groups != 1:
      return "loss.micro_groups", 1
    if config.model.remat != "layer":
      return "model.remat", "layer"
    if config.loss.logprob_chunk_tokens > _SMALLEST_CHUNK:
      return "loss.logprob_chunk_tokens", _SMALLEST_CHUNK
  elif config.rollout.slots > max(config.rollout.group_size, 8):
    return "rollout.slots", max(config.rollout.slots // 2, 8)
  chips_per_host = len(plan.topology.devices) // plan.topology.num_hosts
  tensor = 2 * plan.mesh["tensor"]
  _, decoder_config = model_shape(config)
  is_dividing = not (
    chips_per_host % tensor or decoder_config.num_heads % tensor
  )
  if config.mesh.strategy == "sharded" and is_dividing:
    return "mesh.tensor", tensor
  return None


def _programs(
  config: ml_collections.ConfigDict,
  decoder_config: presets.DecoderConfig,
  optimizer: optax.GradientTransformation,
  sizes: lowering.Sizes,
  mesh: Mesh,
  state: TrainState,
  engine: tuple[Any, Any] | None,
) -> list[lowering.Program]:
  """Lowers what a run compiles: the update and, in GRPO, the rollout."""
  # The engine frees its rows between rollouts.
  kept = 0 if engine is None else lowering.bytes_per_device(engine[0])
  programs = lowering.update_programs(
    decoder_config, optimizer, sizes, options=parts.update_options(config),
    mesh=mesh, state=state, beside=kept,
  )  # fmt: skip
  if engine is not None:
    params, rows = engine
    programs += lowering.rollout_programs(
      decoder_config, sizes, params=params, rows=rows,
      options=_sampling_options(config, decoder_config),
      decode_chunk=config.rollout.decode_chunk,
      compute_dtype=jnp.dtype(config.model.compute_dtype),
      beside=lowering.bytes_per_device(state),
    )  # fmt: skip
  return programs


def model_shape(
  config: ml_collections.ConfigDict,
) -> tuple[str, presets.DecoderConfig]:
  """Returns the name and shape of the model of a configuration.

  Raises:
    UsageError: Its files cannot be read, and no preset has its name.
  """
  section = config.model
  try:
    if not section.path:
      return section.preset, presets.lookup(section.preset)
    try:
      source.locate(section.path)
    except ValueError:
      # A slice is planned before a checkpoint is fetched.
      folder = os.path.basename(os.path.normpath(section.path)).lower()
      named = [name for name in presets.PRESETS if folder.startswith(name)]
      if not named:
        raise
      return max(named, key=len), presets.PRESETS[max(named, key=len)]
    return section.path, weights.load_config(section.path)
  except (ValueError, OSError, TypeError) as error:
    raise configuration.UsageError(str(error)) from error


def _mesh(
  config: ml_collections.ConfigDict,
  decoder_config: presets.DecoderConfig,
  devices: Sequence[jax.Device],
) -> Mesh:
  """Returns the mesh over a slice; "pmap" is a mesh of whole copies."""
  section = config.mesh
  axes = {"data": section.data, "fsdp": section.fsdp, "tensor": section.tensor}
  if section.strategy == "pmap":
    axes = {"data": -1, "fsdp": 1, "tensor": 1}
  try:
    mesh = sharding.make_mesh(**axes, devices=devices)
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error
  tensor, num_heads = mesh.shape["tensor"], decoder_config.num_heads
  if num_heads % tensor:
    raise configuration.UsageError(
      f"the tensor axis must divide the model's {num_heads} heads, got "
      f"{tensor}; set config.mesh.tensor."
    )
  return mesh


def _sizes(config: ml_collections.ConfigDict) -> lowering.Sizes:
  """Returns the sizes of the largest step of a configuration."""
  buckets = parts.prompt_buckets(config)
  is_grpo = config.algorithm == "grpo"
  group_size = config.rollout.group_size if is_grpo else 1
  return lowering.Sizes(
    num_groups=-(-config.sampler.prompts_per_step // config.loss.minibatches),
    prompt=buckets[-1],
    completion=parts.completion_buckets(config)[-1],
    num_kept=(config.selection.keep or group_size) if is_grpo else 1,
    group_size=group_size,
    slots=config.rollout.slots,
  )


def _sampling_options(
  config: ml_collections.ConfigDict, decoder_config: presets.DecoderConfig
) -> sampling.SamplingOptions:
  """Returns the sampling of a run; one stop token, as most models have."""
  return sampling.make_options(
    top_p=config.rollout.top_p,
    top_k=config.rollout.top_k,
    stop_ids=(0,),
    vocab_size=decoder_config.vocab_size,
  )


def _layout_flops(
  config: presets.DecoderConfig, sizes: lowering.Sizes, options: Any
) -> LayoutFlops:
  """Counts one layout by the formula and lets the compiler count a layer."""
  count = lambda decoder_config, pairs: flops.group_update(
    decoder_config,
    prompt_tokens=sizes.prompt,
    completion_tokens=sizes.completion,
    num_kept=sizes.num_kept,
    layout=options.layout,
    pairs=pairs,
  )
  layer = count(config._replace(num_layers=1), "computed").body
  counted = lowering.layer_flops(config, sizes, options=options)
  return LayoutFlops(options.layout, count(config, "seen"), counted / layer)


# ----- what is printed -----

_COLUMNS = (
  "arguments", "outputs", "temporaries", "code", "beside", "total",
)  # fmt: skip


def as_table(plan: Plan) -> str:
  """Writes a plan as text, sizes in GiB a chip."""
  slice_, sizes = plan.topology, plan.sizes
  axes = " x ".join(f"{name} {size}" for name, size in plan.mesh.items())
  lines = [
    f"{plan.model}, {plan.num_params / 1e9:.2f} B parameters, on "
    f"{slice_.name}: {len(slice_.devices)} chips of {slice_.memory // _GIB} "
    f"GiB, mesh {axes}",
    f"prompt {sizes.prompt}, completion {sizes.completion}, rollouts "
    f"{sizes.group_size}, updated {sizes.num_kept}; a step of "
    f"{sizes.num_groups} groups in {plan.num_blocks} micro-steps",
    "",
    f"{'GiB a chip':18}"
    + "".join(f"{name:>12}" for name in _COLUMNS)
    + f"{'fits':>6}{'compiled in':>13}",
  ]
  for row in plan.footprints:
    numbers = (getattr(row, name) / _GIB for name in _COLUMNS)
    lines.append(
      f"{row.name:18}"
      + "".join(f"{number:12.2f}" for number in numbers)
      + f"{'yes' if row.is_fit else 'NO':>6}{row.compile_secs:11.0f} s"
    )
  if plan.held:
    held = ", ".join(
      f"{name} {size / _GIB:.2f}" for name, size in plan.held.items()
    )
    lines += ["", f"kept, GiB a chip: {held}"]
  lines += ["", *_flops_lines(plan.layouts)]
  if plan.bound is not None:
    lines += ["", *_bound_lines(plan.bound)]
  if plan.changes is not None:
    lines += ["", f"fits with {' '.join(plan.changes)}"]
  elif not plan.is_fit:
    lines += ["", "does not fit; --try looks for the nearest change that does"]
  return "\n".join(lines)


def _bound_lines(bound: step_bound.StepBound) -> list[str]:
  """Writes what a step takes at least."""
  return [
    f"a step generates {bound.generated_tokens:,} and updates on "
    f"{bound.updated_tokens:,} tokens, all full: rollout "
    f"{bound.rollout_flops / 1e15:.1f} PFLOP, update "
    f"{bound.update_flops / 1e15:.1f} PFLOP",
    f"seconds at the chips' peak: rollout {bound.rollout_secs:.1f}, update "
    f"{bound.update_secs:.1f}; at {bound.utilisation:.0%} of it "
    f"{bound.assumed_secs:.1f} together",
  ]


def _flops_lines(layouts: Sequence[LayoutFlops]) -> list[str]:
  """Writes the FLOPs of both layouts and their ratio."""
  lines = [
    f"{'TFLOP a group':18}{'projections':>12}{'attention':>12}{'logits':>12}"
    f"{'total':>12}{'layer, compiler / formula':>28}"
  ]
  for one in layouts:
    split = one.parts
    numbers = (
      sum(split.projections.values()), split.attention, split.logits,
      split.total,
    )  # fmt: skip
    lines.append(
      f"{one.layout:18}"
      + "".join(f"{number / 1e12:12.1f}" for number in numbers)
      + f"{one.layer_ratio:28.4f}"
    )
  shared, repeated = (one.parts.total for one in layouts)
  return [*lines, f"{'shared / repeated':18}{shared / repeated:48.3f}"]


def as_json(plan: Plan) -> dict[str, Any]:
  """Returns a plan as a mapping for JSON, in bytes, seconds and FLOPs."""
  shared, repeated = (one.parts.total for one in plan.layouts)
  return {
    "topology": plan.topology.name,
    "chips": len(plan.topology.devices),
    "chip_bytes": plan.topology.memory,
    "mesh": plan.mesh,
    "model": plan.model,
    "num_params": plan.num_params,
    "sizes": plan.sizes._asdict(),
    "micro_steps": plan.num_blocks,
    "programs": [row._asdict() for row in plan.footprints],
    "is_fit": plan.is_fit,
    "held": plan.held,
    "step": None if plan.bound is None else plan.bound._asdict(),
    "changes": plan.changes,
    "group_flops": {
      one.layout: {
        **one.parts._asdict(),
        "total": one.parts.total,
        "layer_ratio": one.layer_ratio,
      }
      for one in plan.layouts
    },
    "shared_over_repeated": shared / repeated,
  }


if __name__ == "__main__":
  run()
