"""A run in one line of numbers: what it trained, how far, and what came of it.

From a run to the cells of the page's first table. It judges nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from toolrl_jax.reporting import runs, stages

# Steps whose mean stands for the beginning and for the end of a run.
_ENDS = 5


class Overview(NamedTuple):
  """The first table's cells of one run, as text; "" where it has none.

  Attributes:
    name: Name of the run.
    model: What was trained or scored.
    algorithm: "grpo" or "sft"; "evaluation" for a run of toolrl-evaluate.
    steps: Steps, and passes over the rows.
    time: Time by wall clock, evaluation included.
    reward: Mean reward of the first and the last steps.
    heldout_greedy: Right held-out rows before and after, greedy.
    heldout_sampled: The same, sampled at the rollout temperature.
  """

  name: str
  model: str
  algorithm: str
  steps: str
  time: str
  reward: str
  heldout_greedy: str
  heldout_sampled: str


def of(run: runs.Run) -> Overview:
  """Sums a run up.

  Args:
    run: The run.

  Returns:
    Its cells.
  """
  is_trained = bool(run.curves)
  model = run.setting("model.path") or run.setting("model.preset")
  if not is_trained and run.scores:
    model = run.scores.get("model") or model
  secs = sum(stages.measure(run).totals.values(), 0.0)
  return Overview(
    name=run.name,
    model=str(model or ""),
    algorithm=str(run.setting("algorithm", ""))
    if is_trained or not run.scores
    else "evaluation",
    steps=_steps(run),
    time=_time(secs),
    reward=_first_to_last(run.curve("reward/total").values, "{:.2f}", _ENDS),
    heldout_greedy=_first_to_last(
      run.curve("heldout/exact_greedy_frac").values, "{:.1%}", 1
    ),
    heldout_sampled=_first_to_last(
      run.curve("heldout/exact_sampled_frac").values, "{:.1%}", 1
    ),
  )


def made_with(run: runs.Run) -> str:
  """Says with what a run was made, as run.json has it.

  Args:
    run: The run.

  Returns:
    A sentence; empty where the folder has no run.json.
  """
  about = run.made_with
  parts = [
    f"{about[name]:,} {what}"
    for name, what in (
      ("num_train_rows", "rows trained on"),
      ("num_heldout_rows", "held out"),
      ("num_params", "parameters"),
      ("num_devices", "devices"),
    )
    if type(about.get(name)) is int
  ]
  texts = [about.get("device_kind")]
  versions = about.get("versions")
  if isinstance(versions, Mapping):
    texts += [f"{name} {version}" for name, version in versions.items()]
  parts += [text for text in texts if isinstance(text, str)]
  return ", ".join(parts) + "." if parts else ""


def _steps(run: runs.Run) -> str:
  if not run.curves:
    return ""
  epochs = run.curve("sampler/epoch").values
  epochs = epochs[np.isfinite(epochs)]
  if not epochs.size:
    return str(run.last_step)
  num_epochs = int(epochs[-1]) + 1
  return f"{run.last_step} in {num_epochs} epoch{'s'[: num_epochs > 1]}"


def _time(secs: float) -> str:
  if secs <= 0:
    return ""
  minutes = secs / 60
  return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _first_to_last(
  values: Float[np.ndarray, " N"], form: str, size: int
) -> str:
  finite = values[np.isfinite(values)]
  if not finite.size:
    return ""
  if finite.size == 1:
    return form.format(finite[0])
  size = min(size, finite.size // 2)
  ends = finite[:size].mean(), finite[-size:].mean()
  return " → ".join(form.format(end) for end in ends)
