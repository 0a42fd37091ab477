"""The configuration to benchmarks, the protocol they run under, and scores.

Reads the `benchmark`, `prompt` and `rollout` sections. What toolrl-evaluate
does once, a study does for each way of asking, and training every few steps.
"""

import contextlib
import functools
import hashlib
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
from absl import logging

from toolrl_jax import configuration, general, named, parts, provenance
from toolrl_jax.evaluation import (
  benchmark,
  bfcl,
  bfcl_files,
  protocol,
  records,
  respond,
  score_table,
)
from toolrl_jax.model import fingerprint
from toolrl_jax.rollout import collect

_PROGRESS_SECS = 30.0
# The model's name in bfcl-eval's result files.
_BFCL_NAME = "toolrl-jax"


class Served(NamedTuple):
  """A model that answers.

  Attributes:
    policy: Its shape, tokenizer and stop tokens.
    server: Answers with its weights.
    weights: Hash of the weights.
    name: What it is called in score files.
    tokenizer: Hash of what turns text into tokens and back.
  """

  policy: parts.Policy
  server: collect.RolloutServer
  weights: str
  name: str
  tokenizer: str


def served(
  policy: parts.Policy, server: collect.RolloutServer, name: str
) -> Served:
  """Returns what is served, with the hashes that its scores carry."""
  text = policy.tokenizer
  makes_tokens = (
    text.backend_tokenizer.to_str(),
    text.chat_template,
    policy.stop_ids,
  )
  return Served(
    policy,
    server,
    fingerprint.fingerprint(server.engine.box.params),
    name,
    hashlib.sha256(repr(makes_tokens).encode()).hexdigest()[:16],
  )


@contextlib.contextmanager
def serve(config: ml_collections.ConfigDict) -> Iterator[Served]:
  """Loads the model and serves it until the end of the `with` block.

  Raises:
    UsageError: It cannot be loaded.
  """
  policy = parts.policy(config)
  engine = parts.rollout_engine(config, policy, policy.params)
  with collect.start(engine, server=config.rollout.server) as server:
    yield served(policy, server, config.model.path or config.model.preset)


def opened(
  config: ml_collections.ConfigDict, stack: contextlib.ExitStack
) -> list[benchmark.Benchmark]:
  """Opens the benchmarks and finds what can be found without the model.

  Args:
    config: A checked configuration.
    stack: Closes what the benchmarks hold.

  Returns:
    The benchmarks that are answered in conversations.

  Raises:
    UsageError: One cannot be opened or has no items, the system text cannot be
      read, or a package is missing.
  """
  asked_protocol(config)
  general.check(config)
  found = named.open_all(config, stack)
  for one in found:
    named.items(one)
  return found


def run(
  config: ml_collections.ConfigDict,
  served: Served,
  workdir: pathlib.Path,
  benchmarks: Sequence[benchmark.Benchmark],
) -> dict[str, Any]:
  """Answers and scores every benchmark under every seed.

  Args:
    config: A checked configuration.
    served: The model.
    workdir: Where answers/ and scores.json are written; made when missing.
    benchmarks: From `opened` with the same configuration.

  Returns:
    What scores.json holds.

  Raises:
    UsageError: A data file breaks the scoring, or the folder holds answers of
      another run.
    RolloutError: The engine failed; ended conversations are on disk.
  """
  asked = asked_protocol(config)
  _check_positions(asked, served.policy)
  logging.info(
    "%s, weights %s, protocol %s; writes to %s",
    served.name,
    served.weights,
    asked.hash,
    workdir,
  )
  responder = respond.Responder(
    served.server,
    served.policy.tokenizer,
    asked,
    stop_ids=served.policy.stop_ids,
    prompt_buckets=tuple(config.data.prompt_buckets),
    completion_buckets=parts.completion_buckets(config),
    max_open=config.benchmark.open,
  )
  scored = {
    one.name: _score_benchmark(config, one, responder, asked, served, workdir)
    for one in benchmarks
  }
  if general.NAME in config.benchmark.names:
    scored[general.NAME] = general.score(config, served.policy, served.server)
  scores = {
    "date": time.strftime("%Y-%m-%d"),
    "model": served.name,
    "weights": served.weights,
    "tokenizer": served.tokenizer,
    "compute_dtype": config.model.compute_dtype,
    "protocol": asked.record(),
    "seeds": list(config.benchmark.seeds),
    "asked": asked_items(config),
    "versions": provenance.versions(),
    "benchmarks": scored,
  }
  records.write_scores(workdir / "scores.json", scores)
  return scores


def check_answers(
  config: ml_collections.ConfigDict,
  served: Served,
  workdir: pathlib.Path,
  benchmarks: Sequence[benchmark.Benchmark],
) -> None:
  """Looks whether answers that lie in a folder are of this run.

  Args:
    config: A checked configuration.
    served: The model.
    workdir: Folder of the run.
    benchmarks: From `opened` with the same configuration.

  Raises:
    UsageError: They are of another; nothing was written.
  """
  asked = asked_protocol(config)
  for one in benchmarks:
    header = _header(config, one.name, one.provenance(), asked, served)
    for seed in config.benchmark.seeds:
      path = _answer_path(workdir, one, seed)
      try:
        records.check(path, header._replace(seed=seed))
      except ValueError as error:
        raise configuration.UsageError(str(error)) from error


def asked_protocol(config: ml_collections.ConfigDict) -> protocol.Protocol:
  """Returns how the model is asked.

  Raises:
    UsageError: The system text cannot be read.
  """
  try:
    system = protocol.system_text(config.benchmark.system)
  except ValueError as error:
    raise configuration.UsageError(f"config.benchmark.{error}") from error
  return protocol.Protocol(
    template=config.prompt.template,
    completion=config.prompt.completion,
    thinking=config.prompt.thinking,
    system=system or config.prompt.system,
    temperature=config.rollout.temperature,
    top_p=config.rollout.top_p,
    top_k=config.rollout.top_k,
    max_new_tokens=config.rollout.max_completion_tokens,
    max_prompt_tokens=config.data.max_prompt_tokens,
    tool_docs=config.benchmark.tool_docs,
  )


def metrics(scores: Mapping[str, Any]) -> dict[str, float]:
  """Returns the means of a score file as metrics of a training step."""
  return {
    f"benchmark/{name}/{metric}": value["mean"]
    for name, one in scores["benchmarks"].items()
    for metric, value in one["summary"].items()
  }


def check(config: ml_collections.ConfigDict, policy: parts.Policy) -> None:
  """Opens every benchmark once, so that a run cannot fail on it later.

  Raises:
    UsageError: As in `run`.
  """
  _check_positions(asked_protocol(config), policy)
  with contextlib.ExitStack() as stack:
    opened(config, stack)


def asked_items(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns what decides which items are run, for the score file."""
  section = config.benchmark
  return {
    "categories": list(section.categories),
    "max_items": section.max_items,
  }


def _check_positions(asked: protocol.Protocol, policy: parts.Policy) -> None:
  longest = asked.max_prompt_tokens + asked.max_new_tokens
  if longest > policy.config.max_positions:
    raise configuration.UsageError(
      f"a prompt of {asked.max_prompt_tokens} tokens and an answer of "
      f"{asked.max_new_tokens} must fit the checkpoint's "
      f"{policy.config.max_positions} positions; lower "
      "config.data.max_prompt_tokens or config.rollout.max_completion_tokens."
    )


def _score_benchmark(
  config: ml_collections.ConfigDict,
  one: benchmark.Benchmark,
  responder: respond.Responder,
  asked: protocol.Protocol,
  served: Served,
  workdir: pathlib.Path,
) -> dict[str, Any]:
  """Runs one benchmark under every seed; returns its part of the file."""
  chosen = named.items(one)
  origin = dict(one.provenance())
  header = _header(config, one.name, origin, asked, served)
  by_seed = {}
  tables: list[Mapping[str, float]] = []
  notes: list[str] = []
  for seed in config.benchmark.seeds:
    path = _answer_path(workdir, one, seed)
    try:
      file = records.AnswerFile(path, header._replace(seed=seed))
    except ValueError as error:
      raise configuration.UsageError(str(error)) from error
    with file:
      _answer(one, chosen, responder, file, seed)
      ended = [file.ended[item.id] for item in chosen]
    outcomes = {end.id: end.outcome for end in ended if not end.error}
    scores = _scores(one, outcomes)
    if isinstance(one, bfcl.Bfcl):
      folder = workdir / "bfcl" / f"seed{seed}" / "result"
      bfcl_files.write(folder, _BFCL_NAME, chosen, outcomes)
    tables.append(scores.table)
    spent = score_table.usage(ended)
    notes += [
      note
      for note in (
        *_notes_on_limits(asked, spent, seed),
        *_notes_on_parts(config),
        *scores.notes,
      )
      if note not in notes
    ]
    by_seed[str(seed)] = {
      "table": dict(scores.table),
      "counts": dict(scores.counts),
      "usage": spent,
      "verdicts": dict(scores.verdicts),
    }
  return {
    "headline": one.headline,
    "summary": score_table.summary(tables),
    "notes": notes,
    "provenance": origin,
    "by_seed": by_seed,
  }


def _answer_path(
  workdir: pathlib.Path, one: benchmark.Benchmark, seed: int
) -> pathlib.Path:
  return workdir / "answers" / f"{one.name}-seed{seed}.jsonl"


def _header(
  config: ml_collections.ConfigDict,
  name: str,
  origin: Mapping[str, str],
  asked: protocol.Protocol,
  served: Served,
) -> records.Header:
  """Returns what files of answers must be made under, with the first seed."""
  return records.Header(
    name,
    config.benchmark.seeds[0],
    asked.record(),
    served.weights,
    {
      **origin,
      "tokenizer": served.tokenizer,
      "compute_dtype": config.model.compute_dtype,
    },
  )


def _scores(
  one: benchmark.Benchmark, outcomes: Mapping[str, Mapping[str, Any]]
) -> benchmark.Scores:
  """Scores outcomes; what a damaged data file breaks is one line."""
  try:
    return one.score(outcomes)
  except Exception as error:
    logging.debug("scoring", exc_info=True)
    text = " ".join(str(error).split()) or type(error).__name__
    raise configuration.UsageError(
      f"benchmark {one.name} could not be scored: {text}; the answers are on "
      "disk, check its data files."
    ) from error


def _notes_on_limits(
  asked: protocol.Protocol, spent: Mapping[str, int | float], seed: int
) -> list[str]:
  """Warns where limits, not the model, decided what was scored."""
  notes = []
  if spent["over_long"]:
    notes.append(
      f"seed {seed}: {spent['over_long']} prompts have more than "
      f"{asked.max_prompt_tokens} tokens, were not asked and count as failed; "
      "raise config.data.max_prompt_tokens."
    )
  if spent["cut"]:
    notes.append(
      f"seed {seed}: {spent['cut']} of {spent['answers']} answers ended at the "
      f"limit of {asked.max_new_tokens} tokens "
      "(config.rollout.max_completion_tokens)."
    )
  for note in notes:
    logging.warning(note)
  return notes


def _notes_on_parts(config: ml_collections.ConfigDict) -> list[str]:
  """Says what part of a benchmark was asked for."""
  section, parts_ = config.benchmark, []
  if section.categories:
    parts_.append(f"the categories {', '.join(section.categories)}")
  if section.max_items:
    parts_.append(f"the first {section.max_items} items (or dialogues) of each")
  return [f"A part only: {', '.join(parts_)}."] if parts_ else []


def _answer(
  one: benchmark.Benchmark,
  chosen: Sequence[benchmark.Item],
  responder: respond.Responder,
  file: records.AnswerFile,
  seed: int,
) -> None:
  """Takes what has not ended yet to its end, and says how far it is."""
  # What failed (a service that was away, say) gets another chance.
  ended = {name for name, one in file.ended.items() if not one.error}
  left = [item for item in chosen if item.id not in ended]
  if len(left) < len(chosen):
    logging.info(
      "%s, seed %d: %d of %d items had ended before",
      one.name, seed, len(chosen) - len(left), len(chosen),
    )  # fmt: skip
  start = said = time.monotonic()
  num_ended = 0

  def note(ended: Sequence[respond.Ended]) -> None:
    nonlocal said, num_ended
    file.write(ended)
    num_ended += len(ended)
    now = time.monotonic()
    if ended and (now - said >= _PROGRESS_SECS or num_ended == len(left)):
      said = now
      rate = (now - start) / num_ended
      logging.info(
        "%s, seed %d: %d of %d items, %.0f s left",
        one.name, seed, num_ended, len(left), rate * (len(left) - num_ended),
      )  # fmt: skip

  responder.respond(
    [(item.id, functools.partial(one.converse, item)) for item in left],
    seed=seed,
    on_end=note,
  )
