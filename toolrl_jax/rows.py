"""The configuration to rows: what is trained on, and what is only answered.

Reads the `data`, `prompt` and `reward` sections, and says what was left out
and why before a run starts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import ml_collections
from absl import logging

from toolrl_jax import configuration, parts, types
from toolrl_jax.data import dataset, preflight, prompt, synthetic
from toolrl_jax.evaluation import heldout

# Rows left out that the log names; it counts all of them.
_NUM_LOGGED = 5


class Rows(NamedTuple):
  """Rows of one split that can be used, with their prompts.

  Attributes:
    examples: Rows.
    prompt_ids: Token ids of each row's prompt.
    targets: Right completion text of each row.
    target_ids: Its token ids with the stop token; for SFT only, else empty.
    buckets: Bucket lengths of the prompts.
    rejected: Rows left out, with the reason.
  """

  examples: list[types.Example]
  prompt_ids: list[list[int]]
  targets: list[str]
  target_ids: list[list[int]]
  buckets: tuple[int, ...]
  rejected: list[types.Rejected]


def train(config: ml_collections.ConfigDict, policy: parts.Policy) -> Rows:
  """Returns the training rows; generated ones are demonstrations for SFT."""
  split: synthetic.Split = "sft" if config.algorithm == "sft" else "train"
  read_rows = read(config, config.data.train_path, policy, split=split)
  if config.algorithm != "sft":
    return read_rows
  return read_rows._replace(target_ids=target_ids(config, policy, read_rows))


def held_out(
  config: ml_collections.ConfigDict, policy: parts.Policy
) -> heldout.HeldOut | None:
  """Returns the held-out rows, or None when no path is set."""
  if not config.data.eval_path:
    return None
  split = read(
    config,
    config.data.eval_path,
    policy,
    split="eval",
    limit=config.eval.num_examples,
  )
  return heldout.HeldOut(split.examples, split.prompt_ids, split.buckets)


def read(
  config: ml_collections.ConfigDict,
  path: str,
  policy: parts.Policy,
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
  _log_rejected(rejected, f"{path}: left out")
  _log_rejected(loaded.unparsed, f"{path}: usable only as rendered,")
  if encoded.truncated:
    logging.warning(
      "%s: cut on the left %d prompts", path, len(encoded.truncated)
    )
  if not encoded.kept:
    reason = f"; the first: {rejected[0].reason}" if rejected else ""
    raise configuration.UsageError(f"{path} has no usable row{reason}.")
  _check_positions(config, policy, encoded.prompt_ids)
  kept = encoded.kept[: limit or None]
  buckets = parts.prompt_buckets(config)
  return Rows(
    [loaded.examples[i] for i in kept],
    encoded.prompt_ids[: len(kept)],
    [loaded.targets[i] for i in kept],
    [],
    buckets,
    rejected,
  )


def _check_positions(
  config: ml_collections.ConfigDict,
  policy: parts.Policy,
  prompt_ids: Sequence[Sequence[int]],
) -> None:
  """Refuses prompts that, with a completion, pass the checkpoint's context."""
  longest = max(map(len, prompt_ids))
  completion = config.rollout.max_completion_tokens
  if longest + completion > policy.config.max_positions:
    raise configuration.UsageError(
      f"the longest prompt, {longest} tokens, and a completion of {completion} "
      f"must fit the checkpoint's {policy.config.max_positions} positions; "
      "lower config.data.max_prompt_tokens or "
      "config.rollout.max_completion_tokens."
    )


def _log_rejected(rejected: Sequence[types.Rejected], what: str) -> None:
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
  _log_rejected(failing, "preflight: the gold is no success in")
  limit = config.logging.max_bad_gold_frac
  if len(failing) > limit * len(rows.examples):
    raise configuration.UsageError(
      f"{len(failing)} of {len(rows.examples)} rows have a gold that is no "
      f"success, more than the share {limit}; the first, {failing[0].id}: "
      f"{failing[0].reason}. Check the rows and config.reward, or raise "
      "config.logging.max_bad_gold_frac."
    )


def target_ids(
  config: ml_collections.ConfigDict, policy: parts.Policy, rows: Rows
) -> list[list[int]]:
  """Returns the target tokens of each row, ended by the stop token.

  Raises:
    UsageError: A target is longer than config.rollout.max_completion_tokens.
  """
  end = policy.tokenizer.eos_token_id
  end = end if end in policy.stop_ids else policy.stop_ids[0]
  limit = config.rollout.max_completion_tokens
  targets = [
    [*policy.tokenizer(target, add_special_tokens=False)["input_ids"], end]
    for target in rows.targets
  ]
  too_long = [i for i, ids in enumerate(targets) if len(ids) > limit]
  if too_long:
    raise configuration.UsageError(
      f"{len(too_long)} targets have more tokens than "
      f"config.rollout.max_completion_tokens = {limit}, the longest "
      f"{max(len(targets[i]) for i in too_long)}, the first that of "
      f"{rows.examples[too_long[0]].id}; raise it or take the rows out."
    )
  return targets
