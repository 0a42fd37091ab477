"""Losses of completion tokens: log-probabilities to sums and divisors.

Every loss is returned as a sum and the divisor that normalises it, so that
devices and mini-batches can add both and divide once: the result does not
depend on how a batch is split. The module does not know models, optimizers,
rewards or devices.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Aggregation = Literal["token_mean", "sequence_mean", "fixed"]


class LossParts(NamedTuple):
  """One loss before its normalisation, and what is logged beside it.

  Attributes:
    loss_sum: Weighted sum of the loss; the loss is `loss_sum / divisor`.
    divisor: What normalises it; does not depend on the parameters. 0 when no
      rollout takes part.
    num_tokens: Tokens that take part, unweighted: the divisor of
      `token_sums`.
    token_sums: Sums over those tokens by metric name.
    token_maxima: Maxima over those tokens by metric name, at least 0.
  """

  loss_sum: Float[Array, ""]
  divisor: Float[Array, ""]
  num_tokens: Float[Array, ""]
  token_sums: dict[str, Float[Array, ""]]
  token_maxima: dict[str, Float[Array, ""]]


def policy_loss(
  logprobs: Float[Array, "B S T"],
  old_logprobs: Float[Array, "B S T"],
  rollout_logprobs: Float[Array, "B S T"],
  reference_logprobs: Float[Array, "B S T"],
  entropy: Float[Array, "B S T"] | None,
  advantage: Float[Array, "B S"],
  completion_mask: Bool[Array, "B S T"],
  weight: Float[Array, "B S"],
  *,
  clip_low: float,
  clip_high: float,
  kl_coef: float,
  entropy_coef: float,
  aggregation: Aggregation,
  max_tokens: int,
  importance_cap: float,
) -> LossParts:
  """Computes the clipped GRPO surrogate with its optional terms.

      rho = exp(log pi - log pi_old)
      l = -c min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
          + kl_coef k3(pi, pi_ref) - entropy_coef H
      c = min(exp(log pi_old - log pi_rollout), importance_cap), detached

  See "DeepSeekMath" (arXiv:2402.03300, Eq. 3) for the surrogate and the k3
  estimator, and "DAPO" (arXiv:2503.14476, section 3.1) for the two clip
  widths. `aggregate` says what each aggregation divides by.

  Args:
    logprobs: Of the policy that is trained, in nats.
    old_logprobs: Of the policy that starts the update, in nats.
    rollout_logprobs: As recorded by the sampler, in nats.
    reference_logprobs: Of the reference policy, in nats; unused at kl_coef 0.
    entropy: Entropy of each token's distribution in nats, or None; needed
      when `entropy_coef` is not 0.
    advantage: Advantage of each rollout.
    completion_mask: True on real completion tokens.
    weight: Weight of each rollout, at least 0; 0 leaves it out.
    clip_low: The ratio is clipped below 1 - clip_low, in [0, 1].
    clip_high: The ratio is clipped above 1 + clip_high, at least 0.
    kl_coef: Weight of the KL to the reference, per nat; 0 is off.
    entropy_coef: Weight of the entropy bonus, per nat; 0 is off.
    aggregation: What the loss divides by.
    max_tokens: Longest completion, in tokens; read by "fixed" only.
    importance_cap: Largest importance weight; 0 leaves the weight out.

  Returns:
    The sums; metrics `clip_frac`, `kl_nats` (old policy to policy),
    `ratio_mean`, `logprob_gap_mean` and `logprob_gap_max` (old policy to
    sampler), and, where they are on, `entropy_nats`, `reference_kl_nats`,
    `importance_mean`.

  Raises:
    ValueError: When the entropy bonus is on and no entropy is given.
  """
  if entropy_coef and entropy is None:
    raise ValueError(
      f"entropy is needed when entropy_coef is {entropy_coef}, got None; ask "
      "token_logprobs for it."
    )
  is_token = completion_mask & (weight > 0)[..., None]
  old_logprobs = jax.lax.stop_gradient(old_logprobs)
  log_ratio = _masked(logprobs - old_logprobs, is_token)
  mismatch = _masked(old_logprobs - rollout_logprobs, is_token)
  ratio = jnp.exp(log_ratio)
  clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
  gain = advantage[..., None]
  loss = -jnp.minimum(ratio * gain, clipped * gain)
  averages = {
    "clip_frac": clipped * gain < ratio * gain,
    "kl_nats": jnp.expm1(log_ratio) - log_ratio,
    "ratio_mean": ratio,
    "logprob_gap_mean": jnp.abs(mismatch),
  }
  if importance_cap:
    importance = jnp.minimum(jnp.exp(mismatch), importance_cap)
    loss = loss * importance
    averages["importance_mean"] = importance
  if kl_coef:
    reference_kl = k3(_masked(logprobs - reference_logprobs, is_token))
    loss = loss + kl_coef * reference_kl
    averages["reference_kl_nats"] = reference_kl
  if entropy is not None:
    averages["entropy_nats"] = entropy
    if entropy_coef:
      loss = loss - entropy_coef * entropy
  loss_sum, divisor = aggregate(
    loss, completion_mask, weight, aggregation=aggregation,
    max_tokens=max_tokens,
  )  # fmt: skip
  maxima = {"logprob_gap_max": jnp.abs(mismatch)}
  return _parts(loss_sum, divisor, is_token, averages, maxima)


def supervised_loss(
  logprobs: Float[Array, "B S T"],
  entropy: Float[Array, "B S T"] | None,
  completion_mask: Bool[Array, "B S T"],
  weight: Float[Array, "B S"],
) -> LossParts:
  """Computes the mean negative log-probability of the target tokens.

      L = -sum_i w_i sum_t log p(o_it) / sum_i w_i |o_i|

  Args:
    logprobs: Of the model that is trained, in nats.
    entropy: Entropy of each token's distribution in nats, or None.
    completion_mask: True on target tokens.
    weight: Weight of each target, at least 0; 0 leaves it out.

  Returns:
    The sums; metric `entropy_nats` when the entropy is given.
  """
  is_token = completion_mask & (weight > 0)[..., None]
  loss_sum, divisor = aggregate(
    -logprobs, completion_mask, weight, aggregation="token_mean", max_tokens=1
  )
  averages = {} if entropy is None else {"entropy_nats": entropy}
  return _parts(loss_sum, divisor, is_token, averages, {})


def aggregate(
  loss: Float[Array, "B S T"],
  completion_mask: Bool[Array, "B S T"],
  weight: Float[Array, "B S"],
  *,
  aggregation: Aggregation,
  max_tokens: int,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """Sums token losses and says what the sum is to be divided by.

  With w_i the weight of rollout i, o_i its tokens and T_max `max_tokens`:

      token_mean     sum_i w_i sum_t l_it           / sum_i w_i |o_i|
      sequence_mean  sum_i w_i sum_t l_it / |o_i|   / sum_i w_i
      fixed          sum_i w_i sum_t l_it / T_max   / sum_i w_i

  All i run over rollouts with at least one token. A rollout of weight 0 is in
  neither sum: groups dropped for equal rewards get weight 0 and leave the
  divisor; kept ones have weight 1 and advantage 0 and stay in it. Stratified
  weights make the divisor an estimate of the one of the full group.

  See "DAPO" (arXiv:2503.14476, section 3.3) for the first against the second,
  "Dr. GRPO" (arXiv:2503.20783, section 3.1) for the third.

  Args:
    loss: Loss of each token; anything, even NaN, on padding.
    completion_mask: True on real completion tokens.
    weight: Weight of each rollout, at least 0.
    aggregation: Which of the three.
    max_tokens: T_max, in tokens.

  Returns:
    The sum and its divisor.

  Raises:
    ValueError: When the aggregation has no such name.
  """
  # A rollout of weight 0 may hold anything, and 0 * inf is not 0.
  is_token = completion_mask & (weight > 0)[..., None]
  length = is_token.sum(-1).astype(loss.dtype)
  per_rollout = _masked(loss, is_token).sum(-1)
  weight = jnp.where(length > 0, weight, 0.0).astype(loss.dtype)
  if aggregation == "token_mean":
    return (weight * per_rollout).sum(), (weight * length).sum()
  if aggregation == "sequence_mean":
    mean = per_rollout / jnp.maximum(length, 1.0)
    return (weight * mean).sum(), weight.sum()
  if aggregation == "fixed":
    return (weight * per_rollout).sum() / max_tokens, weight.sum()
  raise ValueError(
    'aggregation must be "token_mean", "sequence_mean" or "fixed", got '
    f"{aggregation!r}; set config.loss.aggregation."
  )


def k3(log_ratio: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
  """Estimates KL(pi || pi_ref) from tokens of pi, never below 0.

      k3 = exp(-d) - 1 + d,   d = log pi - log pi_ref

  See "DeepSeekMath" (arXiv:2402.03300, Eq. 4).

  Args:
    log_ratio: d of each token, in nats.

  Returns:
    The estimate of each token, in nats.
  """
  return jnp.expm1(-log_ratio) + log_ratio


def kl_in_reward(
  old_logprobs: Float[Array, "*rows T"],
  reference_logprobs: Float[Array, "*rows T"],
  completion_mask: Bool[Array, "*rows T"],
) -> Float[Array, "*rows"]:
  """Sums the k1 estimate over each rollout, for a penalty in the reward.

      KL_i = sum_t (log pi_old - log pi_ref);   r_i := r_i - kl_coef KL_i

  The released ToolRL code (arXiv:2504.13958) subtracts it with 0.001.

  Args:
    old_logprobs: Of the policy that starts the update, in nats.
    reference_logprobs: Of the reference policy, in nats.
    completion_mask: True on real completion tokens.

  Returns:
    Sum of each rollout, in nats; may be negative.
  """
  return _masked(old_logprobs - reference_logprobs, completion_mask).sum(-1)


def _masked(
  x: Float[Array, "*rows T"], is_token: Bool[Array, "*rows T"]
) -> Float[Array, "*rows T"]:
  """Puts 0 on padding, whatever stands there."""
  return jnp.where(is_token, x, 0.0)


def _parts(
  loss_sum: Float[Array, ""],
  divisor: Float[Array, ""],
  is_token: Bool[Array, "B S T"],
  averages: dict[str, Array],
  maxima: dict[str, Array],
) -> LossParts:
  """Collects the sums; metrics carry no gradient."""
  token_sum = lambda x: jnp.where(is_token, x, 0).sum(dtype=loss_sum.dtype)
  sums = {name: token_sum(x) for name, x in averages.items()}
  peaks = {name: jnp.where(is_token, x, 0).max() for name, x in maxima.items()}
  return LossParts(
    loss_sum=loss_sum,
    divisor=jax.lax.stop_gradient(divisor),
    num_tokens=is_token.sum(dtype=loss_sum.dtype),
    token_sums=jax.lax.stop_gradient(sums),
    token_maxima=jax.lax.stop_gradient(peaks),
  )
