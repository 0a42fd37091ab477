"""Scores a model on benchmarks, under a protocol that its scores carry.

    toolrl-evaluate --config=configs/evaluate_tiny.py --workdir=/tmp/scores
    toolrl-evaluate --show=/tmp/scores

From a checkpoint to `scores.json`: each benchmark is answered under each seed,
conversation by conversation, and scored by its own rules. Ended conversations
are on disk, so the same command goes on where it was stopped. With axes in
config.sensitivity the same is done for each way of asking, and compared.
"""

import contextlib
import pathlib
import sys
from collections.abc import Sequence

import ml_collections

from toolrl_jax import command, command_line, configuration, parts, study, suite
from toolrl_jax.evaluation import comparison, records, score_table

USAGE = """\
toolrl-evaluate: scores a model on tool-calling benchmarks.

  toolrl-evaluate --config=FILE --workdir=DIR [--config.section.field=VALUE ...]
  toolrl-evaluate --show=DIR [--against=DIR]

  --config    a recipe, for example configs/evaluate_tiny.py
  --workdir   where the run writes, a folder
  --config.   changes a field of the recipe: what is scored (benchmark), how the
              model is asked (prompt, rollout), the grid of ways of asking
              (sensitivity); docs/configuration.md has all of them
  --show      prints the score file of a run, or the report of a study
  --against   beside --show: the run of another checkpoint under the same
              protocol; prints the differences with their intervals

Examples:
  toolrl-evaluate --config=configs/evaluate_tiny.py --workdir=/tmp/before
  toolrl-evaluate --config=configs/evaluate_tiny.py --workdir=/tmp/after \\
    --config.model.path=/tmp/tiny/export
  toolrl-evaluate --show=/tmp/after --against=/tmp/before
  toolrl-evaluate --config=configs/sensitivity.py --workdir=/tmp/study

The workdir then holds config.json, answers/ (a line an ended conversation) and
scores.json (protocol, hashes, versions and the verdict of every item); with
axes in config.sensitivity also cells/, study.json, study.md and a chart.
Benchmarks and their data: docs/evaluation.md. The same command again goes on
where a run was stopped. Status: 0 done; 2 a mistake; 1 it cannot go on."""


def run(argv: list[str] | None = None) -> None:
  """Runs the command; a user's mistake ends with one line and status 2."""
  arguments = sys.argv if argv is None else argv
  command.run("toolrl-evaluate", lambda: _run(arguments))


def _run(argv: Sequence[str]) -> None:
  show, against = (_folder(argv, name) for name in ("show", "against"))
  if show is not None:
    text = _shown(show, against)
  elif against is not None:
    raise configuration.UsageError(
      "--against needs --show=DIR, the run that is compared; add it."
    )
  else:
    config, workdir = command_line.load(
      argv, USAGE, is_training=False, example="configs/evaluate_tiny.py"
    )
    text = main(config, workdir)
  sys.stdout.write(f"{text}\n")


def _folder(argv: Sequence[str], flag: str) -> pathlib.Path | None:
  """Returns the folder that a flag names."""
  for place, argument in enumerate(argv[1:], start=2):
    name, is_joined, value = argument.lstrip("-").partition("=")
    if name != flag:
      continue
    if not is_joined:
      value = "".join(argv[place : place + 1])
    if not value or value.startswith("--"):
      raise configuration.UsageError(f"--{flag} needs a folder: --{flag}=DIR.")
    return command_line.local_path(f"--{flag}", value)
  return None


def _shown(path: pathlib.Path, against: pathlib.Path | None) -> str:
  """Returns the report of a study, the table of a score file, or gains."""
  try:
    if against is not None:
      return comparison.describe(
        records.read_scores(path), records.read_scores(against)
      )
    if (path / "study.md").is_file():
      return (path / "study.md").read_text().rstrip()
    return score_table.describe(records.read_scores(path))
  except (ValueError, OSError) as error:
    raise configuration.UsageError(f"--show: {error}") from error
  except (KeyError, TypeError, AttributeError, StopIteration) as error:
    raise configuration.UsageError(
      f"--show: {path} is no whole score file ({error!r}); run it again."
    ) from error


def main(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> str:
  """Answers and scores every benchmark under every seed.

  Args:
    config: A checked configuration.
    workdir: Absolute folder of the run; made when missing.

  Returns:
    What was found, as text.

  Raises:
    UsageError: Something the user can mend is wrong.
    RolloutError: The engine failed; ended conversations are on disk.
  """
  parts.prepare_devices(config)
  parts.prepare_workdir(workdir)
  parts.refuse_files_of(
    workdir, "toolrl-train", ("metrics.jsonl", "checkpoints")
  )
  with parts.sole_writer(workdir):
    if study.is_asked(config):
      return study.run(config, workdir)
    with contextlib.ExitStack() as stack:
      # A mistake there shows before the model is loaded.
      benchmarks = suite.opened(config, stack)
      served = stack.enter_context(suite.serve(config))
      suite.check_answers(config, served, workdir, benchmarks)
      parts.write_config(config, workdir)
      scores = suite.run(config, served, workdir, benchmarks)
  return score_table.describe(scores)


if __name__ == "__main__":
  run()
