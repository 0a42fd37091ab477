"""Schedule of the reward: ranges of its terms and the term for length.

From the training step to the ranges that the reward kernel scales to, and from
the words of a thought to the length term. It knows nothing of calls.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Scale = Literal["fixed", "equal_max", "two_stage", "dynamic"]
Length = Literal["none", "fixed", "dynamic"]
Schedule = Literal["paper", "authors"]

# Step from which "two_stage" asks for correctness (arXiv:2504.13958, 5.2).
_TWO_STAGE_STEP = 30
# Words of thinking that earn the whole length term (section 5.1).
_LENGTH_WORDS = 512.0


class Scales(NamedTuple):
  """Ranges of the two scaled terms at one step, in reward units.

  Attributes:
    format_min: Format term of a wrong format.
    format_max: Format term of a right format.
    correctness_min: Correctness term of calls that match in nothing.
    correctness_max: Correctness term of right calls.
  """

  format_min: Float[Array, ""]
  format_max: Float[Array, ""]
  correctness_min: Float[Array, ""]
  correctness_max: Float[Array, ""]


def scales_at(
  step: Int[Array, ""],
  *,
  scale: Scale,
  schedule: Schedule,
  schedule_steps: int,
) -> Scales:
  """Gives the ranges of the format and correctness terms at one step.

  With p = step / schedule_steps, at most 1, the paper's "dynamic" is format
  [-2 + p, 2 - p] and correctness [-2 - p, 2 + p]; the authors' moves by 1/150
  a step, the lower format end twice as fast, and stops at [-1, 1] and [-3, 3].
  See "ToolRL" (arXiv:2504.13958, section 5.2).

  Args:
    step: Training step, from 0.
    scale: "fixed", "equal_max", "two_stage" or "dynamic".
    schedule: Constants of "dynamic".
    schedule_steps: Steps of the run, at least 1.

  Returns:
    The ranges, float32.
  """
  now = jnp.asarray(step, jnp.float32)
  if scale == "dynamic" and schedule == "authors":
    format_min = jnp.minimum(-1.0, -2.0 + 2.0 * now / 150.0)
    format_max = jnp.maximum(1.0, 2.0 - now / 150.0)
    correctness_max = jnp.minimum(3.0, 2.0 + now / 150.0)
  elif scale == "dynamic":
    progress = _progress(now, schedule_steps)
    format_min, format_max = -2.0 + progress, 2.0 - progress
    correctness_max = 2.0 + progress
  else:
    is_late = now >= _TWO_STAGE_STEP
    is_small = (scale == "equal_max") | ((scale == "two_stage") & ~is_late)
    format_min = jnp.zeros((), jnp.float32)
    format_max = jnp.where((scale == "two_stage") & is_late, 0.5, 1.0)
    correctness_max = jnp.where(is_small, 1.0, 3.0)
  return Scales(format_min, format_max, -correctness_max, correctness_max)


def length_reward(
  num_think_words: Int[Array, ""],
  step: Int[Array, ""],
  *,
  length: Length,
  schedule: Schedule,
  schedule_steps: int,
) -> Float[Array, ""]:
  """Gives the term for long thinking.

      R_length = min(words / target, 1)

  "fixed" has target 512. "dynamic" has target 512 (1 + p) with
  p = step / schedule_steps ("paper") or 384 + 256 step / 105 ("authors"). The
  authors' code rounds the quotient to two digits. See "ToolRL"
  (arXiv:2504.13958, section 5.1).

  Args:
    num_think_words: Words inside the think tags, at least 0.
    step: Training step, from 0.
    length: "none", "fixed" or "dynamic".
    schedule: Constants of "dynamic", and the rounding.
    schedule_steps: Steps of the run, at least 1.

  Returns:
    The term, in [0, 1], float32; 0 for "none".
  """
  if length == "none":
    return jnp.zeros((), jnp.float32)
  now = jnp.asarray(step, jnp.float32)
  target = jnp.asarray(_LENGTH_WORDS)
  if length == "dynamic" and schedule == "authors":
    target = 384.0 + 256.0 * now / 105.0
  elif length == "dynamic":
    target = _LENGTH_WORDS * (1.0 + _progress(now, schedule_steps))
  quotient = num_think_words.astype(jnp.float32) / target
  if schedule == "authors":
    quotient = jnp.round(quotient, 2)
  return jnp.minimum(quotient, 1.0)


def _progress(now: Float[Array, ""], schedule_steps: int) -> Float[Array, ""]:
  """Share of the run that is done, in [0, 1]."""
  return jnp.clip(now / schedule_steps, 0.0, 1.0)
