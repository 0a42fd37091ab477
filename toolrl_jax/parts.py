"""The configuration to the parts of a run: policy, rows, update, engine.

Each function reads one section of the configuration and returns one part with
explicit types; below this module nothing knows ml_collections.
"""

import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import transformers
from absl import logging

from toolrl_jax import configuration, scoring, types
from toolrl_jax.data import dataset, preflight, prompt, synthetic
from toolrl_jax.data import sampler as sampler_lib
from toolrl_jax.evaluation import heldout
from toolrl_jax.kernels import loss as loss_kernel
from toolrl_jax.model import decoder, presets, sharding, tokenizer, weights
from toolrl_jax.parsing import tool_calls
from toolrl_jax.rollout import engine
from toolrl_jax.training import batches, groups, profile, state, update

# Rejected rows named in the log; all of them stand in rejected.jsonl.
_NUM_LOGGED = 5


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


class Rows(NamedTuple):
  """Rows of one split that can be used, with their prompts.

  Attributes:
    examples: Rows.
    prompt_ids: Token ids of each row's prompt.
    targets: Right completion text of each row, for SFT.
    buckets: Bucket lengths of the prompts.
    rejected: Rows left out, with the reason.
  """

  examples: list[types.Example]
  prompt_ids: list[list[int]]
  targets: list[str]
  buckets: tuple[int, ...]
  rejected: list[types.Rejected]


def policy(config: ml_collections.ConfigDict) -> Policy:
  """Loads or draws the policy.

  Raises:
    UsageError: The checkpoint, preset or tokenizer cannot be read.
  """
  section = config.model
  dtype = jnp.dtype(section.param_dtype)
  source = section.tokenizer or section.path
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
    text = tokenizer.load(source)
    stop_ids = weights.stop_ids(source)
  except (ValueError, OSError) as error:
    raise configuration.UsageError(str(error)) from error
  if len(text) > decoder_config.vocab_size:
    raise configuration.UsageError(
      f"the tokenizer in {source} has {len(text)} tokens, more than the "
      f"{decoder_config.vocab_size} rows of the embedding; name the "
      "checkpoint's own in config.model.tokenizer."
    )
  return Policy(decoder_config, params, text, tuple(stop_ids), source)


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


def rows(
  config: ml_collections.ConfigDict,
  path: str,
  policy: Policy,
  *,
  split: synthetic.Split,
  limit: int = 0,
) -> Rows:
  """Reads one split and encodes its prompts.

  Args:
    config: The configuration.
    path: File, or "synthetic:N".
    policy: Whose tokenizer encodes.
    split: "train", "sft" or "eval", for generated rows.
    limit: Most rows used; 0 uses all.

  Raises:
    UsageError: The rows cannot be read, or none is left.
  """
  section = config.data
  try:
    loaded = dataset.load(
      path,
      format=section.format,
      bad_rows=section.bad_rows,
      seed=config.seed,
      split=split,
      style=config.prompt.completion,
    )
    encoded = prompt.encode_examples(
      loaded.examples,
      policy.tokenizer,
      template=config.prompt.template,
      thinking=config.prompt.thinking,
      system=config.prompt.system,
      max_prompt_tokens=section.max_prompt_tokens,
      overlong=section.overlong,
    )
  except (ValueError, OSError) as error:
    raise configuration.UsageError(str(error)) from error
  rejected = [*loaded.rejected, *encoded.rejected]
  log_rejected(rejected, f"{path}: left out")
  log_rejected(loaded.unparsed, f"{path}: usable only as rendered,")
  if encoded.truncated:
    logging.warning(
      "%s: cut on the left %d prompts", path, len(encoded.truncated)
    )
  if not encoded.kept:
    reason = f"; the first: {rejected[0].reason}" if rejected else ""
    raise configuration.UsageError(f"{path} has no usable row{reason}.")
  kept = encoded.kept[: limit or None]
  buckets = tuple(section.prompt_buckets) or prompt.default_buckets(
    section.max_prompt_tokens
  )
  return Rows(
    [loaded.examples[i] for i in kept],
    encoded.prompt_ids[: len(kept)],
    [loaded.targets[i] for i in kept],
    buckets,
    rejected,
  )


def train_rows(config: ml_collections.ConfigDict, policy: Policy) -> Rows:
  """Returns the training rows; generated ones are demonstrations for SFT."""
  split: synthetic.Split = "sft" if config.algorithm == "sft" else "train"
  return rows(config, config.data.train_path, policy, split=split)


def log_rejected(rejected: Sequence[types.Rejected], what: str) -> None:
  """Logs how many rows were left out, and the first few with the reason."""
  if not rejected:
    return
  logging.warning("%s %d rows", what, len(rejected))
  for row in rejected[:_NUM_LOGGED]:
    logging.warning("  %s: %s", row.id, row.reason)


def check_gold(config: ml_collections.ConfigDict, rows: Rows) -> None:
  """Scores the gold of every row and refuses when too many fail.

  Raises:
    UsageError: More than config.logging.max_bad_gold_frac fail.
  """
  failing = preflight.unsolvable(
    rows.examples,
    reward=config.reward.to_dict(),
    style=config.prompt.completion,
  )
  log_rejected(failing, "preflight: the gold is no success in")
  limit = config.logging.max_bad_gold_frac
  if len(failing) > limit * len(rows.examples):
    raise configuration.UsageError(
      f"{len(failing)} of {len(rows.examples)} rows have a gold that is no "
      f"success, more than the share {limit}; the first, {failing[0].id}: "
      f"{failing[0].reason}. Check the rows and config.reward, or raise "
      "config.logging.max_bad_gold_frac."
    )


def completion_buckets(config: ml_collections.ConfigDict) -> tuple[int, ...]:
  """Returns the bucket lengths of completions."""
  longest = config.rollout.max_completion_tokens
  given = tuple(config.rollout.completion_buckets)
  return given or prompt.default_buckets(longest)


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
  )


def updates(
  config: ml_collections.ConfigDict,
  policy: Policy,
  optimizer: optax.GradientTransformation,
) -> update.UpdateFns:
  """Returns the compiled update under the configured strategy."""
  is_pmap = config.mesh.strategy == "pmap"
  return update.make_update_fns(
    policy.config,
    optimizer,
    options=update_options(config),
    strategy=config.mesh.strategy,
    mesh=None if is_pmap else mesh(config),
  )


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
    top_p=section.top_p,
    top_k=section.top_k,
    stop_ids=policy.stop_ids,
    seed=config.seed,
    compute_dtype=jnp.dtype(config.model.compute_dtype),
  )


def texts(policy: Policy, rollouts: types.Rollouts) -> list[list[str]]:
  """Returns the completions as texts, [B][G], without their stop token."""
  batch, group_size, _ = rollouts.completion_ids.shape
  stops = set(policy.stop_ids)
  lengths = rollouts.completion_mask.sum(-1)
  flat = [
    [int(token) for token in row[:length] if token not in stops]
    for group, group_lengths in zip(rollouts.completion_ids, lengths)
    for row, length in zip(group, group_lengths)
  ]
  decoded = policy.tokenizer.batch_decode(flat, skip_special_tokens=False)
  return [decoded[b * group_size : (b + 1) * group_size] for b in range(batch)]


def padded_reward(
  scored: types.RewardParts, prompts: types.PromptBatch
) -> tuple[np.ndarray, np.ndarray]:
  """Returns total and success with rows of 0 for masked groups, [B, G]."""
  missing = len(prompts.is_real) - len(scored.total)
  pad = lambda x: np.pad(np.asarray(x), ((0, missing), (0, 0)))
  return pad(scored.total), pad(scored.success)


def shuffled_in_groups(
  reward: np.ndarray, success: np.ndarray, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
  """Returns both with the rollouts of each group permuted alike, [B, G]."""
  order = jax.random.permutation(
    key, np.tile(np.arange(reward.shape[1]), (len(reward), 1)), axis=1,
    independent=True,
  )  # fmt: skip
  take = lambda x: np.take_along_axis(x, np.asarray(order), axis=1)
  return take(reward), take(success)


def reference_kl(
  updates: update.UpdateFns,
  reference_params: decoder.Params,
  prompts: types.PromptBatch,
  rollouts: types.Rollouts,
) -> np.ndarray:
  """Returns each rollout's summed log-ratio to the reference, [B, G] nats."""
  batch, group_size, _ = rollouts.completion_ids.shape
  everything = groups.KeptGroups(
    indices=np.tile(np.arange(group_size, dtype=np.int32), (batch, 1)),
    advantage=np.zeros((batch, group_size), np.float32),
    weight=np.ones((batch, group_size), np.float32),
    is_zero_variance=np.zeros(batch, bool),
  )
  reference_logprobs = updates.logprobs(
    reference_params, batches.assemble(prompts, rollouts, everything)
  )
  return np.asarray(
    loss_kernel.kl_in_reward(
      jnp.asarray(rollouts.logprobs),
      jnp.asarray(reference_logprobs),
      jnp.asarray(rollouts.completion_mask),
    )
  )


def step_key(
  config: ml_collections.ConfigDict, step: int, purpose: str
) -> jax.Array:
  """Returns the key of one purpose in one step; it depends on nothing else."""
  purposes = ("selection", "minibatches", "shuffle")
  key = jax.random.fold_in(jax.random.key(config.seed), step)
  return jax.random.fold_in(key, purposes.index(purpose))


def samples(
  config: ml_collections.ConfigDict,
  policy: Policy,
  examples: Sequence[types.Example],
  rollouts: types.Rollouts,
  scored: scoring.ScoredCompletions,
  kept: groups.KeptGroups,
) -> list[dict[str, Any]]:
  """Returns the first rollouts of a step as rows of samples.jsonl."""
  text = texts(policy, rollouts)
  indices = np.asarray(kept.indices)
  group_size = rollouts.finish.shape[1]
  count = min(config.logging.samples_per_step, len(examples))
  return [
    {
      "id": examples[b].id,
      "rollout": g,
      "completion": text[b][g],
      "gold": tool_calls.render_gold(
        examples[b].gold, style=config.prompt.completion
      ),
      "finish": "stop"
      if rollouts.finish[b, g] == types.FINISH_STOP
      else "length",
      "is_kept": bool(g in indices[b]),
      **{
        name: part[b, g].item() for name, part in scored.parts._asdict().items()
      },
    }
    # One rollout a group, a different one in each.
    for b, g in ((b, b % group_size) for b in range(count))
  ]


def target_ids(
  config: ml_collections.ConfigDict, policy: Policy, rows: Rows
) -> list[list[int]]:
  """Returns the target tokens of each row, ended by the stop token.

  Raises:
    UsageError: A target is longer than config.rollout.max_completion_tokens.
  """
  end = policy.tokenizer.eos_token_id
  end = end if end in policy.stop_ids else policy.stop_ids[0]
  limit = config.rollout.max_completion_tokens
  targets = []
  for example, target in zip(rows.examples, rows.targets):
    ids = policy.tokenizer(target, add_special_tokens=False)["input_ids"]
    if len(ids) + 1 > limit:
      raise configuration.UsageError(
        f"the target of {example.id} has {len(ids) + 1} tokens, more than "
        f"config.rollout.max_completion_tokens = {limit}; raise it."
      )
    targets.append([*ids, end])
  return targets


def sampler(
  config: ml_collections.ConfigDict, rows: Rows
) -> sampler_lib.PromptSampler:
  """Returns the sampler over the training rows, before its first batch.

  Raises:
    UsageError: Ids are not unique, or an option does not fit.
  """
  section = config.sampler
  try:
    return sampler_lib.PromptSampler(
      [example.id for example in rows.examples],
      prompts_per_step=section.prompts_per_step,
      streak=section.streak if config.algorithm == "grpo" else 0,
      reentry=section.reentry,
      probe_every_epochs=section.probe_every_epochs,
      num_epochs=section.num_epochs,
      max_steps=section.max_steps,
      seed=config.seed,
      is_shuffled=section.shuffle,
      lengths=(
        [len(ids) for ids in rows.prompt_ids] if section.group_lengths else None
      ),
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
  try:
    steps = profile.parse_steps(config.logging.profile_steps)
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error
  return profile.StepProfiler(steps, workdir / "profile")


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
      f"the checkpoint does not fit this configuration: {error} Use the same "
      "rows and sampler, or another --workdir."
    ) from error


def heldout_rows(
  config: ml_collections.ConfigDict, policy: Policy
) -> heldout.HeldOut | None:
  """Returns the held-out rows, or None when no path is set."""
  if not config.data.eval_path:
    return None
  split = rows(
    config,
    config.data.eval_path,
    policy,
    split="eval",
    limit=config.eval.num_examples,
  )
  return heldout.HeldOut(split.examples, split.prompt_ids, split.buckets)


def prepare_devices(config: ml_collections.ConfigDict) -> None:
  """Sets the number of simulated devices, before anything uses a device."""
  if config.mesh.cpu_devices:
    try:
      jax.config.update("jax_num_cpu_devices", config.mesh.cpu_devices)
    except RuntimeError as error:
      # A notebook may have used JAX before.
      logging.warning("config.mesh.cpu_devices has no effect: %s", error)


def prepare_workdir(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> None:
  """Makes the run's folder with config.json, and warns of changed fields.

  Raises:
    UsageError: The folder cannot be written.
  """
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    changed = _write_config(config, workdir / "config.json")
  except OSError as error:
    raise configuration.UsageError(
      f"--workdir must be a folder that can be written: {error}"
    ) from error
  for line in changed:
    logging.warning("the configuration changed since the last start: %s", line)


def _write_config(
  config: ml_collections.ConfigDict, path: pathlib.Path
) -> list[str]:
  """Writes the resolved configuration; names what differs from an older one."""
  resolved = json.loads(config.to_json_best_effort())
  changed = []
  if path.is_file():
    try:
      changed = _differences(json.loads(path.read_text()), resolved, "")
    except json.JSONDecodeError:
      changed = ["config.json was not readable"]
  path.write_text(json.dumps(resolved, indent=2, sort_keys=True) + "\n")
  return changed


def _differences(old: Any, new: Any, name: str) -> list[str]:
  if isinstance(old, dict) and isinstance(new, dict):
    return [
      line
      for key in sorted({*old, *new})
      for line in _differences(old.get(key), new.get(key), f"{name}.{key}")
    ]
  return [] if old == new else [f"{name[1:]}: {old!r} -> {new!r}"]
