"""One update step as plain functions: a batch of groups to a new state.

A group's prompt is computed once ("shared"); "repeated" runs the same code
with the prompt once a rollout, the baseline of comparisons. The module does
not know text, rewards, placement or how completions were sampled.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from toolrl_jax.kernels import logprobs as logprobs_kernel
from toolrl_jax.kernels import loss as loss_kernel
from toolrl_jax.model import decoder
from toolrl_jax.model.presets import DecoderConfig
from toolrl_jax.training import state as state_lib
from toolrl_jax.types import UpdateBatch

Objective = Literal["grpo", "sft"]


class UpdateOptions(NamedTuple):
  """Static choices of an update; hashable.

  Attributes:
    objective: "grpo" is the policy loss, "sft" the mean negative
      log-probability of the completion tokens.
    layout: "shared" computes a group's prompt once, "repeated" once a rollout.
    temperature: The rollout's sampling temperature, above 0.
    chunk_tokens: Tokens a device holds logits of at one time.
    remat: What the backward pass of the decoder computes again.
    compute_dtype: Dtype of the matrix products.
    has_entropy: Whether the entropy is computed and logged.
    minibatches: Updates a pass over a batch, at least 1.
    epochs_per_batch: Passes over a batch, at least 1.
    clip_low: See `kernels.loss.policy_loss`, as all that follow; "grpo" only.
    clip_high: Same.
    kl_coef: Same; 0 also when the KL stands in the reward.
    entropy_coef: Same.
    aggregation: Same.
    max_tokens: Same.
    importance_correction: Same, `importance_cap`.
  """

  objective: Objective = "grpo"
  layout: Literal["shared", "repeated"] = "shared"
  temperature: float = 1.0
  chunk_tokens: int = 4096
  remat: decoder.Remat = "layer"
  compute_dtype: Any = "float32"
  has_entropy: bool = True
  minibatches: int = 1
  epochs_per_batch: int = 1
  clip_low: float = 0.2
  clip_high: float = 0.2
  kl_coef: float = 0.0
  entropy_coef: float = 0.0
  aggregation: loss_kernel.Aggregation = "token_mean"
  max_tokens: int = 1024
  importance_correction: float = 0.0

  @property
  def num_updates(self) -> int:
    """Optimizer steps a batch."""
    return self.minibatches * self.epochs_per_batch

  @property
  def is_own_old(self) -> bool:
    """Whether the update's own log-probabilities serve as the old ones.

    Exact when a batch makes a single update, and one forward pass fewer.
    """
    return self.num_updates == 1


def check_options(options: UpdateOptions) -> None:
  """Checks what types do not say, before anything compiles.

  Raises:
    ValueError: When a choice is unknown or out of range.
  """
  if options.layout not in ("shared", "repeated"):
    raise ValueError(
      f'layout must be "shared" or "repeated", got {options.layout!r}; set '
      "config.loss.layout."
    )
  if options.objective not in ("grpo", "sft"):
    raise ValueError(
      f'objective must be "grpo" or "sft", got {options.objective!r}; set '
      "config.algorithm."
    )
  if options.num_updates < 1 or options.minibatches < 1:
    raise ValueError(
      "minibatches and epochs_per_batch must be at least 1, got "
      f"{options.minibatches} and {options.epochs_per_batch}; set config.loss."
    )
  if options.temperature <= 0:
    raise ValueError(
      f"temperature must be above 0 to train, got {options.temperature}; set "
      "config.rollout.temperature."
    )


def score_batch(
  params: Any,
  batch: UpdateBatch,
  *,
  config: DecoderConfig,
  options: UpdateOptions,
  num_shards: int = 1,
) -> tuple[Float[Array, "B S T"], Float[Array, "B S T"] | None]:
  """Scores every completion token of a batch.

  Args:
    params: Parameter pytree.
    batch: Groups to score.
    config: Shape of the decoder.
    options: Layout, temperature, chunk, remat, dtype and entropy are read.
    num_shards: Devices that the batch axis is split over.

  Returns:
    Log-probabilities and, when `options.has_entropy`, entropies, in nats.
  """
  arrays = jax.tree.map(jnp.asarray, batch)
  prompt_ids, prompt_length = arrays.prompt_ids, arrays.prompt_length
  completion_ids = arrays.completion_ids
  num_groups, num_kept, size = completion_ids.shape
  if options.layout == "repeated":
    prompt_ids = jnp.repeat(prompt_ids, num_kept, axis=0)
    prompt_length = jnp.repeat(prompt_length, num_kept, axis=0)
    completion_ids = completion_ids.reshape(-1, 1, size)
  hidden = decoder.group_hidden(
    params,
    prompt_ids,
    prompt_length,
    completion_ids,
    config=config,
    compute_dtype=options.compute_dtype,
    remat=options.remat,
  )
  return logprobs_kernel.token_logprobs(
    hidden.reshape(num_groups, num_kept, size, -1),
    decoder.head_table(params),
    arrays.completion_ids,
    temperature=options.temperature,
    chunk_tokens=options.chunk_tokens * num_shards,
    has_entropy=options.has_entropy or options.entropy_coef != 0.0,
  )


def batch_loss(
  logprobs: Float[Array, "B S T"],
  entropy: Float[Array, "B S T"] | None,
  batch: UpdateBatch,
  options: UpdateOptions,
) -> loss_kernel.LossParts:
  """Applies the objective's kernel to a batch."""
  arrays = jax.tree.map(jnp.asarray, batch)
  if options.objective == "sft":
    return loss_kernel.supervised_loss(
      logprobs, entropy, arrays.completion_mask, arrays.weight
    )
  is_own = options.is_own_old
  return loss_kernel.policy_loss(
    logprobs,
    jax.lax.stop_gradient(logprobs) if is_own else arrays.old_logprobs,
    arrays.rollout_logprobs,
    arrays.reference_logprobs,
    entropy,
    arrays.advantage,
    arrays.completion_mask,
    arrays.weight,
    clip_low=options.clip_low,
    clip_high=options.clip_high,
    kl_coef=options.kl_coef,
    entropy_coef=options.entropy_coef,
    aggregation=options.aggregation,
    max_tokens=options.max_tokens,
    importance_cap=options.importance_correction,
  )


def loss_and_grads(
  params: Any,
  batch: UpdateBatch,
  *,
  config: DecoderConfig,
  options: UpdateOptions,
  num_shards: int = 1,
  axis_name: str | None = None,
) -> tuple[Float[Array, ""], Any, loss_kernel.LossParts]:
  """Returns the normalised loss, its gradients and the summed parts.

  Sums and divisors are added over all devices before the one division, so
  the result does not depend on how groups are spread.

  Args:
    params: Parameter pytree.
    batch: Groups of this device ("pmap") or of all of them.
    config: Shape of the decoder.
    options: Static choices.
    num_shards: Devices that the batch axis is split over inside this call.
    axis_name: Axis of the surrounding `pmap`, or None.

  Returns:
    Loss, gradients like `params`, and the parts; 0 and zeros when no rollout
    takes part.
  """

  def summed(params):
    logprobs, entropy = score_batch(
      params, batch, config=config, options=options, num_shards=num_shards
    )
    parts = batch_loss(logprobs, entropy, batch, options)
    return parts.loss_sum, parts

  grads, parts = jax.grad(summed, has_aux=True)(params)
  if axis_name is not None:
    grads = jax.lax.psum(grads, axis_name)
    maxima = jax.lax.pmax(parts.token_maxima, axis_name)
    parts = jax.lax.psum(parts, axis_name)._replace(token_maxima=maxima)
  divisor = jnp.where(parts.divisor > 0, parts.divisor, 1.0)
  grads = jax.tree.map(lambda g: g / divisor.astype(g.dtype), grads)
  return parts.loss_sum / divisor, grads, parts


def take_step(
  state: state_lib.TrainState,
  batch: UpdateBatch,
  *,
  optimizer: optax.GradientTransformation,
  **choices: Any,
) -> tuple[state_lib.TrainState, dict[str, Float[Array, ""]]]:
  """Takes one optimizer step, unless loss, gradient or change are not finite.

  Then, and when no rollout of the batch takes part, the state is returned as
  it came, its step included.

  Args:
    state: State before the step.
    batch: Groups of this device ("pmap") or of all of them.
    optimizer: The optimizer of `state.opt_state`.
    **choices: Keyword arguments of `loss_and_grads`.

  Returns:
    The state after the step, and metrics as scalars.
  """
  loss, grads, parts = loss_and_grads(state.params, batch, **choices)
  grad_norm = optax.tree.norm(grads)
  changes, opt_state = optimizer.update(grads, state.opt_state, state.params)
  # The changes too: an optimizer can turn finite gradients into NaN.
  is_finite = (
    jnp.isfinite(loss)
    & jnp.isfinite(grad_norm)
    & jnp.isfinite(optax.tree.norm(changes))
  )
  stepped = state_lib.TrainState(
    state.step + 1, optax.apply_updates(state.params, changes), opt_state
  )
  is_taken = is_finite & (parts.divisor > 0)
  state = jax.tree.map(
    lambda new, old: jnp.where(is_taken, new, old), stepped, state
  )
  num_tokens = jnp.maximum(parts.num_tokens, 1.0)
  means = {name: x / num_tokens for name, x in parts.token_sums.items()}
  metrics = {
    "update/loss": loss,
    "update/grad_norm": grad_norm,
    "update/is_finite": is_finite,
    "update/loss_tokens": parts.num_tokens,
  }
  for name, value in (means | parts.token_maxima).items():
    # The gap is a property of the sampler, measured here for free.
    stage = "rollout" if name.startswith("logprob_gap") else "update"
    metrics[f"{stage}/{name}"] = value
  return state, metrics


def masked_logprobs(
  params: Any,
  batch: UpdateBatch,
  *,
  config: DecoderConfig,
  options: UpdateOptions,
  num_shards: int = 1,
) -> Float[Array, "B S T"]:
  """Scores a batch as `score_batch`, without entropy; 0 on padding."""
  logprobs, _ = score_batch(
    params,
    batch,
    config=config,
    options=options._replace(has_entropy=False, entropy_coef=0.0),
    num_shards=num_shards,
  )
  return jnp.where(batch.completion_mask, logprobs, 0.0)
