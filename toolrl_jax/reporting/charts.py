"""Runs to figures: one function a chart, each for one run or for several.

    charts.reward_parts([run]).show()
    charts.all_charts(runs)

One run: a panel with a colour for each metric. Several: a panel for each
metric with a colour for each run. Long curves are thinned. The figures carry
their titles; what is good to see in them stands in CHARTS.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from plotly import graph_objects as go

from toolrl_jax.reporting import panels, stages
from toolrl_jax.reporting import runs as runs_lib

Runs = Sequence[runs_lib.Run]


def reward_parts(runs: Runs) -> go.Figure:
  """Draws the mean reward of the rollouts and its parts."""
  lines = [
    panels.Line("reward/total", "total"),
    panels.Line("reward/format", "format"),
    panels.Line("reward/correctness", "correctness"),
  ]
  if any(np.any(run.curve("reward/length").values) for run in runs):
    lines.append(panels.Line("reward/length", "length"))
  return panels.curves(runs, "Reward and its parts", lines, unit="reward")


def success(runs: Runs) -> go.Figure:
  """Draws the share of rollouts that are right."""
  lines = [panels.Line("reward/success_frac", "right rollouts")]
  return panels.curves(runs, "Success", lines, is_share=True)


def heldout(runs: Runs) -> go.Figure:
  """Draws the scores on rows that are not trained on."""
  lines = [
    panels.Line("heldout/exact_greedy_frac", "right, greedy"),
    panels.Line("heldout/exact_sampled_frac", "right, sampled"),
    panels.Line("heldout/refusal_greedy_frac", "right refusals, greedy"),
  ]
  return panels.curves(
    runs, "Held-out rows", lines, is_share=True, mode="lines+markers"
  )


def heldout_by_secs(runs: Runs) -> go.Figure:
  """Draws the held-out score over the seconds spent in steps."""
  figure = panels.empty("Held-out score by time", ["right, greedy"])
  for i, run in enumerate(runs):
    curve = run.curve("heldout/exact_greedy_frac")
    figure.add_scatter(
      x=_secs_before(run, curve.steps) / 60,
      y=curve.values,
      name=panels.plain(run.name),
      mode="lines+markers",
      line={"color": panels.COLORS[i % len(panels.COLORS)]},
    )
  figure.update_yaxes(tickformat=".0%", range=[-0.02, 1.02])
  figure.update_xaxes(title="minutes in training steps")
  return figure


def benchmarks(runs: Runs) -> go.Figure:
  """Draws the scores of benchmarks that ran while training."""
  names = {
    name: None
    for run in runs
    for name in run.curves
    if name.startswith("benchmark/") and name != "benchmark/secs"
  }
  lines = [panels.Line(name, name.removeprefix("benchmark/")) for name in names]
  return panels.curves(runs, "Benchmarks", lines, mode="lines+markers")


def lengths(runs: Runs) -> go.Figure:
  """Draws the mean lengths of prompts and completions."""
  lines = [
    panels.Line("rollout/length_tokens", "completion"),
    panels.Line("rollout/prompt_tokens", "prompt"),
  ]
  return panels.curves(runs, "Lengths", lines, unit="tokens")


def forms(runs: Runs) -> go.Figure:
  """Draws what completions look like: cut, unreadable, with a call."""
  lines = [
    panels.Line("rollout/parse_fail_frac", "unreadable"),
    panels.Line("rollout/cut_frac", "cut at the length limit"),
    panels.Line("rollout/tool_call_frac", "with a call"),
    panels.Line("rollout/gold_call_frac", "gold with a call"),
  ]
  return panels.curves(runs, "Form of the completions", lines, is_share=True)


def contrast(runs: Runs) -> go.Figure:
  """Draws the share of groups whose rollouts all earn the same."""
  lines = [
    panels.Line("filter/zero_variance_frac", "equal rewards"),
    panels.Line("filter/all_right_frac", "all right"),
    panels.Line("filter/all_wrong_frac", "all wrong"),
  ]
  return panels.curves(runs, "Groups without contrast", lines, is_share=True)


def skipped(runs: Runs) -> go.Figure:
  """Draws the share of the rows that the streak filter leaves out."""
  share = "filter/skipped_frac"
  with_share = [
    run._replace(curves={**run.curves, share: skipped_share(run)})
    for run in runs
  ]
  lines = [panels.Line(share, "left out")]
  return panels.curves(with_share, "Skipped prompts", lines, is_share=True)


def skipped_share(run: runs_lib.Run) -> runs_lib.Curve:
  """Returns the share of the rows that an epoch leaves out.

  Where the folder does not hold the number of rows, they are taken as the most
  prompts that an epoch left out and visited, which is right to a step's prompts
  once an epoch has ended.

  Args:
    run: The run.

  Returns:
    Shares in [0, 1]; no point where the run does not say how many prompts a
    step takes.
  """
  curve, epochs = (
    run.curve("filter/skipped_prompts"),
    run.curve("sampler/epoch"),
  )
  a_step = run.setting("sampler.prompts_per_step")
  dated = epochs.steps[np.isfinite(epochs.values)]
  is_known = np.isin(curve.steps, dated) & np.isfinite(curve.values)
  if not (type(a_step) is int and 1 <= a_step < 2**31 and is_known.any()):
    return runs_lib.Curve(np.zeros(0, np.int64), np.zeros(0))
  steps, num_skipped = curve.steps[is_known], curve.values[is_known]
  epoch = epochs.values[np.searchsorted(epochs.steps, steps)]
  num_rows = run.made_with.get("num_train_rows")
  if type(num_rows) is not int or not 1 <= num_rows < 2**53:
    num_rows = max(
      num_skipped[epoch == one].max() + a_step * np.sum(epoch == one)
      for one in np.unique(epoch[np.isfinite(epoch)])
    )
  return runs_lib.Curve(steps, num_skipped / num_rows)


def clipping(runs: Runs) -> go.Figure:
  """Draws the share of tokens whose gradient the clip holds back."""
  lines = [panels.Line("update/clip_frac", "clipped tokens")]
  figure = panels.curves(runs, "Clip fraction", lines)
  values = [run.curve("update/clip_frac").values for run in runs]
  highest = max((np.nanmax(one, initial=0.0) for one in values), default=0.0)
  # All zeros would be drawn from -1 to 1.
  top = 1.1 * highest if highest > 0 else 0.01
  return figure.update_yaxes(tickformat=".2~%", range=[-0.02 * top, top])


def logprob_gap(runs: Runs) -> go.Figure:
  """Draws how far sampler and update disagree on a token."""
  lines = [
    panels.Line("rollout/logprob_gap_max", "largest"),
    panels.Line("rollout/logprob_gap_mean", "mean"),
  ]
  figure = panels.curves(runs, "Log-probability gap", lines, unit="nats")
  values = [run.curve(line.metric).values for run in runs for line in lines]
  if all((one[np.isfinite(one)] > 0).all() for one in values):
    figure.update_yaxes(type="log", exponentformat="power", dtick=1)
  return figure


def entropy(runs: Runs) -> go.Figure:
  """Draws the entropy of a token, and the KL divergences."""
  lines = [
    panels.Line("update/entropy_nats", "entropy"),
    panels.Line("update/kl_nats", "KL in a step"),
    panels.Line("update/reference_kl_nats", "KL to the reference"),
  ]
  return panels.curves(runs, "Entropy and KL", lines, unit="nats")


def gradient(runs: Runs) -> go.Figure:
  """Draws the loss and the gradient norm before clipping."""
  lines = [
    panels.Line("update/loss", "loss"),
    panels.Line("update/grad_norm", "gradient norm"),
  ]
  return panels.curves(runs, "Loss and gradient", lines)


def throughput(runs: Runs) -> go.Figure:
  """Draws the tokens that are generated a second."""
  lines = [panels.Line("rollout/tokens_per_sec", "generated tokens")]
  figure = panels.curves(runs, "Rollout speed", lines, unit="tokens a second")
  return figure.update_yaxes(rangemode="tozero")


def stage_secs(runs: Runs) -> go.Figure:
  """Draws the seconds of a step's stages, stacked, a panel for each run."""
  titles = (
    [panels.plain(run.name) for run in runs]
    if len(runs) > 1
    else ["seconds a step"]
  )
  figure = panels.empty("Seconds of a step, by stage", titles)
  shown: set[str] = set()
  for row, run in enumerate(runs, start=1):
    measured = stages.measure(run)
    for name, secs in measured.secs.items():
      figure.add_bar(
        x=measured.steps,
        y=secs,
        name=name,
        legendgroup=name,
        showlegend=name not in shown,
        marker={"color": _stage_color(name), "line": {"width": 0}},
        row=row,
        col=1,
      )
      shown.add(name)
    figure.update_yaxes(range=_secs_range(measured), row=row, col=1)
  figure.update_layout(barmode="stack", bargap=0)
  return figure


def stage_totals(runs: Runs) -> go.Figure:
  """Draws the minutes of the whole run by stage, a bar for each run."""
  figure = panels.empty("Minutes of the run, by stage", [""])
  totals = [stages.measure(run).totals for run in runs]
  for name in stages.STAGES:
    if any(name in one for one in totals):
      figure.add_bar(
        y=[panels.plain(run.name) for run in runs],
        x=[one.get(name, 0.0) / 60 for one in totals],
        name=name,
        orientation="h",
        marker={"color": _stage_color(name), "line": {"width": 0}},
      )
  figure.update_layout(
    barmode="stack", hovermode="closest", height=190 + 34 * len(runs)
  )
  figure.update_xaxes(title="minutes")
  figure.update_yaxes(title=None, autorange="reversed", automargin=True)
  return figure


class Chart(NamedTuple):
  """A chart of the page.

  Attributes:
    draw: Draws it.
    says: What is seen, and which value is good, a sentence or two.
    is_for_several: Only drawn for two or more runs.
  """

  draw: Callable[[Runs], go.Figure]
  says: str
  is_for_several: bool = False


CHARTS: Mapping[str, Chart] = {
  "reward_parts": Chart(
    reward_parts,
    "Mean over the rollouts of a step. Up is good; with the default scale the "
    "format part ends at 1 and correctness lies in -3 to 3. Format flat at 0 "
    "means that the model does not write the layout that is asked for.",
  ),
  "success": Chart(
    success,
    "Rollouts with the right format and exactly the gold calls. Up is good.",
  ),
  "heldout": Chart(
    heldout,
    "Rows that are never trained on; step 0 is before training. Up is good. "
    "Refusals are rows whose right answer calls no tool: where they fall while "
    "the others rise, the model learns to call always.",
  ),
  "heldout_by_secs": Chart(
    heldout_by_secs,
    "The same score over the time of the training steps, evaluation left out: "
    "further left at equal height is faster.",
    is_for_several=True,
  ),
  "benchmarks": Chart(benchmarks, "Scores of config.benchmark. Up is good."),
  "lengths": Chart(
    lengths,
    "Mean tokens. Completions that grow towards the limit get cut; ones that "
    "shrink to a few tokens have often stopped to think or to call.",
  ),
  "forms": Chart(
    forms,
    "Unreadable and cut completions should be near 0; completions with a call "
    "should come near the gold's share.",
  ),
  "contrast": Chart(
    contrast,
    "Groups whose rollouts all earn the same teach nothing. Low is good; near "
    "1, the prompts are too easy (all right) or too hard (all wrong).",
  ),
  "skipped": Chart(
    skipped,
    "Share of the rows that the streak filter leaves out of the epoch. "
    "It rises as prompts are solved, and is 0 with the filter off.",
  ),
  "clipping": Chart(
    clipping,
    "Tokens that moved beyond the clip range in a step. A few percent at most "
    "is good, 0 is normal with one update a batch; much more means that steps "
    "are too large.",
  ),
  "logprob_gap": Chart(
    logprob_gap,
    "What sampler and update say of the same token under the same weights. "
    "Low is good: 1e-5 to 1e-3 is rounding in float32, 0.1 is common in "
    "bfloat16. More means that they do not run the same model.",
  ),
  "entropy": Chart(
    entropy,
    "Entropy that falls to 0 early ends exploration. KL in a step is 0 with "
    "one update a batch.",
  ),
  "gradient": Chart(
    gradient,
    "The loss of GRPO hovers around 0 and says little; a gradient norm that "
    "jumps or grows steadily announces trouble.",
  ),
  "throughput": Chart(
    throughput, "Generated tokens a second of the rollout stage. Up is good."
  ),
  "stage_secs": Chart(
    stage_secs,
    "Mean seconds of a step by wall clock, of a stretch of steps where the run "
    "is long. Peaks are compilations or evaluations; the highest may be cut off.",
  ),
  "stage_totals": Chart(
    stage_totals,
    "Where the whole time went, evaluation and compilation included. Other "
    "is inside a step but in no stage.",
  ),
}


def all_charts(runs: Runs) -> dict[str, go.Figure]:
  """Draws every chart that these runs have numbers for.

  Args:
    runs: Runs, at least one.

  Returns:
    Key of CHARTS to figure, in the order of CHARTS.
  """
  figures = {}
  for key, chart in CHARTS.items():
    if chart.is_for_several and len(runs) < 2:
      continue
    figure = chart.draw(runs)
    if any(_has_numbers(trace) for trace in figure.data):
      figures[key] = figure
  return figures


def _stage_color(name: str) -> str:
  return panels.COLORS[stages.STAGES.index(name)]


def _secs_range(measured: stages.StageSecs) -> list[float] | None:
  """Cuts peaks off that would flatten all the rest."""
  if len(measured.steps) < 2 or not measured.secs:
    return None
  whole = sum(measured.secs.values())
  usual, highest = float(np.quantile(whole, 0.95)), float(np.max(whole))
  return [0.0, 1.3 * usual] if highest > 2 * usual > 0 else None


def _secs_before(run: runs_lib.Run, steps: np.ndarray) -> np.ndarray:
  """Returns the seconds of all training steps up to each given step."""
  curve = run.curve("step/secs")
  spent = np.concatenate([[0.0], np.cumsum(np.nan_to_num(curve.values))])
  return spent[np.searchsorted(curve.steps, steps, side="right")]


def _has_numbers(trace: go.Scatter | go.Bar) -> bool:
  values = trace.x if trace.orientation == "h" else trace.y
  return bool(np.isfinite(np.asarray(values, float)).any())
