"""The grid of ways of asking: each cell scored, all compared.

    toolrl-evaluate --config=configs/sensitivity.py --workdir=/tmp/study

Runs every combination of the axes in config.sensitivity, for one checkpoint or
two, each cell in a folder of its own; what had ended there is not asked again.
Then writes study.json, study.md and a chart for each benchmark.
"""

import contextlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
from absl import logging

from toolrl_jax import configuration, general, parts, suite
from toolrl_jax.evaluation import drift_chart, sensitivity
from toolrl_jax.model import weights

# Folder of the cells of each checkpoint.
_TRAINED, _BASE = "cells", "base_cells"


def is_asked(config: ml_collections.ConfigDict) -> bool:
  """Whether the configuration has a grid."""
  section = config.sensitivity
  return any((section.templates, section.thinking, section.systems))


def run(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> str:
  """Scores every cell that is left, and compares them.

  Args:
    config: A checked configuration with axes.
    workdir: Absolute folder of the run.

  Returns:
    The report, as Markdown.

  Raises:
    UsageError: Something the user can mend is wrong.
    RolloutError: The engine failed; what had ended is on disk.
  """
  _check(config)
  parts.write_config(config, workdir)
  cells = _cells(config)
  trained = _score_cells(config, cells, workdir / _TRAINED)
  base = None
  if config.sensitivity.base:
    changed = config.copy_and_resolve_references()
    changed.model.path = config.sensitivity.base
    base = _score_cells(changed, cells, workdir / _BASE)
  try:
    report = _compare(cells, trained, base)
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error
  (workdir / "study.json").write_text(json.dumps(report, indent=2) + "\n")
  text = _as_markdown(report)
  (workdir / "study.md").write_text(text + "\n")
  for name, part in report["benchmarks"].items():
    drift_chart.write(workdir / f"study_{name}.svg", name, part["axes"])
  return text


def _check(config: ml_collections.ConfigDict) -> None:
  """Finds what would fail in a later cell before the first one is paid for."""
  if general.NAME in config.benchmark.names:
    raise configuration.UsageError(
      'config.benchmark.names has "general", whose report names no items to '
      "compare; leave it out of a study."
    )
  # The items depend on no other axis.
  by_completion: dict[str, ml_collections.ConfigDict] = {}
  for cell in _cells(config):
    changed = _cell_config(config, cell)
    suite.asked_protocol(changed)
    by_completion.setdefault(changed.prompt.completion, changed)
  for changed in by_completion.values():
    with contextlib.ExitStack() as stack:
      suite.opened(changed, stack)
  if config.sensitivity.base:
    try:
      weights.load_config(config.sensitivity.base)
    except (ValueError, OSError) as error:
      raise configuration.UsageError(
        f"config.sensitivity.base: {error}"
      ) from error


def _cells(config: ml_collections.ConfigDict) -> list[sensitivity.Cell]:
  section = config.sensitivity
  return sensitivity.grid(
    section.templates or (config.prompt.template,),
    section.thinking or (config.prompt.thinking,),
    section.systems or (config.benchmark.system,),
  )


def _cell_config(
  config: ml_collections.ConfigDict, cell: sensitivity.Cell
) -> ml_collections.ConfigDict:
  """Returns the configuration of one cell."""
  changed = config.copy_and_resolve_references()
  changed.prompt.template = cell.template
  changed.prompt.thinking = cell.thinking
  changed.benchmark.system = cell.system
  if cell.template == "toolrl":
    # Its system text asks for this layout.
    changed.prompt.completion = "toolrl"
  return changed


def _score_cells(
  config: ml_collections.ConfigDict,
  cells: Sequence[sensitivity.Cell],
  folder: pathlib.Path,
) -> list[dict[str, Any]]:
  """Returns the score file of each cell."""
  scores = []
  with suite.serve(config) as served:
    for number, cell in enumerate(cells, start=1):
      changed = _cell_config(config, cell)
      path = folder / suite.asked_protocol(changed).hash
      logging.info("cell %d of %d: %s", number, len(cells), cell.label)
      # What had ended is not asked again; other items or rules are refused.
      with contextlib.ExitStack() as stack:
        benchmarks = suite.opened(changed, stack)
        scores.append(suite.run(changed, served, path, benchmarks))
  return scores


def _verdicts(
  cell: sensitivity.Cell, scores: Mapping[str, Any], name: str
) -> sensitivity.CellScores:
  by_seed = scores["benchmarks"][name]["by_seed"]
  return sensitivity.CellScores(
    cell,
    scores["protocol"]["hash"],
    {seed: one["verdicts"] for seed, one in by_seed.items()},
  )


def _compare(
  cells: Sequence[sensitivity.Cell],
  trained: Sequence[Mapping[str, Any]],
  base: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
  """Returns drifts by axis, and gains by cell, of each benchmark."""
  report: dict[str, Any] = {
    "model": trained[0]["model"],
    "weights": trained[0]["weights"],
    "base": base[0]["model"] if base else None,
    "seeds": trained[0]["seeds"],
    "benchmarks": {},
  }
  for name in trained[0]["benchmarks"]:
    by_cell = {
      cell: _verdicts(cell, scores, name)
      for cell, scores in zip(cells, trained)
    }
    part: dict[str, Any] = {
      "num_items": len(next(iter(by_cell[cells[0]].verdicts.values()))),
      "cells": [
        _row(cell, sensitivity.drift(by_cell[cells[0]], by_cell[cell]))
        | {"protocol": by_cell[cell].protocol, **_limits(scores, name)}
        for cell, scores in zip(cells, trained)
      ],
      "axes": _axes(cells, by_cell),
    }
    if base:
      part["gains"] = [
        _row(
          cell, sensitivity.gain(_verdicts(cell, scores, name), by_cell[cell])
        )
        for cell, scores in zip(cells, base)
      ]
    report["benchmarks"][name] = part
  return report


def _limits(scores: Mapping[str, Any], name: str) -> dict[str, float]:
  """Returns the shares of items that met a limit, over all seeds."""
  by_seed = scores["benchmarks"][name]["by_seed"]
  usages = [one["usage"] for one in by_seed.values()]
  items = sum(usage["items"] for usage in usages)
  return {
    "over_long_frac": sum(usage["over_long"] for usage in usages) / items,
    "cut_frac": sum(usage["cut"] for usage in usages) / items,
  }


def _axes(
  cells: Sequence[sensitivity.Cell],
  by_cell: Mapping[sensitivity.Cell, sensitivity.CellScores],
) -> dict[str, Any]:
  axes = {}
  for axis in sensitivity.AXES:
    drifts = {
      getattr(cell, axis): sensitivity.drift(by_cell[cells[0]], by_cell[cell])
      for cell in sensitivity.axis_cells(cells[0], cells, axis)
    }
    if drifts:
      axes[axis] = {
        "baseline": getattr(cells[0], axis),
        "drifts": {value: one._asdict() for value, one in drifts.items()},
        "sentence": sensitivity.sentence(axis, drifts),
      }
  return axes


def _row(cell: sensitivity.Cell, drift: sensitivity.Drift) -> dict[str, Any]:
  return {
    **cell._asdict(),
    **drift._asdict(),
    "is_beyond_seeds": drift.is_beyond_seeds,
  }


def _as_markdown(report: Mapping[str, Any]) -> str:
  lines = [
    f"# How far the score moves: {report['model']}",
    "",
    f"Weights {report['weights']}, seeds "
    f"{', '.join(map(str, report['seeds']))}. Percent of the items, mean over "
    "seeds ± standard deviation; differences in points with the 95 % interval "
    "of the resampled items. Prompts that are too long are not asked and count "
    "as failed, answers may be cut at the token limit: where either share is "
    "large, the limits speak and not the model.",
  ]
  for name, part in report["benchmarks"].items():
    lines += ["", f"## {name}, {part['num_items']} items", ""]
    lines += _table(part["cells"], "against the first cell")
    for one in part["axes"].values():
      lines += ["", one["sentence"]]
    if "gains" in part:
      lines += ["", f"### Gain over {report['base']}", ""]
      lines += _table(part["gains"], "gain")
      lines += ["", _gain_sentence(part["gains"])]
  return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, Any]], what: str) -> list[str]:
  has_limits = "cut_frac" in rows[0]
  lines = [
    f"| template | thinking | system | score | {what} | interval |"
    + (" too long, % | cut, % | protocol |" if has_limits else ""),
    "| --- | --- | --- | --- | --- | --- |"
    + (" --- | --- | --- |" if has_limits else ""),
  ]
  for row in rows:
    lines.append(
      f"| {row['template']} | {row['thinking']} | {row['system']} | "
      f"{100 * row['mean']:.1f} ± {100 * row['std']:.1f} | "
      f"{100 * row['difference']:+.1f} | {100 * row['low']:+.1f} to "
      f"{100 * row['high']:+.1f} |"
      + (
        f" {100 * row['over_long_frac']:.0f} | {100 * row['cut_frac']:.0f} | "
        f"{row['protocol']} |"
        if has_limits
        else ""
      )
    )
  return lines


def _gain_sentence(gains: Sequence[Mapping[str, Any]]) -> str:
  count = sum(row["difference"] > 0 and row["low"] > 0 for row in gains)
  if count == len(gains):
    return f"The gain survives every one of the {count} cells."
  return (
    f"The gain survives {count} of {len(gains)} cells: in the others the "
    "interval holds 0 or less."
  )
