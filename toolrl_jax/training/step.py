"""One update step as plain functions: a batch of groups to a new state.

A group's prompt is computed once ("shared"); "repeated" runs the same code
with the prompt once a rollout, the baseline of comparisons. The module does
not know text, rewards, placement or how completions were sampled.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from toolrl_jax.kernels import logprobs as logprobs_kernel
from toolrl_jax.kernels import loss as loss_kernel
from toolrl_jax.model import attention, decoder
from toolrl_jax.model.presets import DecoderConfig
from toolrl_jax.training import state as state_lib
from toolrl_jax.training.blocks import Block
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
    is_packed: Whether tokens of unequal groups stand one after another.
    micro_groups: Most groups that a device computes at one time; 0 is all.
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
  is_packed: bool = True
  micro_groups: int = 0
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

  @property
  def skips_flat_groups(self) -> bool:
    """Whether a group without advantage has no gradient at all."""
    has_terms = self.kl_coef != 0.0 or self.entropy_coef != 0.0
    return self.objective == "grpo" and not has_terms


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


class Sums(NamedTuple):
  """What blocks add up to before the one division.

  Attributes:
    grads: Gradients of the summed loss, like the parameters.
    parts: The loss and what is logged.
  """

  grads: Any
  parts: loss_kernel.LossParts


def score_block(
  params: Any,
  block: Block,
  *,
  config: DecoderConfig,
  options: UpdateOptions,
  attend: decoder.Attend = attention.shared_prompt,
  place: decoder.Place = lambda x: x,
) -> tuple[Float[Array, "B S T"], Float[Array, "B S T"] | None]:
  """Scores every completion token of a block.

  Args:
    params: Parameter pytree.
    block: R blocks of g groups; B = R * g.
    config: Shape of the decoder.
    options: Layout, temperature, chunk, remat, dtype and entropy are read.
    attend: Attention over the places of whole groups.
    place: Keeps an array that leads with groups where they lie.

  Returns:
    Log-probabilities and, when `options.has_entropy`, entropies, in nats.
  """
  groups: Any = flat_groups(block)
  num_blocks = block.idle_divisor.shape[0]
  prompt_ids, prompt_length = groups.prompt_ids, groups.prompt_length
  completion_ids = groups.completion_ids
  shape = completion_ids.shape
  _, kept, size = shape
  if options.layout == "repeated":
    prompt_ids = jnp.repeat(prompt_ids, kept, axis=0)
    prompt_length = jnp.repeat(prompt_length, kept, axis=0)
    completion_ids = completion_ids.reshape(-1, 1, size)
  choices: dict[str, Any] = {
    "config": config,
    "compute_dtype": options.compute_dtype,
    "remat": options.remat,
    "attend": attend,
    "place": place,
  }
  if block.packing is None:
    hidden = decoder.group_hidden(
      params, prompt_ids, prompt_length, completion_ids, **choices
    )
    scored_ids = completion_ids
  else:
    packing = jax.tree.map(jnp.asarray, block.packing)
    hidden = decoder.packed_hidden(
      params, packing, prompt_length, prompt_size=prompt_ids.shape[1],
      num_kept=completion_ids.shape[1], **choices,
    )[:, None]  # fmt: skip
    scored_ids = packing.scored_ids[:, None]
  scored = logprobs_kernel.token_logprobs(
    hidden,
    decoder.head_table(params),
    scored_ids,
    temperature=options.temperature,
    chunk_tokens=options.chunk_tokens * num_blocks,
    has_entropy=options.has_entropy or options.entropy_coef != 0.0,
    place=place,
  )
  if block.packing is None:
    return jax.tree.map(lambda x: x.reshape(shape), scored)
  unpack = jax.vmap(lambda x, at: x.at[at].get(mode="fill", fill_value=0))
  return jax.tree.map(
    lambda x: unpack(x[:, 0], packing.to_scores).reshape(shape), scored
  )


def flat_groups(block: Block) -> UpdateBatch:
  """Joins the axes of blocks and groups: leaves [B, ...]."""
  flat = lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:])
  return UpdateBatch(*(flat(x) for x in block.groups))


def block_loss(
  logprobs: Float[Array, "B S T"],
  entropy: Float[Array, "B S T"] | None,
  block: Block,
  options: UpdateOptions,
) -> loss_kernel.LossParts:
  """Applies the objective's kernel to a block."""
  groups: Any = flat_groups(block)
  if options.objective == "sft":
    parts = loss_kernel.supervised_loss(
      logprobs, entropy, groups.completion_mask, groups.weight
    )
  else:
    is_own = options.is_own_old
    parts = loss_kernel.policy_loss(
      logprobs,
      jax.lax.stop_gradient(logprobs) if is_own else groups.old_logprobs,
      groups.rollout_logprobs,
      groups.reference_logprobs,
      entropy,
      groups.advantage,
      groups.completion_mask,
      groups.weight,
      clip_low=options.clip_low,
      clip_high=options.clip_high,
      kl_coef=options.kl_coef,
      entropy_coef=options.entropy_coef,
      aggregation=options.aggregation,
      max_tokens=options.max_tokens,
      importance_cap=options.importance_correction,
    )
  idle = block.idle_divisor.sum().astype(parts.divisor.dtype)
  return parts._replace(divisor=parts.divisor + idle)


def block_sums(
  params: Any,
  block: Block,
  *,
  config: DecoderConfig,
  options: UpdateOptions,
  attend: decoder.Attend = attention.shared_prompt,
  place: decoder.Place = lambda x: x,
) -> Sums:
  """Returns the gradients of one block's summed loss, and its parts.

  Args:
    params: Parameter pytree.
    block: Groups of this device ("pmap") or of all of them.
    config: Shape of the decoder.
    options: Static choices.
    attend: Attention over the places of whole groups.
    place: Keeps an array that leads with groups where they lie.

  Returns:
    The sums.
  """

  def summed(params):
    logprobs, entropy = score_block(
      params, block, config=config, options=options, attend=attend, place=place
    )
    parts = block_loss(logprobs, entropy, block, options)
    return parts.loss_sum, parts

  return Sums(*jax.grad(summed, has_aux=True)(params))


def no_sums(params: Any, block: Block, **choices: Any) -> Sums:
  """Returns the sums of no block, in the shapes of those of `block`."""
  shapes = jax.eval_shape(
    functools.partial(block_sums, **choices), params, block
  )
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def add_block(params: Any, sums: Sums, block: Block, **choices: Any) -> Sums:
  """Adds a block's sums to those of the blocks before it."""
  more = block_sums(params, block, **choices)
  added = jax.tree.map(jnp.add, sums, more)
  maxima = jax.tree.map(
    jnp.maximum, sums.parts.token_maxima, more.parts.token_maxima
  )
  return added._replace(parts=added.parts._replace(token_maxima=maxima))


def loss_and_grads(
  sums: Sums, *, axis_name: str | None = None
) -> tuple[Float[Array, ""], Any, loss_kernel.LossParts]:
  """Returns the normalised loss, its gradients and the summed parts.

  Sums and divisors are added over all blocks and devices before the one
  division, so the result does not depend on how groups are spread.

  Args:
    sums: Sums of all blocks of this device ("pmap") or of all devices.
    axis_name: Axis of the surrounding `pmap`, or None.

  Returns:
    Loss, gradients like the parameters, and the parts; 0 and zeros when no
    rollout takes part.
  """
  grads, parts = sums
  if axis_name is not None:
    grads = jax.lax.psum(grads, axis_name)
    maxima = jax.lax.pmax(parts.token_maxima, axis_name)
    parts = jax.lax.psum(parts, axis_name)._replace(token_maxima=maxima)
  divisor = jnp.where(parts.divisor > 0, parts.divisor, 1.0)
  grads = jax.tree.map(lambda g: g / divisor.astype(g.dtype), grads)
  return parts.loss_sum / divisor, grads, parts


def take_step(
  state: state_lib.TrainState,
  block: Block,
  *,
  optimizer: optax.GradientTransformation,
  axis_name: str | None = None,
  **choices: Any,
) -> tuple[state_lib.TrainState, dict[str, Float[Array, ""]]]:
  """Takes one optimizer step on a single block; see `apply_sums`.

  Args:
    state: State before the step.
    block: Groups of this device ("pmap") or of all of them.
    optimizer: The optimizer of `state.opt_state`.
    axis_name: Axis of the surrounding `pmap`, or None.
    **choices: Keyword arguments of `block_sums`.

  Returns:
    The state after the step, and metrics as scalars.
  """
  sums = block_sums(state.params, block, **choices)
  return apply_sums(state, sums, optimizer=optimizer, axis_name=axis_name)


def apply_sums(
  state: state_lib.TrainState,
  sums: Sums,
  *,
  optimizer: optax.GradientTransformation,
  axis_name: str | None = None,
) -> tuple[state_lib.TrainState, dict[str, Float[Array, ""]]]:
  """Takes one optimizer step, unless loss, gradient or change are not finite.

  Then, and when no rollout of the batch takes part, the state is returned as
  it came, its step included.

  Args:
    state: State before the step.
    sums: Sums of all blocks of this device ("pmap") or of all devices.
    optimizer: The optimizer of `state.opt_state`.
    axis_name: Axis of the surrounding `pmap`, or None.

  Returns:
    The state after the step, and metrics as scalars.
  """
  loss, grads, parts = loss_and_grads(sums, axis_name=axis_name)
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
  block: Block,
  *,
  config: DecoderConfig,
  options: UpdateOptions,
  attend: decoder.Attend = attention.shared_prompt,
  place: decoder.Place = lambda x: x,
) -> Float[Array, "B S T"]:
  """Scores a block as `score_block`, without entropy; 0 on padding."""
  logprobs, _ = score_block(
    params,
    block,
    config=config,
    options=options._replace(has_entropy=False, entropy_coef=0.0),
    attend=attend,
    place=place,
  )
  return jnp.where(flat_groups(block).completion_mask, logprobs, 0.0)
