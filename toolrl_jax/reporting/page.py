"""Runs to one HTML file that needs nothing else, neither network nor server.

From records and figures to a page: an overview, warnings, curves, samples and
configurations. All text is escaped by the template, and a content security
policy lets the page's own two scripts run and no other. It computes no number.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import markupsafe
import plotly
from plotly import graph_objects as go

from toolrl_jax.reporting import (
  call_points,
  charts,
  overview,
  printable,
  runs,
  samples,
  scores,
  settings,
  warnings,
)

# Bounds that keep the file below 8 MB, of which plotly.js takes 4.9.
_MOST_SAMPLES = 60
_MOST_SAMPLES_A_RUN = 24
_MOST_COMPLETION = 3_000
_MOST_GOLD = 1_500
_MOST_VALUE = 300
_MOST_WARNINGS = 40


class Figure(NamedTuple):
  """A figure of the page.

  Attributes:
    key: Its key in charts.CHARTS.
    title: Its title.
    says: What is seen in it.
    height: Its height in pixels.
    json: Data and layout, safe inside a script element.
  """

  key: str
  title: str
  says: str
  height: int
  json: markupsafe.Markup


class Chip(NamedTuple):
  """A part of a reward.

  Attributes:
    label: Which part.
    value: Its value as text.
    grade: "full", "some" or "none" of what it can be; "" for neither.
  """

  label: str
  value: str
  grade: str


def render(
  found: Sequence[runs.Run],
  *,
  default: settings.Recipe | None,
  recipe: settings.Recipe | None,
) -> str:
  """Writes the page.

  Args:
    found: Runs with names that differ, at least one.
    default: The defaults of all fields, if known.
    recipe: The recipe that configurations are held against, if known.

  Returns:
    HTML text that can be encoded as UTF-8.
  """
  found = [run._replace(name=printable.cut(run.name, most=80)) for run in found]
  scored = [run for run in found if run.scores]
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader("toolrl_jax.reporting"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= {"value": _value, "score": _score}
  library = plotly.offline.get_plotlyjs()
  script = environment.get_template("page.js").render()
  table = settings.rows(found, default=default, recipe=recipe)
  return environment.get_template("page.html").render(
    runs=found,
    overviews=[overview.of(run) for run in found],
    made_with=[_made_with(run) for run in found],
    warnings=[_bounded(warnings.seen(run)) for run in found],
    scored=[(run.name, _protocol(run)) for run in scored],
    scores=scores.rows(scored),
    figures=_figures([run for run in found if run.curves]),
    samples=[_shown_samples(run, len(found)) for run in found],
    parts_differ=[_counts_otherwise(run) for run in found],
    num_samples=[len(run.samples) for run in found],
    table=table,
    differing=settings.differing(table),
    default=default,
    recipe=recipe,
    absent=settings.ABSENT,
    style=_own("page.css"),
    library=markupsafe.Markup(library),
    script=markupsafe.Markup(script),
    policy=_policy([library, script]),
  )


def _own(name: str) -> markupsafe.Markup:
  """Returns one of the package's own files as it is."""
  loader = jinja2.PackageLoader("toolrl_jax.reporting")
  source, _, _ = loader.get_source(jinja2.Environment(autoescape=True), name)
  return markupsafe.Markup(source)


def _policy(scripts: Sequence[str]) -> str:
  """Returns the policy that lets these scripts run and nothing else."""
  hashes = " ".join(
    f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
    for s in scripts
  )
  return (
    f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
  )


def _bounded(seen: list[warnings.SeenWarning]) -> list[warnings.SeenWarning]:
  """Keeps the first warnings, printable."""
  shown = [
    one._replace(text=printable.cut(one.text, most=600))
    for one in seen[:_MOST_WARNINGS]
  ]
  if len(seen) > _MOST_WARNINGS:
    more = f"{len(seen) - _MOST_WARNINGS} more warnings of this kind."
    shown.append(warnings.SeenWarning(False, more))
  return shown


def _made_with(run: runs.Run) -> str:
  """Returns rows, devices and versions of a run; empty where not on record."""
  return printable.cut(overview.made_with(run), most=400)


# ----- figures -----


def _figures(found: Sequence[runs.Run]) -> list[Figure]:
  """Draws the charts; titles stand in the page, where they can wrap."""
  figures = []
  for key, figure in charts.all_charts(found).items():
    title = figure.layout.title.text
    figure.update_layout(title=None, margin={"t": 34})
    figures.append(
      Figure(
        key,
        title,
        charts.CHARTS[key].says,
        figure.layout.height,
        _script_json(figure),
      )
    )
  return figures


def _script_json(figure: go.Figure) -> markupsafe.Markup:
  """Returns a figure as JSON in which no tag can begin or end."""
  text = json.dumps(json.loads(figure.to_json()))
  for sign in "<>&":
    text = text.replace(sign, f"\\u{ord(sign):04x}")
  return markupsafe.Markup(text)


# ----- samples -----


def _shown_samples(run: runs.Run, num_runs: int) -> list[dict[str, Any]]:
  """Returns what the page shows of a run's samples."""
  count = min(_MOST_SAMPLES_A_RUN, max(_MOST_SAMPLES // num_runs, 2))
  return [
    {
      "sample": one.sample,
      "id": printable.cut(one.sample.id, most=120),
      "gold": printable.cut(one.sample.gold, most=_MOST_GOLD),
      "segments": _bounded_segments(one.segments),
      "reward": _reward_chips(one.sample),
      "points": _point_chips(one.points),
    }
    for one in samples.table(run, count=count)
  ]


def _bounded_segments(
  segments: Sequence[samples.Segment],
) -> list[samples.Segment]:
  """Keeps the first characters, printable, and says how many follow."""
  shown: list[samples.Segment] = []
  left = _MOST_COMPLETION
  for i, segment in enumerate(segments):
    if left <= 0:
      more = sum(len(one.text) for one in segments[i:])
      shown.append(samples.Segment("other", f" … ({more:,} more characters)"))
      break
    text = printable.cut(segment.text, most=left)
    shown.append(samples.Segment(segment.kind, text))
    left -= len(segment.text)
  return shown


def _reward_chips(sample: runs.Sample) -> list[Chip]:
  """Returns the recorded reward and its parts."""
  chips = [
    Chip("reward", _number(sample.total), ""),
    Chip("format", _number(sample.format), _grade(sample.format, 1.0)),
    Chip("correctness", _number(sample.correctness), ""),
  ]
  if sample.length:
    chips.append(Chip("length", _number(sample.length), ""))
  return chips


def _point_chips(points: call_points.CallPoints | None) -> list[Chip]:
  """Returns the points of names, parameters and values."""
  if points is None:
    return []
  if points.status not in ("OK", "NO_ARGUMENTS"):
    return [Chip("calls", points.status.replace("_", " ").lower(), "none")]
  parts = [
    ("names", points.names, 1),
    ("parameters", points.parameters, points.max_parameters),
    ("values", float(points.values), points.max_values),
  ]
  return [
    Chip(label, f"{_number(value)} of {most}", _grade(value, float(most)))
    for label, value, most in parts
    if most
  ]


def _grade(value: float, most: float) -> str:
  if value >= most:
    return "full"
  return "some" if value > 0 else "none"


def _counts_otherwise(run: runs.Run) -> str:
  """Names the options under which points do not add up to the reward."""
  wanted = {"name": "toolrl", "granularity": "fine", "scale": "fixed"}
  return ", ".join(
    f"reward.{name}={printable.cut(str(value), most=40)}"
    for name, usual in wanted.items()
    if (value := run.setting(f"reward.{name}", usual)) != usual
  )


# ----- cells -----


def _value(value: Any) -> str:
  """Returns a configuration's value as text."""
  if value is settings.ABSENT:
    return repr(value)
  if isinstance(value, str):
    return printable.cut(value, most=_MOST_VALUE) or "(empty)"
  text = json.dumps(value, ensure_ascii=False)
  return printable.cut(text, most=_MOST_VALUE)


def _number(value: float) -> str:
  """Returns a number with at most two decimals, "–" for none."""
  if value != value:
    return "–"
  text = f"{value:.2f}".rstrip("0").rstrip(".")
  return "0" if text == "-0" else text


def _score(score: scores.Score | None, metric: str) -> str:
  """Returns a score in percent, with its spread and its items."""
  if score is None:
    return "–"
  # The one metric that is a number of searches, not a share.
  scale = 1 if metric.endswith("mean_calls") else 100
  text = f"{scale * score.mean:.2f}"
  if score.std:
    text += f" ± {scale * score.std:.2f}"
  return text + (f" ({score.num_items} items)" if score.num_items else "")


def _protocol(run: runs.Run) -> str:
  """Returns the hash of the protocol under which a run was scored."""
  protocol = run.scores.get("protocol")
  value = protocol.get("hash") if isinstance(protocol, Mapping) else None
  return value if isinstance(value, str) else ""
