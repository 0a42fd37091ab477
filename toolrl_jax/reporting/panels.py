"""Metrics of runs to figures of one look: panels, colours, legends.

One run gives one panel with a colour for each metric; several give a panel for
each metric with a colour for each run. It does not know what the metrics mean.
"""

from collections.abc import Sequence
from typing import NamedTuple

from plotly import graph_objects as go
from plotly import subplots

from toolrl_jax.reporting import printable, thinning
from toolrl_jax.reporting import runs as runs_lib

# Legible on white and on near black, also to the colour-blind in this order.
COLORS = (
  "#2f80c9", "#e0662f", "#1f9e78", "#b8860b", "#a35fb5", "#6b7785", "#c2456b",
)  # fmt: skip
# Points of a curve, shared out over the runs of a page.
_MOST_POINTS = 1200
_LEAST_POINTS = 100


class Line(NamedTuple):
  """A metric in a chart.

  Attributes:
    metric: Its name in metrics.jsonl.
    label: How a reader calls it.
  """

  metric: str
  label: str


def curves(
  runs: Sequence[runs_lib.Run],
  title: str,
  lines: Sequence[Line],
  *,
  unit: str = "",
  is_share: bool = False,
  mode: str = "lines",
) -> go.Figure:
  """Draws metrics over steps; metrics that no run has are left out.

  Args:
    runs: Runs, at least one.
    title: Title of the figure.
    lines: Metrics to draw.
    unit: Their unit, shown where there is one panel.
    is_share: Whether they lie in [0, 1]; drawn as percent.
    mode: How points are drawn, plotly's "lines" or "lines+markers".

  Returns:
    The figure; long curves in it are thinned.
  """
  lines = [
    line for line in lines if any(line.metric in run.curves for run in runs)
  ]
  is_one = len(runs) == 1
  figure = empty(
    title, [unit] if is_one else [plain(one.label) for one in lines]
  )
  most = max(_MOST_POINTS // max(len(runs), 1), _LEAST_POINTS)
  for i, run in enumerate(runs):
    for j, line in enumerate(lines):
      of = "max" if line.metric.endswith("_max") else "mean"
      curve = thinning.thin(run.curve(line.metric), most=most, of=of)
      figure.add_scatter(
        x=curve.steps,
        y=curve.values,
        name=plain(line.label if is_one else run.name),
        legendgroup=None if is_one else f"run {i}",
        showlegend=is_one or j == 0,
        mode=mode if len(curve.steps) > 1 else "markers",
        line={"color": COLORS[(j if is_one else i) % len(COLORS)], "width": 2},
        row=1 if is_one else j + 1,
        col=1,
      )
  if is_share:
    figure.update_yaxes(tickformat=".0%", range=[-0.02, 1.02])
  return figure


def empty(title: str, titles: Sequence[str]) -> go.Figure:
  """Returns an empty figure with panels one below another.

  Args:
    title: Title of the figure.
    titles: Name of each panel's vertical axis.

  Returns:
    The figure, with transparent ground.
  """
  num_rows = max(len(titles), 1)
  figure = subplots.make_subplots(
    rows=num_rows,
    cols=1,
    shared_xaxes=True,
    vertical_spacing=0.12 / num_rows,
  )
  figure.update_layout(
    title=title,
    template="none",
    height=150 + 170 * num_rows if num_rows > 1 else 320,
    margin={"l": 58, "r": 14, "t": 60, "b": 48},
    hovermode="x unified",
    showlegend=True,
    legend={
      "orientation": "h",
      "x": 0,
      "y": 1,
      "yanchor": "bottom",
      "traceorder": "normal",
    },
    paper_bgcolor="rgba(0,0,0,0)",
    plot_bgcolor="rgba(0,0,0,0)",
    font={"size": 12, "color": "#5b6670"},
    colorway=COLORS,
  )
  for row, name in enumerate(titles, start=1):
    figure.update_yaxes(title={"text": name, "standoff": 6}, row=row, col=1)
  grey = "rgba(128,128,128,0.25)"
  figure.update_xaxes(gridcolor=grey, zeroline=False)
  figure.update_yaxes(gridcolor=grey, zerolinecolor=grey)
  figure.update_xaxes(title="step", row=num_rows, col=1)
  return figure


def plain(name: str) -> str:
  """Returns a name that plotly, which reads a few tags, shows as it is.

  Args:
    name: Any text; the first 60 characters are kept.
  """
  shown = printable.cut(name, most=60)
  return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
