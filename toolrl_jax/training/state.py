"""What training changes: parameters, optimizer state, step.

From parameters and typed optimizer arguments to a `TrainState`. The module
does not know losses, batches or devices.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

Schedule = Literal["constant", "cosine", "linear"]


class TrainState(NamedTuple):
  """State of the optimisation.

  Attributes:
    step: Optimizer steps taken, int32 scalar.
    params: Parameter pytree of the decoder.
    opt_state: State of the optimizer over `params`.
  """

  step: Int[Array, ""]
  params: Any
  opt_state: Any


def init_state(
  params: Any, optimizer: optax.GradientTransformation
) -> TrainState:
  """Returns the state before the first optimizer step."""
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def make_schedule(
  *,
  learning_rate: float,
  warmup_steps: int,
  schedule: Schedule,
  final_scale: float,
  total_steps: int,
) -> optax.Schedule:
  """Makes the learning rate as a function of the optimizer step.

      eta_t = eta (t + 1) / warmup              t < warmup
      eta_t = eta decay(t - warmup)             else

  The first step has a rate above 0, and the last has `final_scale` times the
  peak where the schedule decays.

  Args:
    learning_rate: Peak eta, above 0.
    warmup_steps: Steps of the linear rise; 0 starts at the peak.
    schedule: What follows the rise.
    final_scale: Fraction of the peak at the end, in [0, 1]; not read by
      "constant".
    total_steps: Optimizer steps of the run; the decay ends at the last.

  Returns:
    A function from the step, counted from 0, to the learning rate.

  Raises:
    ValueError: When the schedule has no such name or leaves no decay steps.
  """
  decay_steps = total_steps - 1 - warmup_steps
  if schedule != "constant" and decay_steps < 1:
    raise ValueError(
      f"the run's updates must exceed warmup_steps by 2 or more for a decay, "
      f"got {total_steps} and {warmup_steps}; lower "
      "config.optimizer.warmup_steps, or raise config.sampler.max_steps or "
      "num_epochs."
    )
  if schedule == "constant":
    after = optax.constant_schedule(learning_rate)
  elif schedule == "cosine":
    after = optax.cosine_decay_schedule(learning_rate, decay_steps, final_scale)
  elif schedule == "linear":
    after = optax.linear_schedule(
      learning_rate, learning_rate * final_scale, decay_steps
    )
  else:
    raise ValueError(
      'schedule must be "constant", "cosine" or "linear", got '
      f"{schedule!r}; set config.optimizer.schedule."
    )
  if not warmup_steps:
    return after
  rise = lambda count: learning_rate * (count + 1) / warmup_steps
  return optax.join_schedules([rise, after], [warmup_steps])


def make_optimizer(
  learning_rate: float | optax.Schedule,
  *,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: float = 0.0,
  clip_norm: float = 1.0,
) -> optax.GradientTransformation:
  """Makes AdamW behind a clip of the global gradient norm.

  See "Decoupled Weight Decay Regularization" (arXiv:1711.05101). Biases and
  norm scales are not decayed.

  Args:
    learning_rate: A rate, or a schedule from `make_schedule`.
    b1: Decay of the first moment, in [0, 1).
    b2: Decay of the second moment, in [0, 1).
    eps: Added to the root of the second moment.
    weight_decay: Decay of matrices, per unit of learning rate.
    clip_norm: Largest global norm; 0 leaves gradients as they are.

  Returns:
    The optimizer.
  """
  adamw = optax.adamw(
    learning_rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay,
    mask=_is_matrix,
  )  # fmt: skip
  if not clip_norm:
    return adamw
  return optax.chain(optax.clip_by_global_norm(clip_norm), adamw)


def _is_matrix(params: Any) -> Any:
  """Marks the leaves that weight decay shrinks."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: path[-1].key in ("kernel", "table"), params
  )
