"""The configuration to the parts of a run: policy, sampler, update, engine.

Each function reads one section of the configuration and returns one part with
explicit types; below this module nothing knows ml_collections.
"""

import contextlib
import fcntl
import functools
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax
import transformers
from absl import logging

from toolrl_jax import configuration, hosts, json_file
from toolrl_jax.data import padding
from toolrl_jax.data import sampler as sampler_lib
from toolrl_jax.model import (
  decoder,
  presets,
  sharding,
  source,
  tokenizer,
  weights,
)
from toolrl_jax.rollout import engine
from toolrl_jax.training import groups, profile, state, update


class Policy(NamedTuple):
  """What is trained, before it is placed on devices for training.

  Attributes:
    config: Shape of the decoder.
    params: Parameter pytree.
    tokenizer: Text to ids and back, with the chat template.
    stop_ids: Tokens that end a completion.
    source: Where the tokenizer files lie; an export copies them.
  """

  config: presets.DecoderConfig
  params: decoder.Params
  tokenizer: transformers.PreTrainedTokenizerBase
  stop_ids: tuple[int, ...]
  source: str


def policy(config: ml_collections.ConfigDict) -> Policy:
  """Loads or draws the policy.

  Raises:
    UsageError: The checkpoint, preset or tokenizer cannot be read.
  """
  section = config.model
  dtype = jnp.dtype(section.param_dtype)
  origin = section.tokenizer or section.path
  try:
    if section.path:
      decoder_config, params = weights.load(
        section.path,
        dtype=dtype,
        shardings=functools.partial(_param_shardings, config),
      )
    else:
      decoder_config = presets.lookup(section.preset)
      params = decoder.init_params(
        decoder_config, jax.random.key(config.seed), dtype=dtype
      )
    text = tokenizer.load(origin)
    stop_ids = weights.stop_ids(origin)
  except configuration.UsageError:
    raise  # Of the mesh, not of the checkpoint.
  except (ValueError, OSError, TypeError, ZeroDivisionError) as error:
    # The last two come from numbers in its files that cannot be.
    raise configuration.UsageError(
      f"checkpoint {section.path or section.preset!r}: {error}"
    ) from error
  if len(text) > decoder_config.vocab_size:
    raise configuration.UsageError(
      f"the tokenizer in {origin} has {len(text)} tokens, more than the "
      f"{decoder_config.vocab_size} rows of the embedding; name the "
      "checkpoint's own in config.model.tokenizer."
    )
  return Policy(decoder_config, params, text, tuple(stop_ids), origin)


def mesh(config: ml_collections.ConfigDict) -> jax.sharding.Mesh:
  """Returns the (data, fsdp, tensor) mesh over all devices."""
  section = config.mesh
  try:
    return sharding.make_mesh(
      data=section.data, fsdp=section.fsdp, tensor=section.tensor
    )
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error


def _param_shardings(
  config: ml_collections.ConfigDict, decoder_config: presets.DecoderConfig
) -> Any:
  """Returns where each parameter is placed while it is read, or None."""
  if config.mesh.strategy == "pmap":
    return None
  return sharding.param_shardings(decoder_config, mesh(config))


def prompt_buckets(config: ml_collections.ConfigDict) -> tuple[int, ...]:
  """Returns the bucket lengths of prompts."""
  longest = config.data.max_prompt_tokens
  return tuple(config.data.prompt_buckets) or padding.default_buckets(longest)


def completion_buckets(config: ml_collections.ConfigDict) -> tuple[int, ...]:
  """Returns the bucket lengths of completions."""
  longest = config.rollout.max_completion_tokens
  given = tuple(config.rollout.completion_buckets)
  return given or padding.default_buckets(longest)


def check_steps(config: ml_collections.ConfigDict) -> None:
  """Checks what names steps, before anything is read.

  Raises:
    UsageError: The warm-up is too long for the steps that are asked for, which
      rows may still make fewer; or the profiled steps are not "a:b".
  """
  _profile_steps(config)
  if config.sampler.max_steps:
    optimizer(config, config.sampler.max_steps)


def optimizer(
  config: ml_collections.ConfigDict, total_steps: int
) -> optax.GradientTransformation:
  """Returns AdamW with clipping and the learning-rate schedule.

  Raises:
    UsageError: The schedule does not fit the run's steps.
  """
  section = config.optimizer
  per_step = config.loss.minibatches * config.loss.epochs_per_batch
  try:
    schedule = state.make_schedule(
      learning_rate=section.learning_rate,
      warmup_steps=section.warmup_steps,
      schedule=section.schedule,
      final_scale=section.final_scale,
      total_steps=total_steps * per_step,
    )
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error
  return state.make_optimizer(
    schedule,
    b1=section.b1,
    b2=section.b2,
    eps=section.eps,
    weight_decay=section.weight_decay,
    clip_norm=section.clip_norm,
  )


def update_options(config: ml_collections.ConfigDict) -> update.UpdateOptions:
  """Returns the static choices of the update."""
  section = config.loss
  return update.UpdateOptions(
    objective=config.algorithm,
    layout=section.layout,
    temperature=(
      config.rollout.temperature if config.algorithm == "grpo" else 1.0
    ),
    clip_low=section.clip_low,
    clip_high=section.clip_high,
    kl_coef=section.kl_coef if section.kl_in == "loss" else 0.0,
    entropy_coef=section.entropy_coef,
    aggregation=section.aggregation,
    max_tokens=config.rollout.max_completion_tokens,
    importance_correction=section.importance_correction,
    chunk_tokens=section.logprob_chunk_tokens,
    remat=config.model.remat,
    compute_dtype=config.model.compute_dtype,
    minibatches=section.minibatches,
    epochs_per_batch=section.epochs_per_batch,
    is_packed=section.packing,
    micro_groups=section.micro_groups,
  )


def updates(
  config: ml_collections.ConfigDict,
  policy: Policy,
  optimizer: optax.GradientTransformation,
) -> update.UpdateFns:
  """Returns the compiled update under the configured strategy.

  Raises:
    UsageError: The strategy or the mesh does not fit the run's processes.
  """
  is_pmap = config.mesh.strategy == "pmap"
  try:
    return update.make_update_fns(
      policy.config,
      optimizer,
      options=update_options(config),
      strategy=config.mesh.strategy,
      mesh=None if is_pmap else mesh(config),
    )
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error


def group_options(config: ml_collections.ConfigDict) -> groups.GroupOptions:
  """Returns the static choices of selection and advantage."""
  return groups.GroupOptions(
    keep=config.selection.keep,
    rule=config.selection.rule,
    zero_variance=config.selection.zero_variance,
    statistics=config.advantage.statistics,
    std=config.advantage.std,
    eps=config.advantage.eps,
  )


def rollout_engine(
  config: ml_collections.ConfigDict, policy: Policy, params: decoder.Params
) -> engine.RolloutEngine:
  """Returns the JetStream engine that holds the policy's weights."""
  section = config.rollout
  return engine.RolloutEngine(
    policy.config,
    params,
    slots=section.slots,
    group_size=section.group_size,
    decode_chunk=section.decode_chunk,
    refill=section.refill,
    layout=section.layout,
    prefill_rows=section.prefill_rows,
    prefix_store_tokens=section.prefix_store_tokens,
    is_unstacked=section.unstack_layers,
    top_p=section.top_p,
    top_k=section.top_k,
    stop_ids=policy.stop_ids,
    seed=config.seed,
    compute_dtype=jnp.dtype(config.model.compute_dtype),
  )


def step_key(
  config: ml_collections.ConfigDict, step: int, purpose: str
) -> jax.Array:
  """Returns the key of one purpose in one step; it depends on nothing else."""
  purposes = ("selection", "minibatches", "shuffle")
  key = jax.random.fold_in(jax.random.key(config.seed), step)
  return jax.random.fold_in(key, purposes.index(purpose))


def sampler(
  config: ml_collections.ConfigDict,
  ids: Sequence[str],
  lengths: Sequence[int],
) -> sampler_lib.PromptSampler:
  """Returns the sampler over the training rows, before its first batch.

  Args:
    config: The configuration.
    ids: Id of each row.
    lengths: Prompt length of each row, in tokens.

  Raises:
    UsageError: Ids are not unique, or an option does not fit.
  """
  section = config.sampler
  try:
    return sampler_lib.PromptSampler(
      ids,
      prompts_per_step=section.prompts_per_step,
      streak=section.streak if config.algorithm == "grpo" else 0,
      reentry=section.reentry,
      probe_every_epochs=section.probe_every_epochs,
      num_epochs=section.num_epochs,
      max_steps=section.max_steps,
      seed=config.seed,
      is_shuffled=section.shuffle,
      lengths=lengths if section.group_lengths else None,
    )
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error


def profiler(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> profile.StepProfiler:
  """Returns the profiler of the steps that the configuration names.

  Raises:
    UsageError: The field is not "a:b".
  """
  return profile.StepProfiler(_profile_steps(config), workdir / "profile")


def _profile_steps(config: ml_collections.ConfigDict) -> tuple[int, int] | None:
  try:
    return profile.parse_steps(config.logging.profile_steps)
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error


def restore_order(
  order: sampler_lib.PromptSampler, saved: dict[str, Any]
) -> None:
  """Puts the sampler where the checkpoint left it.

  Raises:
    UsageError: The checkpoint belongs to other rows or other sampler options.
  """
  try:
    order.restore(saved)
  except ValueError as error:
    raise configuration.UsageError(
      f"the checkpoint does not fit this configuration: {error}"
    ) from error


def prepare_devices(config: ml_collections.ConfigDict) -> None:
  """Sets simulated devices and joins the run's processes, before all else.

  Raises:
    UsageError: The other processes cannot be joined.
  """
  if config.mesh.cpu_devices:
    try:
      jax.config.update("jax_num_cpu_devices", config.mesh.cpu_devices)
    except RuntimeError as error:
      # A notebook may have used JAX before.
      logging.warning("config.mesh.cpu_devices has no effect: %s", error)
  section = config.mesh
  try:
    hosts.connect(
      section.coordinator, section.num_processes, section.process_id
    )
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error


def prepare_workdir(workdir: pathlib.Path) -> None:
  """Makes the run's folder and checks what will be written there.

  Raises:
    UsageError: The folder cannot be written, or holds something else.
  """
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=workdir):
      pass
    source.check_replaceable(workdir / "export")
  except (OSError, ValueError) as error:
    raise configuration.UsageError(
      f"--workdir must be a folder that a run can write: {error}"
    ) from error
  for name, is_right in (
    ("checkpoints", pathlib.Path.is_dir),
    ("metrics.jsonl", pathlib.Path.is_file),
    ("samples.jsonl", pathlib.Path.is_file),
    ("config.json", pathlib.Path.is_file),
    ("run.json", pathlib.Path.is_file),
    ("warnings.jsonl", pathlib.Path.is_file),
    ("summary.json", pathlib.Path.is_file),
    (".lock", pathlib.Path.is_file),
    ("tensorboard", pathlib.Path.is_dir),
  ):
    path = workdir / name
    if path.exists() and not is_right(path):
      raise configuration.UsageError(
        f"{path} is not what a run writes there; choose another --workdir."
      )


def refuse_files_of(
  workdir: pathlib.Path, command: str, names: Sequence[str]
) -> None:
  """Keeps a command out of the folder of another command.

  Args:
    workdir: The folder.
    command: The other command.
    names: What only the other command writes.

  Raises:
    UsageError: One of them lies there.
  """
  for name in names:
    if (workdir / name).exists():
      raise configuration.UsageError(
        f"--workdir must not be a folder of {command}, {workdir} holds its "
        f"{name}; choose another."
      )


def own_folder(workdir: pathlib.Path) -> pathlib.Path:
  """Returns where this process writes its own files; made when missing.

  Metrics, samples and the configuration of the first process are the run's;
  the others keep theirs apart, for who looks for what went wrong.
  """
  if hosts.is_first():
    return workdir
  folder = workdir / "processes" / str(jax.process_index())
  folder.mkdir(parents=True, exist_ok=True)
  return folder


@contextlib.contextmanager
def sole_writer(workdir: pathlib.Path) -> Iterator[None]:
  """Keeps other runs out of a folder until the end of the `with` block.

  Raises:
    UsageError: Another run writes there.
  """
  path = workdir / ".lock"
  with path.open("a+") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      file.seek(0)
      raise configuration.UsageError(
        f"another run, process {file.read().strip() or 'unknown'}, writes to "
        f"{workdir}; stop it or choose another --workdir."
      ) from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    yield


def write_config(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> None:
  """Writes config.json, and warns of fields that an older one has otherwise."""
  path = workdir / "config.json"
  resolved = json.loads(config.to_json_best_effort())
  changed = []
  if path.is_file():
    try:
      changed = _differences(json.loads(path.read_bytes()), resolved, "")
    except ValueError:
      changed = ["the older config.json was not readable"]
  for line in changed:
    logging.warning("the configuration changed since the last start: %s", line)
  json_file.write(path, resolved, sort_keys=True)


def _differences(old: Any, new: Any, name: str) -> list[str]:
  if isinstance(old, dict) and isinstance(new, dict):
    return [
      line
      for key in sorted({*old, *new})
      for line in _differences(old.get(key), new.get(key), f"{name}.{key}")
    ]
  return [] if old == new else [f"{name[1:]}: {old!r} -> {new!r}"]
