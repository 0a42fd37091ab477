"""The benchmarks by their names in the configuration.

Reads the `benchmark` section and opens what it names; a benchmark that holds
a process is closed with the caller's stack.
"""

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import ml_collections
from absl import logging

from toolrl_jax import configuration
from toolrl_jax.data import dataset
from toolrl_jax.evaluation import (
  acebench,
  answer_match,
  api_bank,
  bamboogle,
  benchmark,
  bfcl,
  bfcl_scores,
  examples,
  search,
  user_simulator,
)


def open_all(
  config: ml_collections.ConfigDict, stack: contextlib.ExitStack
) -> list[benchmark.Benchmark]:
  """Opens every benchmark that the configuration names, in its order.

  Args:
    config: A checked configuration.
    stack: Closes what the benchmarks hold.

  Returns:
    The benchmarks.

  Raises:
    UsageError: None is named, or its files cannot be read.
  """
  if not config.benchmark.names:
    raise configuration.UsageError(
      "config.benchmark.names is empty; name some of "
      f"{', '.join(configuration.BENCHMARKS)}, for example "
      "--config.benchmark.names=\"('rows',)\"."
    )
  return [
    _open(name, config, stack)
    for name in config.benchmark.names
    if name in (*_FILES, "bfcl")
  ]


def items(one: benchmark.Benchmark) -> Sequence[benchmark.Item]:
  """Returns the items of a benchmark.

  Raises:
    UsageError: Its files or its environment are not usable, or it has none.
  """
  try:
    found = one.items()
  except Exception as error:
    raise _unusable(one.name, error) from error
  if not found:
    raise configuration.UsageError(
      f"benchmark {one.name} has no items to run; check its files, its "
      "categories, and for ACEBench's agent_multi_turn config.benchmark.user."
    )
  return found


def _open(
  name: str, config: ml_collections.ConfigDict, stack: contextlib.ExitStack
) -> benchmark.Benchmark:
  try:
    if name == "bfcl":
      opened = _bfcl(config)
      stack.callback(opened.close)
      return opened
    return _FILES[name](config)
  except configuration.UsageError:
    raise
  except Exception as error:
    raise _unusable(name, error) from error


def _unusable(name: str, error: Exception) -> configuration.UsageError:
  """A damaged file or environment may fail in any way; it is one line."""
  logging.debug("benchmark %s", name, exc_info=True)
  text = " ".join(str(error).split()) or type(error).__name__
  return configuration.UsageError(f"benchmark {name}: {text}")


def _rows(config: ml_collections.ConfigDict) -> benchmark.Benchmark:
  section = config.data
  _refuse_categories(config, "rows")
  if not section.eval_path:
    raise configuration.UsageError(
      'benchmark "rows" needs config.data.eval_path: the rows to answer.'
    )
  # A row that is too long under one template stays an item under all: it is a
  # failure, not another set of items.
  loaded = dataset.load(
    section.eval_path,
    format=section.format,
    bad_rows=section.bad_rows,
    seed=config.seed,
    split="eval",
    style=config.prompt.completion,
  )
  limit = config.benchmark.max_items or config.eval.num_examples
  return examples.ExampleBenchmark(
    loaded.examples[: limit or None],
    num_rejected=len(loaded.rejected),
    reward=config.reward.to_dict(),
    style=config.prompt.completion,
  )


def _bfcl(config: ml_collections.ConfigDict) -> bfcl.Bfcl:
  section = config.benchmark
  folder = section.bfcl_environment
  return bfcl.Bfcl(
    environment_folder=pathlib.Path(folder) if folder else None,
    categories=tuple(section.categories) or bfcl_scores.CATEGORIES,
    max_items=section.max_items,
    tool_docs=section.tool_docs,
  )


def _acebench(config: ml_collections.ConfigDict) -> benchmark.Benchmark:
  section = config.benchmark
  user: user_simulator.UserSimulator | None = None
  if section.user == "local":
    user = user_simulator.LocalUser()
  elif section.user != "none":
    user = user_simulator.HttpUser(
      section.user,
      base_url=section.user_url,
      model=section.user_model,
      key_name=section.user_key_variable,
    )
  return acebench.AceBench(
    _folder(config, "acebench_path"),
    categories=tuple(section.categories),
    max_items=section.max_items,
    user=user,
  )


def _api_bank(config: ml_collections.ConfigDict) -> benchmark.Benchmark:
  return api_bank.ApiBank(
    _folder(config, "api_bank_path"),
    style=config.prompt.completion,
    categories=tuple(config.benchmark.categories),
    max_items=config.benchmark.max_items,
  )


def _bamboogle(config: ml_collections.ConfigDict) -> benchmark.Benchmark:
  section = config.benchmark
  _refuse_categories(config, "bamboogle")
  judge = None
  if section.judge_url:
    judge = answer_match.ModelJudge(
      section.judge_url, section.judge_model, section.judge_key_variable
    )
  return bamboogle.Bamboogle(
    _folder(config, "bamboogle_path"),
    search=_search(section),
    judge=judge,
    max_items=section.max_items,
  )


def _refuse_categories(config: ml_collections.ConfigDict, name: str) -> None:
  if config.benchmark.categories:
    raise configuration.UsageError(
      f"benchmark {name} has no categories, got config.benchmark.categories = "
      f"{tuple(config.benchmark.categories)}; leave them out."
    )


def _search(section: ml_collections.ConfigDict) -> search.Search | None:
  """Returns where pages come from."""
  path = section.search_path
  if section.search == "none":
    return None
  if section.search == "serper":
    live = search.Serper(section.search_key_variable)
    return search.Recorded(path, live=live) if path else live
  if not path:
    raise configuration.UsageError(
      f"config.benchmark.search={section.search} needs "
      "config.benchmark.search_path: the corpus or the record."
    )
  return (search.Bm25 if section.search == "bm25" else search.Recorded)(path)


def _folder(config: ml_collections.ConfigDict, field: str) -> str:
  path = config.benchmark[field]
  if not path:
    raise configuration.UsageError(
      f"config.benchmark.{field} is empty; name the folder of its data."
    )
  return path


_FILES: dict[str, Callable[[Any], benchmark.Benchmark]] = {
  "rows": _rows,
  "acebench": _acebench,
  "api_bank": _api_bank,
  "bamboogle": _bamboogle,
}
