"""What a step's records say in numbers: one function a stage.

From the records that cross stages to `stage/name` metrics. Counts masked
groups nowhere. It writes nothing.
"""

import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from absl import logging

from toolrl_jax import hosts, scoring, types
from toolrl_jax.rollout import ledger
from toolrl_jax.training import groups, metrics


class Clock:
  """Seconds of the stages of one step, and its compilations.

  By wall clock (`secs`), and of all processors that worked for this process
  (`cpu_secs`): on one core with other programs beside, the second is what the
  stage costs. A profiler trace shows each stage as a region of its name.
  """

  def __init__(self, compilations: metrics.CompilationCounter):
    compilations.take()
    self._compilations = compilations
    self._start = self._since = _clocks()
    self._secs: dict[str, float] = {}
    self._stage = ""
    self._region: jax.profiler.TraceAnnotation | None = None

  def begin(self, stage: str) -> None:
    """Ends the stage before and begins another."""
    self.end()
    self._stage, self._since = stage, _clocks()
    self._region = jax.profiler.TraceAnnotation(stage)
    self._region.__enter__()

  def end(self) -> None:
    """Ends the stage that runs, if any; books its seconds."""
    if self._region is None:
      return
    self._region.__exit__(None, None, None)
    self._region = None
    self._secs |= _since(self._since, self._stage)

  def metrics(self) -> dict[str, float]:
    """Ends the stage; returns seconds of each and of all, and compilations."""
    self.end()
    return {
      **self._secs,
      **_since(self._start, "step"),
      "step/compilations": float(self._compilations.take()),
    }


def _clocks() -> tuple[float, float]:
  return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float], stage: str) -> dict[str, float]:
  """Returns the seconds of a stage by both clocks."""
  secs, cpu_secs = (now - then for now, then in zip(_clocks(), start))
  return {f"{stage}/secs": secs, f"{stage}/cpu_secs": cpu_secs}


def rollout_metrics(
  rollouts: types.Rollouts,
  prompts: types.PromptBatch,
  stats: ledger.RolloutStats,
) -> dict[str, float]:
  """Returns token counts and lengths of a step's rollouts."""
  is_real = prompts.is_real
  lengths = rollouts.completion_mask[is_real].sum(-1)
  finish = rollouts.finish[is_real]
  return {
    "rollout/tokens": float(lengths.sum()),
    "rollout/length_tokens": float(lengths.mean()),
    "rollout/prompt_tokens": float(prompts.prompt_length[is_real].mean()),
    "rollout/cut_frac": float((finish == types.FINISH_LENGTH).mean()),
    "rollout/prefills": float(hosts.gather([stats.num_prefills]).sum()),
  }


def reward_metrics(
  scored: scoring.ScoredCompletions,
  golds: Sequence[types.Gold],
  kept: groups.KeptGroups,
) -> dict[str, float]:
  """Returns means of the reward's parts, and what parsing and contrast say."""
  parts, num_groups = scored.parts, len(golds)
  is_equal = np.asarray(kept.is_zero_variance)[:num_groups]
  is_solved = np.asarray(parts.success).all(axis=1)
  is_failed = ~np.asarray(parts.success).any(axis=1)
  return {
    "reward/total": float(np.mean(parts.total)),
    "reward/total_std": float(np.std(parts.total)),
    "reward/format": float(np.mean(parts.format)),
    "reward/correctness": float(np.mean(parts.correctness)),
    "reward/length": float(np.mean(parts.length)),
    "reward/success_frac": float(np.mean(parts.success)),
    "rollout/parse_fail_frac": float(1 - scored.is_parsed.mean()),
    "rollout/tool_call_frac": float(scored.has_call.mean()),
    "rollout/gold_call_frac": _mean(bool(gold.calls) for gold in golds),
    "filter/zero_variance_frac": float(is_equal.mean()),
    "filter/all_right_frac": float(is_solved.mean()),
    "filter/all_wrong_frac": float(is_failed.mean()),
  }


def _mean(flags) -> float:
  return float(np.mean(list(flags)))


class CollapseWatch:
  """Warns once, each time the policy stops writing what can be scored."""

  def __init__(self, *, min_parse_frac: float, min_tool_call_frac: float):
    """Sets the limits.

    Args:
      min_parse_frac: Least share of completions that parse.
      min_tool_call_frac: Least share of completions with a call, as a fraction
        of the share of gold with a call.
    """
    self._min_parse = min_parse_frac
    self._min_call = min_tool_call_frac
    self._is_warned = False

  def warnings(self, row: Mapping[str, float], step: int) -> list[str]:
    """Returns the warnings of one step's metrics, and logs nothing."""
    parsed = 1.0 - row["rollout/parse_fail_frac"]
    called, wanted = (
      row["rollout/tool_call_frac"],
      row["rollout/gold_call_frac"],
    )
    warnings = []
    if parsed < self._min_parse:
      warnings.append(
        f"step {step}: only {parsed:.0%} of the completions parse (limit "
        f"{self._min_parse:.0%}); look at samples.jsonl, lower the learning "
        "rate or start from a checkpoint that knows the format"
      )
    if called < self._min_call * wanted:
      warnings.append(
        f"step {step}: only {called:.0%} of the completions call a tool where "
        f"{wanted:.0%} of the gold does; look at samples.jsonl and "
        "config.reward.no_call"
      )
    return warnings

  def check(self, row: Mapping[str, float], step: int) -> list[str]:
    """Logs and returns the warnings of one step's metrics."""
    warnings = self.warnings(row, step)
    if warnings and not self._is_warned:
      for line in warnings:
        logging.warning("%s", line)
    self._is_warned = bool(warnings)
    return warnings


def summary_table(heldout: Mapping[str, Mapping[str, float | None]]) -> str:
  """Returns the held-out scores before and after a run as a text table."""
  lines = [f"{'held-out':<32}{'before':>9}{'after':>9}{'change':>9}"]
  for name, values in heldout.items():
    before, after = values["before"], values["after"]
    if before is None or after is None:
      continue
    lines.append(
      f"{name.removeprefix('heldout/'):<32}{before:>9.3f}{after:>9.3f}"
      f"{after - before:>+9.3f}"
    )
  return "\n".join(lines)
