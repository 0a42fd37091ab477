"""General abilities of a served model, by lm-evaluation-harness.

From the configuration to the harness's report in the form of a score file.
Needs the extra `eval`.
"""

import functools
import time
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import ml_collections

from toolrl_jax import configuration, parts
from toolrl_jax.evaluation import harness, likelihood
from toolrl_jax.model import tokenizer
from toolrl_jax.rollout import collect

NAME = "general"


def _continue_greedily(
  prompts: Sequence[Sequence[int]],
  until: Sequence[str],
  max_tokens: int,
  *,
  policy: parts.Policy,
  server: collect.RolloutServer,
) -> list[str]:
  """Returns a continuation a prompt; the caller cuts it at `until`."""
  rollouts = server.rollout(
    prompts, group_size=1, max_tokens=max_tokens, temperature=0.0
  )
  texts = tokenizer.texts(rollouts, policy.tokenizer, policy.stop_ids)
  return [text for (text,) in texts]


def check(config: ml_collections.ConfigDict) -> None:
  """Looks for the package, where it will be needed.

  Raises:
    UsageError: It is missing or of another version.
  """
  if NAME not in config.benchmark.names:
    return
  try:
    harness.check_package()
  except ImportError as error:
    text = " ".join(str(error).split())
    raise configuration.UsageError(f"benchmark {NAME}: {text}") from error


def score(
  config: ml_collections.ConfigDict,
  policy: parts.Policy,
  server: collect.RolloutServer,
) -> dict[str, Any]:
  """Runs the tasks; returns their part of a score file.

  Args:
    config: A checked configuration.
    policy: The model's shape and tokenizer.
    server: With its weights.

  Raises:
    UsageError: The package is missing, or a task is not known.
  """
  section = config.benchmark
  start = time.monotonic()
  scorer = likelihood.LikelihoodScorer(
    server.engine.box.params,
    policy.config,
    compute_dtype=jnp.dtype(config.model.compute_dtype),
  )
  try:
    model = harness.make_model(
      scorer,
      functools.partial(_continue_greedily, policy=policy, server=server),
      policy.tokenizer,
      max_tokens=min(
        config.data.max_prompt_tokens, policy.config.max_positions
      ),
    )
    found = harness.evaluate(
      model,
      tuple(section.tasks),
      task_dir=section.task_dir,
      num_fewshot=None if section.num_fewshot < 0 else section.num_fewshot,
      max_items=section.max_items or None,
      is_chat=section.is_chat,
    )
  except (ImportError, ValueError) as error:
    text = " ".join(str(error).split())
    raise configuration.UsageError(f"benchmark {NAME}: {text}") from error
  usage = {
    "items": sum(found.counts.values()),
    "secs": round(time.monotonic() - start, 1),
  }
  return {
    "headline": next(iter(found.table), ""),
    "summary": {
      name: {"mean": value, "std": 0.0} for name, value in found.table.items()
    },
    "stderr": dict(found.stderrs),
    "notes": [],
    "provenance": dict(found.settings),
    "by_seed": {
      "greedy": {
        "table": dict(found.table),
        "counts": dict(found.counts),
        "usage": usage,
        "verdicts": {},
      }
    },
  }
