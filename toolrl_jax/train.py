"""Trains a policy: rows to updates to an exported checkpoint.

    toolrl-train --config=configs/tiny.py --workdir=/tmp/tiny

`train_grpo` shows the data path in its order: sampler, prompt, rollout, score,
selection and advantage, update, feedback, weight sync, metrics, checkpoint.
A killed run that is started again with the same command continues from its
newest whole checkpoint, bit for bit.
"""

import contextlib
import json
import pathlib
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
from absl import logging
from etils import epath

from toolrl_jax import (
  command,
  command_line,
  configuration,
  hosts,
  mirror,
  parts,
  provenance,
  rows,
  suite,
  types,
)
from toolrl_jax.data import padding, sampler
from toolrl_jax.evaluation import heldout
from toolrl_jax.model import tokenizer, weights
from toolrl_jax.rollout import collect
from toolrl_jax.training import (
  batches,
  checkpoint,
  completions,
  groups,
  metrics,
  profile,
  sft,
  step_metrics,
  update,
)
from toolrl_jax.training.state import TrainState

USAGE = """\
toolrl-train: trains a model to call tools, with GRPO on its own answers or
with SFT on given ones.

  toolrl-train --config=FILE --workdir=DIR [--config.section.field=VALUE ...]

  --config    a recipe of configs/; tiny.py trains the bundled model in about
              five minutes on two CPU cores and needs nothing else
  --workdir   where the run writes, a folder or gs://BUCKET/FOLDER
  --config.   changes a field of the recipe; docs/configuration.md has all of
              them with default, range and meaning

Examples:
  toolrl-train --config=configs/tiny.py --workdir=/tmp/tiny
  toolrl-train --config=configs/tiny.py --workdir=/tmp/short \\
    --config.sampler.max_steps=10 --config.rollout.group_size=4
  toolrl-train --config=configs/toolrl_qwen25_3b.py --workdir=/data/run \\
    --config.model.path=/data/Qwen2.5-3B-Instruct \\
    --config.data.train_path=/data/rlla_4k/train.parquet \\
    --config.data.eval_path=/data/rlla_4k/test.parquet

The workdir then holds:
  config.json     every field as it was used; run.json: rows, devices, versions
  metrics.jsonl   a line a step (docs/metrics.md); tensorboard/ has the same
  samples.jsonl   a few answers a step with the parts of their reward
  warnings.jsonl  what asked for a look, if anything did
  checkpoints/    what the same command goes on from after a stop
  export/         at the end: a Hugging Face folder with weights and tokenizer
  summary.json    held-out scores before and after

Status: 0 done; 2 a mistake in the command; 75 saved and stopped by SIGTERM, 130
by Ctrl-C, start it again; 1 it cannot go on, the last line says why."""


class Run(NamedTuple):
  """What both algorithms share.

  Attributes:
    config: The configuration.
    files: Where the run's files lie.
    folder: Where this process writes its metrics and samples.
    policy: Shape, tokenizer and initial weights.
    train_rows: Rows that are trained on.
    heldout_rows: Rows that are only answered, or None.
    updates: The compiled update.
    reference: Parameters of the reference policy when a KL is on, else None.
    server: Answers prompts with the policy it was last given.
    writer: Metrics, samples and progress.
    compilations: Programs compiled since it was last asked.
    profiler: Traces the steps that config.logging.profile_steps names.
    checkpoints: Saved steps.
    stop: Whether SIGTERM or SIGINT came.
  """

  config: ml_collections.ConfigDict
  files: mirror.Mirror
  folder: pathlib.Path
  policy: parts.Policy
  train_rows: rows.Rows
  heldout_rows: heldout.HeldOut | None
  updates: update.UpdateFns
  reference: Any
  server: collect.RolloutServer
  writer: metrics.MetricWriter
  compilations: metrics.CompilationCounter
  profiler: profile.StepProfiler
  checkpoints: checkpoint.RunCheckpoints
  stop: command.StopSignal


class Progress(NamedTuple):
  """Where a run stands.

  Attributes:
    step: Batches trained on.
    state: Parameters and optimizer state, on the devices.
    host: What else a checkpoint holds: the sampler's state after `step`, and
      the held-out scores before and after training.
  """

  step: int
  state: TrainState
  host: dict[str, Any]


def run(argv: list[str] | None = None) -> None:
  """Runs the command; a user's mistake ends with one line and status 2."""
  arguments = sys.argv if argv is None else argv
  command.run(
    "toolrl-train",
    lambda: main(
      *command_line.load(arguments, USAGE),
      recipe=command_line.recipe_name(arguments),
    ),
  )


def main(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path | epath.Path,
  *,
  recipe: str = "",
) -> None:
  """Trains from the newest checkpoint in `workdir`, or from the start.

  Args:
    config: A checked configuration.
    workdir: Absolute folder of the run, or gs://...; made when missing.
    recipe: What run.json calls the configuration.

  Raises:
    UsageError: Something the user can mend is wrong; nothing was started.
    StoppedRunError: The run cannot go on.
  """
  parts.check_steps(config)
  parts.prepare_devices(config)
  files = mirror.Mirror(workdir)
  parts.prepare_workdir(files.folder)
  parts.refuse_files_of(
    files.folder, "toolrl-evaluate", ("answers", "scores.json", "study.json")
  )
  files.check()
  folder = parts.own_folder(files.folder)
  with (
    command.StopSignal() as stop,
    parts.sole_writer(folder),
    command.WarningFile(folder / "warnings.jsonl"),
  ):
    _main(config, files, folder, stop, recipe)


def _main(
  config: ml_collections.ConfigDict,
  files: mirror.Mirror,
  folder: pathlib.Path,
  stop: command.StopSignal,
  recipe: str,
) -> None:
  """Builds the parts in the order of the data path, and trains.

  Args:
    config: A checked configuration.
    files: Where the run's files lie.
    folder: Where this process writes its own files; the first one's are the
      run's.
    stop: What SIGTERM and SIGINT set.
    recipe: What run.json calls the configuration.
  """
  # ----- policy and rows -----
  policy = parts.policy(config)
  train_rows = rows.train(config, policy)
  heldout_rows = rows.held_out(config, policy)
  if config.algorithm == "grpo":
    rows.check_gold(config, train_rows)
  if config.eval.benchmarks_every_steps:
    suite.check(config, policy)
  made_with = provenance.Provenance(
    recipe,
    num_train_rows=len(train_rows.examples),
    num_heldout_rows=0 if heldout_rows is None else len(heldout_rows.examples),
    num_params=sum(x.size for x in jax.tree.leaves(policy.params)),
  )
  logging.info(
    "%s, %.1f M parameters; %d rows to train on, %d held out; %d %s devices; "
    "writes to %s",
    config.model.path or config.model.preset,
    made_with.num_params / 1e6,
    made_with.num_train_rows,
    made_with.num_heldout_rows,
    jax.device_count(),
    jax.devices()[0].platform,
    files.name,
  )

  # ----- order, optimizer, update -----
  order = parts.sampler(
    config,
    [example.id for example in train_rows.examples],
    [len(ids) for ids in train_rows.prompt_ids],
  )
  total_steps = order.max_steps_left()
  optimizer = parts.optimizer(config, total_steps)
  updates = parts.updates(config, policy, optimizer)
  reference = (
    updates.copy_params(policy.params) if config.loss.kl_coef else None
  )

  # ----- state: fresh or restored -----
  checkpoints = checkpoint.RunCheckpoints(
    files.checkpoints,
    keep_last=config.checkpoint.keep_last,
    keep_best=config.checkpoint.keep_best,
  )
  try:
    restored = checkpoints.restore_latest(
      updates.template(policy.params), host_keys=("sampler", "before")
    )
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error
  if restored is None:
    progress = Progress(0, updates.init(policy.params), {})
  else:
    step, state, host = restored
    progress = Progress(step, updates.place(state), host)
    parts.restore_order(order, host["sampler"])
    logging.info("resumed from the checkpoint of step %d", step)
    if (files.folder / "summary.json").is_file():
      logging.info(
        "the run had ended; it goes on where config.sampler.max_steps or "
        "num_epochs were raised"
      )
  policy = policy._replace(params=None)  # They belong to the state now.

  if hosts.is_first():
    files.bring()
  writer = metrics.MetricWriter(
    folder, total_steps=total_steps, tensorboard=config.logging.tensorboard
  )
  profiler = parts.profiler(config, folder)
  parts.write_config(config, folder)
  provenance.write(folder, made_with)
  engine = parts.rollout_engine(
    config, policy, updates.params_for_engine(progress.state)
  )
  with (
    writer,
    checkpoints,
    profiler,
    collect.start(engine, server=config.rollout.server) as server,
  ):
    writer.truncate_to(-1 if restored is None else progress.step)
    run = Run(
      config,
      files,
      folder,
      policy,
      train_rows,
      heldout_rows,
      updates,
      reference,
      server,
      writer,
      metrics.CompilationCounter(),
      profiler,
      checkpoints,
      stop,
    )
    if progress.step == 0:
      logging.info("held-out rows first; what runs for the first time compiles")
      progress.host["before"] = _held_out(run, 0)
      writer.write(0, progress.host["before"])
    stop.defer()
    train = train_grpo if config.algorithm == "grpo" else train_sft
    train(run, order, progress)


def train_grpo(
  run: Run, order: sampler.PromptSampler, progress: Progress
) -> None:
  """Runs GRPO to the end of the sampler: stages 2 to 12 of the data path."""
  config, train_rows = run.config, run.train_rows
  step, state, host = progress
  watch = step_metrics.CollapseWatch(
    min_parse_frac=config.logging.min_parse_frac,
    min_tool_call_frac=config.logging.min_tool_call_frac,
  )
  batch = order.next_batch()
  while batch is not None:
    step += 1
    run.profiler.begin(step)
    clock = step_metrics.Clock(run.compilations)

    # ----- prompts and rollouts -----
    clock.begin("rollout")
    run.server.reset_stats()
    examples = [train_rows.examples[i] for i in batch.indices]
    prompts = padding.batch(
      [train_rows.prompt_ids[i] for i in batch.indices],
      buckets=train_rows.buckets,
      num_groups=config.sampler.prompts_per_step,
    )
    reader = completions.GroupReader(
      examples,
      run.policy.tokenizer,
      run.policy.stop_ids,
      reward=config.reward.to_dict(),
      style=config.prompt.completion,
    )
    rollouts = run.server.rollout(
      prompts,
      group_size=config.rollout.group_size,
      max_tokens=config.rollout.max_completion_tokens,
      temperature=config.rollout.temperature,
      step=step,
      completion_buckets=parts.completion_buckets(config),
      # Text work of finished groups goes on beside the decoding.
      on_group=reader,
    )

    # ----- reward, selection, advantage -----
    clock.begin("reward")
    scored = reader.score(step, rollouts)
    reward, success = completions.padded_reward(scored.parts, prompts)
    if run.reference is not None and config.loss.kl_in == "reward":
      reward -= config.loss.kl_coef * completions.reference_kl(
        run.updates, run.reference, prompts, rollouts
      )
    if config.selection.shuffle_rewards:
      reward, success = completions.shuffled_in_groups(
        reward, success, parts.step_key(config, step, "shuffle")
      )
    kept = groups.keep_and_weigh(
      reward,
      success,
      prompts.is_real,
      parts.step_key(config, step, "selection"),
      options=parts.group_options(config),
    )

    # ----- update -----
    clock.begin("update")
    state, update_metrics = update.run_updates(
      run.updates,
      state,
      batches.assemble(prompts, rollouts, kept),
      key=parts.step_key(config, step, "minibatches"),
      reference_params=run.reference,
    )
    _check_finite(update_metrics, step)

    # ----- feedback, weight sync -----
    clock.begin("sync")
    order.observe(batch.indices, np.asarray(scored.parts.success).all(axis=1))
    run.server.sync(run.updates.params_for_engine(state), version=step)
    clock.end()

    # ----- metrics, evaluation, checkpoint -----
    row = {
      **step_metrics.rollout_metrics(rollouts, prompts, run.server.stats),
      **step_metrics.reward_metrics(
        scored, [example.gold for example in examples], kept
      ),
      **update_metrics,
      **order.metrics(),
      **clock.metrics(),
      "sampler/epoch": float(batch.epoch),
    }
    row["rollout/tokens_per_sec"] = row["rollout/tokens"] / row["rollout/secs"]
    watch.check(row, step)
    host["sampler"] = order.state()
    batch = order.next_batch()
    if batch is None or _is_due(config.eval.every_steps, step):
      host["after"] = _held_out(run, step)
      row |= host["after"]
    row |= _benchmarks(run, step)
    run.writer.write_samples(
      step,
      completions.samples(
        examples,
        reader.texts,
        rollouts,
        scored,
        kept,
        count=config.logging.samples_per_step,
        style=config.prompt.completion,
      ),
    )
    run.writer.write(step, row)
    progress = Progress(step, state, host)
    _save_if_due(run, progress, row, is_last=batch is None)
  _finish(run, progress)


def train_sft(
  run: Run, order: sampler.PromptSampler, progress: Progress
) -> None:
  """Fine-tunes on the rows' targets; the loss is on target tokens only."""
  config, train_rows = run.config, run.train_rows
  step, state, host = progress
  batch = order.next_batch()
  while batch is not None:
    step += 1
    run.profiler.begin(step)
    clock = step_metrics.Clock(run.compilations)
    clock.begin("update")
    prompts = padding.batch(
      [train_rows.prompt_ids[i] for i in batch.indices],
      buckets=train_rows.buckets,
      num_groups=config.sampler.prompts_per_step,
    )
    state, row = update.run_updates(
      run.updates,
      state,
      sft.assemble(
        prompts,
        [train_rows.target_ids[i] for i in batch.indices],
        buckets=parts.completion_buckets(config),
      ),
      key=parts.step_key(config, step, "minibatches"),
    )
    _check_finite(row, step)
    row |= {**clock.metrics(), "sampler/epoch": float(batch.epoch)}
    host["sampler"] = order.state()
    batch = order.next_batch()
    if batch is None or _is_due(config.eval.every_steps, step):
      run.server.sync(run.updates.params_for_engine(state), version=step)
      host["after"] = _held_out(run, step)
      row |= host["after"]
    row |= _benchmarks(run, step)
    run.writer.write(step, row)
    progress = Progress(step, state, host)
    _save_if_due(run, progress, row, is_last=batch is None)
  _finish(run, progress)


def _is_due(every_steps: int, step: int) -> bool:
  return every_steps > 0 and step % every_steps == 0


def _texts(run: Run, rollouts: types.Rollouts) -> list[list[str]]:
  policy = run.policy
  return tokenizer.texts(rollouts, policy.tokenizer, policy.stop_ids)


def _held_out(run: Run, step: int) -> dict[str, float]:
  """Answers and scores the held-out rows, if there are any."""
  if run.heldout_rows is None:
    return {}
  config = run.config
  started = time.perf_counter()
  scores = heldout.evaluate(
    run.heldout_rows,
    run.server,
    lambda rollouts: _texts(run, rollouts),
    reward=config.reward.to_dict(),
    style=config.prompt.completion,
    step=step,
    max_tokens=config.rollout.max_completion_tokens,
    completion_buckets=parts.completion_buckets(config),
    temperature=config.rollout.temperature,
    is_sampled=config.eval.sampled,
  )
  return {**scores, "heldout/secs": time.perf_counter() - started}


def _benchmarks(run: Run, step: int) -> dict[str, float]:
  """Scores the benchmarks under their first seed, if it is time to."""
  if not _is_due(run.config.eval.benchmarks_every_steps, step):
    return {}
  hosts.wait_for_all("benchmarks")
  if not hosts.is_first():
    # What it waits for outside has its own time; the others take no part.
    return {}
  config = run.config.copy_and_resolve_references()
  config.benchmark.seeds = config.benchmark.seeds[:1]
  started = time.perf_counter()
  folder = run.folder / "benchmarks" / f"step-{step}"
  # A resumed run makes the step's answers anew.
  shutil.rmtree(folder, ignore_errors=True)
  served = suite.served(
    run.policy, run.server.alone(), f"{run.folder.name}, step {step}"
  )
  with contextlib.ExitStack() as stack:
    benchmarks = suite.opened(config, stack)
    scores = suite.run(config, served, folder, benchmarks)
  return suite.metrics(scores) | {
    "benchmark/secs": time.perf_counter() - started
  }


def _check_finite(update_metrics: Mapping[str, float], step: int) -> None:
  """Stops the run at the first loss or gradient that is not finite."""
  if not update_metrics["update/is_finite"]:
    raise command.StoppedRunError(
      f"loss, gradient or new weights are not finite at step {step} (loss "
      f"{update_metrics['update/loss']}, gradient norm "
      f"{update_metrics['update/grad_norm']}); the update was not applied. "
      "Lower config.optimizer.learning_rate or use float32; the same command "
      "resumes from the last checkpoint."
    )


def _save_if_due(
  run: Run, progress: Progress, row: Mapping[str, float], *, is_last: bool
) -> None:
  """Saves when it is time to.

  Raises:
    ToldToStopError: A signal ends the run here; the step is saved.
    StoppedRunError: The processes of the run went apart.
  """
  is_stopped = _is_stopped(run, progress) and not is_last
  if (
    is_last
    or is_stopped
    or _is_due(run.config.checkpoint.every_steps, progress.step)
  ):
    if hosts.is_first():
      run.files.take()
    run.checkpoints.save(
      progress.step,
      progress.state,
      progress.host,
      metric=row.get("heldout/exact_sampled_frac"),
    )
  if is_stopped:
    run.checkpoints.wait()
    raise command.ToldToStopError(
      f"stopped after step {progress.step}; the same command resumes the run",
      run.stop.status,
    )


def _is_stopped(run: Run, progress: Progress) -> bool:
  """Whether any process of the run was told to stop.

  Raises:
    StoppedRunError: Their samplers do not stand at the same place.
  """
  if hosts.count() == 1:
    return run.stop.is_set
  digest = sampler.digest(progress.host["sampler"])
  # Pieces that float32 holds exactly.
  pieces = [int(digest[at : at + 6], 16) for at in (0, 6)]
  told = hosts.gather([*pieces, run.stop.is_set])
  if not (told[:, :2] == told[0, :2]).all():
    raise command.StoppedRunError(
      f"the samplers of the {hosts.count()} processes must be equal, they "
      f"differ after step {progress.step}; start all processes with the same "
      "configuration, code and rows, from the last checkpoint."
    )
  return bool(told[:, 2].any())


def _finish(run: Run, progress: Progress) -> None:
  """Exports the policy and writes what the run achieved."""
  run.checkpoints.wait()
  if "after" not in progress.host:  # Fewer steps than the checkpoint has.
    progress.host["after"] = _held_out(run, progress.step)
  if run.config.checkpoint.export:
    weights.save(
      run.files.folder / "export",
      run.policy.config,
      progress.state.params,
      tokenizer_from=run.policy.source,
    )
    logging.info(
      "exported to %s; toolrl-evaluate scores it with --config.model.path=%s",
      run.files.folder / "export",
      run.files.folder / "export",
    )
  before, after = progress.host["before"], progress.host["after"]
  scores = {
    name: {"before": before.get(name), "after": value}
    for name, value in after.items()
    if name != "heldout/secs"
  }
  summary = {"steps": progress.step, "heldout": scores}
  (run.folder / "summary.json").write_text(json.dumps(summary, indent=2))
  if hosts.is_first():
    run.files.take()
  table = step_metrics.summary_table(scores) if scores else "no held-out rows"
  logging.info(
    "finished; toolrl-report %s draws it\n%s", run.files.folder, table
  )


if __name__ == "__main__":
  run()
