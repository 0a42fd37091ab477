"""Rules that a configuration must keep: choices, bounds, what goes together.

From a configuration to nothing, or to one line that names the rule, the value
and the remedy. Knows nothing of what the fields do.
"""

import difflib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import ml_collections

from toolrl_jax.parsing import tool_calls

CHOICES: dict[str, tuple[Any, ...]] = {
  "algorithm": ("grpo", "sft"),
  "model.param_dtype": ("float32", "bfloat16"),
  "model.compute_dtype": ("float32", "bfloat16"),
  "model.remat": ("none", "layer", "dots"),
  "data.format": ("auto", "toolrl_parquet", "toolrl_json", "jsonl"),
  "data.overlong": ("drop", "truncate_left", "error"),
  "data.bad_rows": ("drop", "error"),
  "prompt.template": ("toolrl", "native", "context"),
  "prompt.completion": ("toolrl", "native", "n1"),
  "prompt.thinking": ("official", "keep", "drop"),
  "sampler.reentry": ("skip_epoch", "permanent", "probe"),
  "rollout.server": ("jetstream", "inline"),
  "rollout.layout": ("shared", "repeated"),
  "reward.name": ("toolrl", "n1", "looptool"),
  "reward.matching": ("optimal", "greedy"),
  "reward.scale": ("fixed", "equal_max", "two_stage", "dynamic"),
  "reward.granularity": ("fine", "refined", "intermediate", "coarse"),
  "reward.length": ("none", "fixed", "dynamic"),
  "reward.schedule": ("paper", "authors"),
  "reward.equality": ("python", "strict", "sets"),
  "reward.no_call": ("zero", "match"),
  "reward.newlines": ("one", "one_or_two"),
  "selection.rule": ("max_variance", "random", "stratified"),
  "selection.zero_variance": ("drop", "keep"),
  "advantage.statistics": ("kept", "all"),
  "advantage.std": ("population", "sample", "none"),
  "loss.layout": ("shared", "repeated"),
  "loss.kl_in": ("loss", "reward"),
  "loss.aggregation": ("token_mean", "sequence_mean", "fixed"),
  "optimizer.schedule": ("constant", "cosine", "linear"),
  "mesh.strategy": ("pmap", "sharded"),
  "benchmark.tool_docs": ("raw", "json_schema"),
  "benchmark.user": ("none", "local", "openai", "anthropic"),
  "benchmark.search": ("none", "bm25", "recorded", "serper"),
}

# Smallest value of numeric fields; None in the second place: no largest.
BOUNDS: dict[str, tuple[float, float | None]] = {
  "seed": (0, 2**32 - 1),
  "data.max_prompt_tokens": (1, 2**22),
  "sampler.prompts_per_step": (1, 2**16),
  "sampler.num_epochs": (1, None),
  "sampler.max_steps": (0, None),
  "sampler.streak": (0, None),
  "sampler.probe_every_epochs": (1, None),
  "rollout.group_size": (1, 2**12),
  "rollout.max_completion_tokens": (1, 2**22),
  "rollout.temperature": (0, None),
  "rollout.top_p": (1e-6, 1),
  "rollout.top_k": (0, None),
  "rollout.slots": (1, 2**16),
  "rollout.decode_chunk": (1, None),
  "rollout.refill": (0, None),
  "rollout.prefill_rows": (1, None),
  "rollout.prefix_store_tokens": (0, None),
  "reward.schedule_steps": (1, None),
  "selection.keep": (0, None),
  "advantage.eps": (0, None),
  "loss.clip_low": (0, 1),
  "loss.clip_high": (0, None),
  "loss.kl_coef": (0, None),
  "loss.entropy_coef": (0, None),
  "loss.minibatches": (1, None),
  "loss.epochs_per_batch": (1, None),
  "loss.importance_correction": (0, None),
  "loss.logprob_chunk_tokens": (1, None),
  "loss.micro_groups": (0, None),
  "optimizer.learning_rate": (0, None),
  "optimizer.warmup_steps": (0, None),
  "optimizer.b1": (0, 0.999999),
  "optimizer.b2": (0, 0.999999),
  "optimizer.eps": (1e-30, None),
  "optimizer.weight_decay": (0, None),
  "optimizer.final_scale": (0, 1),
  "optimizer.clip_norm": (0, None),
  "mesh.cpu_devices": (0, 512),
  "mesh.num_processes": (1, None),
  "mesh.process_id": (-1, None),
  "checkpoint.every_steps": (0, None),
  "checkpoint.keep_last": (1, None),
  "checkpoint.keep_best": (0, None),
  "logging.samples_per_step": (0, None),
  "logging.max_bad_gold_frac": (0, 1),
  "eval.every_steps": (0, None),
  "eval.num_examples": (0, None),
  "eval.benchmarks_every_steps": (0, None),
  "benchmark.max_items": (0, None),
  "benchmark.open": (0, None),
}

# Of any other whole number: what arrays of indices can hold.
_MAX_INT = 2**31 - 1

# What toolrl-evaluate can score.
BENCHMARKS = ("rows", "bfcl", "acebench", "api_bank", "bamboogle", "general")


class UsageError(ValueError):
  """A user's mistake; its text is one line and is shown without traceback."""


def check(
  config: ml_collections.ConfigDict, *, is_training: bool = True
) -> None:
  """Checks every field that has a fixed set or range of values.

  Args:
    config: The configuration.
    is_training: Whether the rules for training hold as well.

  Raises:
    UsageError: Naming the field, its value and what is allowed.
  """
  for name in field_names(config):
    value = value_of(config, name)
    if isinstance(value, float) and not math.isfinite(value):
      raise UsageError(f"config.{name} must be a finite number, got {value}.")
    if type(value) is int and abs(value) > _MAX_INT and name not in BOUNDS:
      raise UsageError(
        f"config.{name} must be at most {_MAX_INT}, got {shortened(value)}."
      )
    if isinstance(value, str) and not tool_calls.is_utf8(value):
      raise UsageError(f"config.{name} must be UTF-8, got {value[:60]!a}.")
  for name, allowed in CHOICES.items():
    value = value_of(config, name)
    if value not in allowed:
      hint = did_you_mean(str(value), [str(one) for one in allowed])
      raise UsageError(
        f"config.{name} must be one of {', '.join(map(repr, allowed))}, "
        f"got {shortened(value)}{hint}"
      )
  for name, (least, most) in BOUNDS.items():
    value = value_of(config, name)
    if most is None and isinstance(value, int):
      most = _MAX_INT if value > _MAX_INT else None
    if not value >= least or (most is not None and not value <= most):
      span = f"at least {least}" if most is None else f"in [{least}, {most}]"
      raise UsageError(f"config.{name} must be {span}, got {shortened(value)}.")
  _check_combinations(config)
  _check_benchmark(config)
  if is_training:
    if not config.data.train_path:
      raise UsageError(
        "config.data.train_path is empty; name the training rows."
      )
    if config.algorithm == "grpo":
      _check_grpo(config)


def _check_benchmark(config: ml_collections.ConfigDict) -> None:
  """Checks what is scored, and under which seeds."""
  section = config.benchmark
  for name in section.names:
    if name not in BENCHMARKS:
      raise UsageError(
        f"config.benchmark.names must be some of {', '.join(BENCHMARKS)}, got "
        f"{name!r}{did_you_mean(str(name), BENCHMARKS)}"
      )
  if "general" in section.names and not section.tasks:
    raise UsageError(
      'config.benchmark.tasks is empty, but "general" runs tasks; name some, '
      "for example --config.benchmark.tasks=\"('hellaswag', 'mmlu')\"."
    )
  seeds = tuple(section.seeds)
  if not seeds or not all(type(s) is int and 0 <= s < 2**32 for s in seeds):
    raise UsageError(
      "config.benchmark.seeds must be whole numbers of at least 0 and below "
      f"2**32, at least one, got {str(seeds)[:60]}."
    )
  for name, field in (
    ("templates", "prompt.template"),
    ("thinking", "prompt.thinking"),
  ):
    for value in config.sensitivity[name]:
      if value not in CHOICES[field]:
        raise UsageError(
          f"config.sensitivity.{name} must be some of "
          f"{', '.join(map(repr, CHOICES[field]))}, got {value!r}."
        )
  if len(section.categories) and len(section.names) > 1:
    raise UsageError(
      "config.benchmark.categories belong to one benchmark, got them with "
      f"{tuple(section.names)}; run one at a time."
    )
  for name in (
    "benchmark.names",
    "benchmark.seeds",
    "benchmark.categories",
    "sensitivity.templates",
    "sensitivity.thinking",
    "sensitivity.systems",
  ):
    values = tuple(value_of(config, name))
    if len(set(values)) < len(values):
      raise UsageError(f"config.{name} must hold nothing twice, got {values}.")
    if not name.endswith("seeds") and not all(
      isinstance(value, str) for value in values
    ):
      raise UsageError(f"config.{name} must hold texts, got {values}.")


def shortened(value: Any) -> str:
  """Returns a value as text that fits a message."""
  text = repr(value)
  return text if len(text) <= 60 else f"{text[:57]}..."


def did_you_mean(given: str, known: Sequence[str]) -> str:
  """Returns the end of a message: the nearest of some words, if one is near."""
  near = difflib.get_close_matches(given, known, n=1)
  return f"; did you mean {near[0]!r}?" if near else "."


def _check_combinations(config: ml_collections.ConfigDict) -> None:
  """Checks rules that join several fields."""
  if not config.model.path and not (
    config.model.preset and config.model.tokenizer
  ):
    raise UsageError(
      "config.model.path is empty; name a checkpoint, or both "
      "config.model.preset and config.model.tokenizer."
    )
  if config.model.path and config.model.preset:
    raise UsageError(
      f"config.model.preset = {config.model.preset!r} is only read without a "
      f"checkpoint, and config.model.path = {config.model.path!r}; set one of "
      "them to ''."
    )
  for name in ("data.prompt_buckets", "rollout.completion_buckets"):
    buckets = tuple(value_of(config, name))
    if not all(type(b) is int and b >= 1 for b in buckets) or (
      list(buckets) != sorted(set(buckets))
    ):
      raise UsageError(
        f"config.{name} must be whole numbers that rise strictly from at least "
        f"1, got {buckets}."
      )
  for name, limit in (
    ("data.prompt_buckets", config.data.max_prompt_tokens),
    ("rollout.completion_buckets", config.rollout.max_completion_tokens),
  ):
    buckets = tuple(value_of(config, name))
    if buckets and buckets[-1] < limit:
      raise UsageError(
        f"the last of config.{name} must hold {limit} tokens, got "
        f"{buckets[-1]}; add a bucket or lower the limit."
      )


def _check_grpo(config: ml_collections.ConfigDict) -> None:
  """Checks what only group-relative training needs."""
  size, keep = config.rollout.group_size, config.selection.keep
  if size < 2:
    raise UsageError(
      "config.rollout.group_size must be at least 2 to form an advantage, "
      f"got {size}."
    )
  if keep == 1 or keep > size:
    raise UsageError(
      f"config.selection.keep must be 0 or in [2, {size}] (the group size), "
      f"got {keep}."
    )
  if config.rollout.temperature <= 0:
    raise UsageError(
      "config.rollout.temperature must be above 0 for training, got "
      f"{config.rollout.temperature}; greedy rollouts have no contrast."
    )
  if config.loss.minibatches > config.sampler.prompts_per_step:
    raise UsageError(
      f"config.loss.minibatches must be at most the {config.sampler.prompts_per_step} "
      f"prompts of a step, got {config.loss.minibatches}."
    )


def field_names(
  config: ml_collections.ConfigDict, prefix: str = ""
) -> Iterator[str]:
  """Yields "section.field" of every field.

  Args:
    config: A configuration or a section.
    prefix: What stands in front, with its dot.
  """
  for key, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      yield from field_names(value, f"{prefix}{key}.")
    else:
      yield f"{prefix}{key}"


def value_of(config: ml_collections.ConfigDict, name: str) -> Any:
  """Returns the value of a field.

  Args:
    config: A configuration.
    name: "section.field".
  """
  value = config
  for part in name.split("."):
    value = value[part]
  return value
