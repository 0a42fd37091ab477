import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.training import state

SCHEDULE = {
  "learning_rate": 1.0,
  "warmup_steps": 2,
  "schedule": "constant",
  "final_scale": 0.1,
  "total_steps": 7,
}


def _rates(**changes):
  schedule = state.make_schedule(**(SCHEDULE | changes))
  return [float(schedule(jnp.asarray(t))) for t in range(8)]


def test_make_schedule_constant_rises_then_stays():
  assert _rates() == [0.5, 1, 1, 1, 1, 1, 1, 1]
  assert _rates(warmup_steps=0) == [1.0] * 8


def test_make_schedule_linear_ends_at_the_final_scale():
  np.testing.assert_allclose(
    _rates(schedule="linear"),
    [0.5, 1, 1, 0.775, 0.55, 0.325, 0.1, 0.1],
    rtol=1e-6,
  )


def test_make_schedule_cosine_is_halfway_in_the_middle():
  rates = _rates(schedule="cosine")
  # 0.1 + 0.9 (1 + cos(pi x)) / 2 at x = 0, 1/4, 1/2, 3/4, 1.
  np.testing.assert_allclose(
    rates[2:], [1, 0.868198, 0.55, 0.231802, 0.1, 0.1], rtol=1e-5
  )


def test_make_schedule_rejects_a_run_without_decay_steps():
  with pytest.raises(ValueError, match="updates must exceed"):
    _rates(schedule="linear", warmup_steps=6)


def _params():
  return {
    "proj": {"kernel": jnp.ones((1, 2, 2)), "bias": jnp.ones((1, 2))},
    "norm": {"scale": jnp.ones((1, 2))},
  }


def test_make_optimizer_decays_matrices_only():
  optimizer = state.make_optimizer(0.5, weight_decay=0.1)
  params = _params()
  zero = {
    k: {n: jnp.zeros_like(x) for n, x in v.items()} for k, v in params.items()
  }
  changes, _ = optimizer.update(zero, optimizer.init(params), params)
  np.testing.assert_allclose(changes["proj"]["kernel"], -0.05, rtol=1e-6)
  assert np.all(np.asarray(changes["proj"]["bias"]) == 0)
  assert np.all(np.asarray(changes["norm"]["scale"]) == 0)


def test_make_optimizer_first_step_is_adam_on_the_clipped_gradient():
  params = {"proj": {"kernel": jnp.zeros((1, 1, 2))}}
  grads = {"proj": {"kernel": jnp.array([[[3.0, 4.0]]])}}
  optimizer = state.make_optimizer(0.1, eps=1.0, clip_norm=0.5)
  changes, _ = optimizer.update(grads, optimizer.init(params), params)
  # Clipped to (0.3, 0.4); Adam's first step is -lr g / (|g| + eps).
  np.testing.assert_allclose(
    changes["proj"]["kernel"][0, 0],
    [-0.1 * 0.3 / 1.3, -0.1 * 0.4 / 1.4],
    rtol=1e-5,
  )
  free = state.make_optimizer(0.1, eps=1.0, clip_norm=0.0)
  changes, _ = free.update(grads, free.init(params), params)
  np.testing.assert_allclose(
    changes["proj"]["kernel"][0, 0], [-0.1 * 3 / 4, -0.1 * 4 / 5], rtol=1e-5
  )


def test_init_state_counts_from_zero():
  optimizer = state.make_optimizer(0.1)
  first = state.init_state(_params(), optimizer)
  assert first.step == 0 and first.step.dtype == jnp.int32
