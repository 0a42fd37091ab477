"""Draws the drifts of a study, a bar with its interval for each value.

From the axes of a study's report to an SVG file. Knows nothing of how the
drifts were found.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.backends import backend_svg
from matplotlib.figure import Figure

_BAR, _CLEAR = "#9db4c8", "#2c6e9b"


def write(
  path: pathlib.Path, title: str, axes: Mapping[str, Mapping[str, Any]]
) -> None:
  """Writes the chart, whole or not at all.

  Args:
    path: File to write, an SVG.
    title: What was scored.
    axes: Axis to its `baseline` and its `drifts`, value of the axis to the
      fields of a `sensitivity.Drift`.
  """
  rows = [
    (_plain(f"{axis}: {value}"), one)
    for axis, part in axes.items()
    for value, one in part["drifts"].items()
  ]
  figure = Figure(figsize=(7, 1.2 + 0.4 * len(rows)), layout="constrained")
  plot = figure.add_subplot()
  for place, (_, one) in enumerate(rows):
    middle = 100 * one["difference"]
    spread = [[middle - 100 * one["low"]], [100 * one["high"] - middle]]
    is_clear = one["low"] > 0 or one["high"] < 0
    plot.barh(place, middle, color=_CLEAR if is_clear else _BAR, height=0.6)
    plot.errorbar(middle, place, xerr=spread, color="black", capsize=3)
    if one["noise"] is not None:
      noise = 100 * one["noise"]
      plot.fill_betweenx(
        [place - 0.4, place + 0.4], -noise, noise, color="grey", alpha=0.25
      )
  plot.set_yticks(range(len(rows)), [label for label, _ in rows])
  plot.invert_yaxis()
  plot.axvline(0, color="black", linewidth=0.8)
  baseline = _plain(
    ", ".join(f"{a} {part['baseline']}" for a, part in axes.items())
  )
  plot.set_xlabel(
    f"points against {baseline}; grey: seed noise, bars: 95 % over items",
    fontsize=8,
  )
  plot.set_title(title, fontsize=10)
  partial = path.with_suffix(".partial")
  # Fixed, so that the same study gives the same bytes.
  with matplotlib.rc_context({"svg.hashsalt": "study", "svg.fonttype": "none"}):
    backend_svg.FigureCanvasSVG(figure).print_svg(
      partial, metadata={"Date": None}
    )
  partial.replace(path)


def _plain(text: str) -> str:
  """Returns a text that is not read as a formula."""
  return text.replace("$", r"\$")
