"""What models answer to held-out rows, scored, and two of them compared.

From a recipe and a checkpoint to groups of completions with their rewards, on
this process's own devices. Samples are named by seed and prompt, so two models
get the same chances. It trains nothing.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from toolrl_jax import command_line, configuration, parts, rows, scoring, types
from toolrl_jax.data import padding
from toolrl_jax.model import tokenizer
from toolrl_jax.notebook import commands, tables
from toolrl_jax.rollout import collect


class Answers(NamedTuple):
  """Completions of some prompts by one model.

  Attributes:
    model: Checkpoint.
    examples: Rows that were asked, B of them.
    texts: Completions of each, [B][G].
    parts: Their rewards and parts, arrays [B, G].
    reward: The `reward` section they were scored under.
  """

  model: str
  examples: Sequence[types.Example]
  texts: Sequence[Sequence[str]]
  parts: types.RewardParts
  reward: Mapping[str, Any]


def configured(
  recipe: str | pathlib.Path, settings: Mapping[str, Any] | None = None
) -> ml_collections.ConfigDict:
  """Returns the configuration that a command would run with.

  Args:
    recipe: File of the recipe.
    settings: Fields of the configuration that change, as "section.field".

  Raises:
    UsageError: A field or its value is wrong.
  """
  arguments = commands.arguments(recipe, ".", settings)
  return command_line.load(["notebook", *arguments], "", is_training=False)[0]


def ask(
  recipe: str | pathlib.Path,
  model: str | pathlib.Path,
  *,
  count: int,
  group_size: int = 1,
  temperature: float = 1.0,
  settings: Mapping[str, Any] | None = None,
) -> Answers:
  """Lets a model answer the first held-out rows of a recipe.

  Args:
    recipe: File of the recipe; names rows, prompt and reward.
    model: Checkpoint.
    count: Rows asked (B), at least 1.
    group_size: Completions a row (G).
    temperature: Of the samples; 0 is greedy.
    settings: Further fields of the configuration that change.

  Returns:
    The answers.

  Raises:
    UsageError: The recipe, the rows or the checkpoint cannot be used.
  """
  changed = {
    **(settings or {}),
    "model.path": model,
    "eval.num_examples": count,
    "rollout.group_size": group_size,
    "rollout.slots": min(count * group_size, 128),
  }
  config = configured(recipe, changed)
  policy = parts.policy(config)
  split = rows.held_out(config, policy)
  if split is None:
    raise configuration.UsageError(
      f"{recipe} names no held-out rows; set config.data.eval_path."
    )
  prompts = padding.batch(
    split.prompt_ids, buckets=split.buckets, num_groups=len(split.prompt_ids)
  )
  engine = parts.rollout_engine(config, policy, policy.params)
  with collect.start(engine, server="inline") as server:
    rollouts = server.rollout(
      prompts,
      group_size=group_size,
      max_tokens=config.rollout.max_completion_tokens,
      temperature=temperature,
      completion_buckets=parts.completion_buckets(config),
    )
  texts = tokenizer.texts(rollouts, policy.tokenizer, policy.stop_ids)
  reward = config.reward.to_dict()
  scored = scoring.score_completions(
    texts,
    [example.gold for example in split.examples],
    reward=reward,
    style=config.prompt.completion,
  )
  return Answers(str(model), split.examples, texts, scored, reward)


def compare(before: Answers, after: Answers, *, count: int = 8) -> tables.Table:
  """Lists what two models answer to the same rows, those that changed first.

  Args:
    before: Answers of one model.
    after: Answers of another to the same rows.
    count: Most rows listed.

  Returns:
    Rewards, request, and first completion of each model.

  Raises:
    ValueError: The rows are not the same.
  """
  ids = [[one.id for one in answers.examples] for answers in (before, after)]
  if ids[0] != ids[1]:
    raise ValueError(
      "both models must answer the same rows, got "
      f"{len(ids[0])} and {len(ids[1])} that differ; ask with one recipe."
    )
  gain = after.parts.total[:, 0] - before.parts.total[:, 0]
  order = np.argsort(-np.abs(gain), kind="stable")[:count]
  listed = [
    (
      float(before.parts.total[i, 0]),
      float(after.parts.total[i, 0]),
      bool(after.parts.success[i, 0]),
      request(before.examples[i]),
      before.texts[i][0],
      after.texts[i][0],
    )
    for i in order
  ]
  return tables.table(
    ("reward", "now", "right now", "request", "before", "after"),
    listed,
    f"right answers: {_right(before)} before, {_right(after)} after, of "
    f"{after.parts.success.size}; mean reward {before.parts.total.mean():.2f} "
    f"before, {after.parts.total.mean():.2f} after",
  )


def listing(answers: Answers, *, count: int = 4) -> tables.Table:
  """Lists what a model answers to the first rows, with the gold calls.

  Args:
    answers: Answers.
    count: Most rows listed.

  Returns:
    Reward, request, first completion, tools.
  """
  listed = [
    (
      float(answers.parts.total[i, 0]),
      bool(answers.parts.success[i, 0]),
      request(example),
      answers.texts[i][0],
      ", ".join(tool["name"] for tool in example.tools),
    )
    for i, example in enumerate(answers.examples[:count])
  ]
  return tables.table(
    ("reward", "right", "request", "answer", "tools"),
    listed,
    f"right answers: {_right(answers)} of {answers.parts.success.size}",
  )


def request(example: types.Example) -> str:
  """Returns what the user of a row says last."""
  said = [one for one in example.messages if one["role"] == "user"]
  return str(said[-1]["content"]) if said else ""


def _right(answers: Answers) -> int:
  return int(answers.parts.success.sum())
