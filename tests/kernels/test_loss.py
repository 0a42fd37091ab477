import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.kernels import loss

DEFAULTS = {
  "clip_low": 0.2,
  "clip_high": 0.28,
  "kl_coef": 0.0,
  "entropy_coef": 0.0,
  "aggregation": "token_mean",
  "max_tokens": 10,
  "importance_cap": 0.0,
}


def _random(batch=2, kept=3, size=4):
  rng = np.random.default_rng(1)
  draw = lambda scale: jnp.asarray(
    -2 + scale * rng.normal(size=(batch, kept, size)), jnp.float32
  )
  lengths = rng.integers(1, size + 1, (batch, kept))
  return {
    "logprobs": draw(0.3),
    "old_logprobs": draw(0.3),
    "rollout_logprobs": draw(0.3),
    "reference_logprobs": draw(0.3),
    "entropy": jnp.asarray(rng.random((batch, kept, size)), jnp.float32),
    "advantage": jnp.asarray(rng.normal(size=(batch, kept)), jnp.float32),
    "completion_mask": jnp.asarray(np.arange(size) < lengths[..., None]),
    "weight": jnp.asarray([[1.0, 0.0, 2.0], [3.0, 1.0, 0.5]], jnp.float32),
  }


def _by_hand(arrays, options):
  """The formulas, one token at a time in float64."""
  x = {k: np.asarray(v, np.float64) for k, v in arrays.items()}
  numerator = divisor = tokens = clipped = 0.0
  for i in np.ndindex(x["weight"].shape):
    weight, length = x["weight"][i], x["completion_mask"][i].sum()
    total = 0.0
    for t in range(int(length)):
      at = (*i, t)
      rho = np.exp(x["logprobs"][at] - x["old_logprobs"][at])
      low, high = 1 - options["clip_low"], 1 + options["clip_high"]
      gain = x["advantage"][i]
      inside = min(max(rho, low), high)
      token = -min(rho * gain, inside * gain)
      if weight > 0:
        tokens += 1
        clipped += (gain > 0 and rho > high) or (gain < 0 and rho < low)
      if options["importance_cap"]:
        gap = x["old_logprobs"][at] - x["rollout_logprobs"][at]
        token *= min(np.exp(gap), options["importance_cap"])
      d = x["reference_logprobs"][at] - x["logprobs"][at]
      token += options["kl_coef"] * (np.exp(d) - d - 1)
      token -= options["entropy_coef"] * x["entropy"][at]
      total += token
    if options["aggregation"] == "token_mean":
      numerator, divisor = numerator + weight * total, divisor + weight * length
    elif options["aggregation"] == "sequence_mean":
      numerator, divisor = numerator + weight * total / length, divisor + weight
    else:
      numerator += weight * total / options["max_tokens"]
      divisor += weight
  return numerator, divisor, clipped / tokens


@pytest.mark.parametrize(
  "aggregation", ["token_mean", "sequence_mean", "fixed"]
)
@pytest.mark.parametrize(
  "terms",
  [{}, {"kl_coef": 0.3, "entropy_coef": 0.2, "importance_cap": 1.1}],
)
def test_policy_loss_equals_the_formulas(aggregation, terms):
  arrays = _random()
  options = DEFAULTS | terms | {"aggregation": aggregation}
  parts = loss.policy_loss(**arrays, **options)
  numerator, divisor, clip_frac = _by_hand(arrays, options)
  np.testing.assert_allclose(parts.loss_sum, numerator, rtol=1e-5)
  np.testing.assert_allclose(parts.divisor, divisor, rtol=1e-6)
  np.testing.assert_allclose(
    parts.token_sums["clip_frac"] / parts.num_tokens, clip_frac, rtol=1e-6
  )


def _one(ratio, advantage, **options):
  """Loss of a single token with pi_old = 1/2."""
  shape = (1, 1, 1)
  old = jnp.full(shape, np.log(0.5), jnp.float32)
  return loss.policy_loss(
    logprobs=old + np.float32(np.log(ratio)),
    old_logprobs=old,
    rollout_logprobs=old,
    reference_logprobs=old,
    entropy=None,
    advantage=jnp.full((1, 1), advantage, jnp.float32),
    completion_mask=jnp.ones(shape, bool),
    weight=jnp.ones((1, 1)),
    **(DEFAULTS | options),
  )


@pytest.mark.parametrize(
  ("ratio", "advantage", "expected", "is_clipped"),
  [
    (1.5, 2.0, -2.56, 1),  # 1.28 x 2: the upper clip is the wider one
    (1.25, 2.0, -2.5, 0),
    (0.5, 2.0, -1.0, 0),  # below the range, but the minimum is the ratio's
    (0.5, -2.0, 1.6, 1),  # 0.8 x 2
    (1.5, -2.0, 3.0, 0),
  ],
)
def test_policy_loss_clip_hand_values(ratio, advantage, expected, is_clipped):
  parts = _one(ratio, advantage)
  np.testing.assert_allclose(parts.loss_sum, expected, rtol=1e-6)
  assert parts.token_sums["clip_frac"] == is_clipped


def test_policy_loss_clipped_token_has_no_gradient():
  arrays = _random()
  arrays["logprobs"] = arrays["old_logprobs"] + 1.0
  arrays["advantage"] = jnp.ones((2, 3))
  slope = jax.grad(
    lambda x: loss.policy_loss(**(arrays | {"logprobs": x}), **DEFAULTS)[0]
  )(arrays["logprobs"])
  assert np.all(np.asarray(slope) == 0)


def test_policy_loss_kl_and_importance_hand_values():
  shape = (1, 1, 1)
  filled = lambda x: jnp.full(shape, np.log(x), jnp.float32)
  parts = loss.policy_loss(
    logprobs=filled(0.5),
    old_logprobs=filled(0.5),
    rollout_logprobs=filled(0.125),
    reference_logprobs=filled(0.25),
    entropy=jnp.full(shape, 0.5),
    advantage=jnp.ones((1, 1)),
    completion_mask=jnp.ones(shape, bool),
    weight=jnp.ones((1, 1)),
    **(DEFAULTS | {"kl_coef": 1.0, "entropy_coef": 2.0, "importance_cap": 3.0}),
  )
  # k3 at ref/pi = 1/2: 1/2 - 1 + ln 2; importance min(4, 3); entropy 2 x 0.5.
  k3 = 0.5 - 1 + np.log(2)
  np.testing.assert_allclose(parts.loss_sum, -3 + k3 - 1.0, rtol=1e-6)
  np.testing.assert_allclose(
    parts.token_sums["reference_kl_nats"], k3, rtol=1e-6
  )
  np.testing.assert_allclose(
    parts.token_maxima["logprob_gap_max"], np.log(4), rtol=1e-6
  )
  np.testing.assert_allclose(parts.token_sums["importance_mean"], 3.0)
  np.testing.assert_allclose(parts.token_sums["entropy_nats"], 0.5)


def test_policy_loss_importance_is_detached():
  arrays = _random()
  options = DEFAULTS | {"importance_cap": 2.0}
  slope = jax.grad(
    lambda x: loss.policy_loss(**(arrays | {"old_logprobs": x}), **options)[0]
  )(arrays["old_logprobs"])
  assert np.all(np.asarray(slope) == 0)


def test_policy_loss_padding_and_left_out_rollouts_may_hold_anything():
  clean = _random()
  options = DEFAULTS | {
    "kl_coef": 0.1,
    "entropy_coef": 0.1,
    "importance_cap": 2.0,
  }
  is_read = clean["completion_mask"] & (clean["weight"] > 0)[..., None]
  dirty = dict(clean)
  for name, junk in (
    ("logprobs", 500.0),
    ("old_logprobs", -500.0),
    ("rollout_logprobs", np.nan),
    ("reference_logprobs", np.inf),
    ("entropy", np.nan),
  ):
    dirty[name] = jnp.where(is_read, clean[name], junk)
  dirty["advantage"] = jnp.where(clean["weight"] > 0, clean["advantage"], 1e9)

  total = lambda arrays: jax.value_and_grad(
    lambda x: loss.policy_loss(**(arrays | {"logprobs": x}), **options)[0]
  )(arrays["logprobs"])
  (value, slope), (dirty_value, dirty_slope) = total(clean), total(dirty)
  assert value == dirty_value
  np.testing.assert_array_equal(slope, dirty_slope)
  assert np.all(np.asarray(slope)[~np.asarray(is_read)] == 0)


@pytest.mark.parametrize(
  "aggregation", ["token_mean", "sequence_mean", "fixed"]
)
def test_policy_loss_parts_of_halves_add_up(aggregation):
  arrays = _random()
  options = DEFAULTS | {"aggregation": aggregation, "kl_coef": 0.1}
  whole = loss.policy_loss(**arrays, **options)
  halves = [
    loss.policy_loss(**{k: v[i : i + 1] for k, v in arrays.items()}, **options)
    for i in range(2)
  ]
  np.testing.assert_allclose(
    whole.loss_sum, halves[0].loss_sum + halves[1].loss_sum, rtol=1e-6
  )
  np.testing.assert_allclose(
    whole.divisor, halves[0].divisor + halves[1].divisor, rtol=1e-6
  )
  assert whole.num_tokens == halves[0].num_tokens + halves[1].num_tokens


def test_aggregate_hand_values_and_weight_zero_leaves_the_divisor():
  token_loss = jnp.array([[[1.0, 2.0], [3.0, 9.0], [5.0, 5.0]]])
  mask = jnp.array([[[True, True], [True, False], [True, True]]])
  weight = jnp.array([[1.0, 2.0, 0.0]])
  run = lambda name: [
    float(x)
    for x in loss.aggregate(
      token_loss, mask, weight, aggregation=name, max_tokens=4
    )
  ]
  # Rollout sums 3 (2 tokens) and 3 (1 token), weights 1 and 2.
  assert run("token_mean") == [3 + 2 * 3, 2 + 2 * 1]
  assert run("sequence_mean") == [1.5 + 2 * 3, 3]
  assert run("fixed") == [(3 + 2 * 3) / 4, 3]


def test_aggregate_nothing_taking_part_gives_zeros():
  got = loss.aggregate(
    jnp.full((1, 2, 2), jnp.nan),
    jnp.array([[[True, True], [False, False]]]),
    jnp.array([[0.0, 1.0]]),
    aggregation="sequence_mean",
    max_tokens=4,
  )
  assert [float(x) for x in got] == [0.0, 0.0]


def test_kl_in_reward_hand_value():
  got = loss.kl_in_reward(
    jnp.array([[-1.0, -2.0, 0.0]]),
    jnp.array([[-1.5, -1.0, 7.0]]),
    jnp.array([[True, True, False]]),
  )
  np.testing.assert_allclose(got, [-0.5])  # 0.5 - 1


def test_k3_is_zero_at_equality_and_positive_elsewhere():
  got = np.asarray(loss.k3(jnp.array([-0.3, 0.0, 0.3])))
  assert got[1] == 0 and got[0] > 0 and got[2] > 0


def test_supervised_loss_hand_value():
  parts = loss.supervised_loss(
    jnp.array([[[-1.0, -3.0]], [[-5.0, jnp.nan]], [[-7.0, -7.0]]]),
    None,
    jnp.array([[[True, True]], [[True, False]], [[True, True]]]),
    jnp.array([[1.0], [1.0], [0.0]]),
  )
  assert (float(parts.loss_sum), float(parts.divisor)) == (9.0, 3.0)
  assert parts.num_tokens == 3


def test_policy_loss_rejects_bad_arguments():
  arrays = _random()
  with pytest.raises(ValueError, match="entropy is needed"):
    loss.policy_loss(
      **(arrays | {"entropy": None}), **(DEFAULTS | {"entropy_coef": 0.1})
    )
  # With the type checks of the tests on, they are the first to object.
  with pytest.raises((ValueError, TypeError), match="token_mean"):
    loss.policy_loss(**arrays, **(DEFAULTS | {"aggregation": "mean"}))
