"""Numbers in the figures."""

import numpy as np
import pytest

from toolrl_jax.reporting import charts, runs, stages, thinning


@pytest.fixture(scope="module")
def run(write_run, tmp_path_factory):
  return runs.read(write_run(tmp_path_factory.mktemp("charts") / "one"))


def _other(run, **scales):
  curves = {
    name: curve._replace(values=curve.values * scales.get(name, 2.0))
    for name, curve in run.curves.items()
  }
  return run._replace(name="<b>two", curves=curves)


def test_reward_parts_draws_the_written_numbers(run):
  total, form, correctness = charts.reward_parts([run]).data
  assert (total.name, form.name, correctness.name) == (
    "total", "format", "correctness",
  )  # fmt: skip
  np.testing.assert_array_equal(total.x, [1, 2, 3, 4, 5, 6])
  np.testing.assert_allclose(total.y, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
  np.testing.assert_allclose(correctness.y, np.array(total.y) - 0.5)


def test_two_runs_share_a_panel_for_each_metric(run):
  figure = charts.reward_parts([run, _other(run)])
  assert len(figure.data) == 6
  assert [trace.yaxis for trace in figure.data] == ["y", "y2", "y3"] * 2
  assert [t.showlegend for t in figure.data] == [True, False, False] * 2
  one, two = figure.data[0], figure.data[3]
  # Names are data: plotly would read a tag.
  assert (one.name, two.name) == ("one", "&lt;b&gt;two")
  assert one.line.color != two.line.color
  np.testing.assert_allclose(two.y, 2 * np.array(one.y))


def test_skipped_is_the_share_of_the_rows(run):
  # 4 steps of 16 prompts in the first epoch are all the 64 rows; in the second
  # 16 of them are left out.
  [trace] = charts.skipped([run]).data
  np.testing.assert_allclose(trace.y, [0, 0, 0, 0, 0.25, 0.25])
  for prompts in (None, 0, 2**70, "16"):
    config = {"sampler": {"prompts_per_step": prompts}}
    assert charts.skipped_share(run._replace(config=config)).steps.size == 0
  counted = charts.skipped_share(run._replace(made_with={"num_train_rows": 80}))
  np.testing.assert_allclose(counted.values, [0, 0, 0, 0, 0.2, 0.2])
  # What cannot be a number of rows is not taken as one.
  for wrong in (0, -1, True, 1.5, "80", 10**400):
    other = charts.skipped_share(
      run._replace(made_with={"num_train_rows": wrong})
    )
    np.testing.assert_allclose(other.values, [0, 0, 0, 0, 0.25, 0.25])


def test_heldout_by_secs_counts_training_steps_only(run):
  figure = charts.heldout_by_secs([run])
  # Before the first step, and after six of 10 seconds.
  np.testing.assert_allclose(figure.data[0].x, [0, 1])
  np.testing.assert_allclose(figure.data[0].y, [0.5, 0.75])


def test_stages_book_what_the_clock_has_beside_them_as_other(run):
  measured = stages.measure(run)
  # 10 - 4 - 1 - 3 - 0.5 seconds.
  np.testing.assert_allclose(measured.secs["other"], [1.5] * 6)
  np.testing.assert_allclose(measured.secs["held-out"], [0, 0, 0, 0, 0, 30])
  assert measured.totals == pytest.approx(
    {"rollout": 24, "reward": 6, "update": 18, "sync": 3, "other": 9,
     "held-out": 60}
  )  # fmt: skip
  binned = stages.measure(run, most=2)
  np.testing.assert_array_equal(binned.steps, [3, 6])
  np.testing.assert_allclose(binned.secs["held-out"], [0, 10])


def test_stage_charts_stack_to_the_whole(run):
  figure = charts.stage_secs([run])
  assert figure.layout.barmode == "stack"
  whole = np.sum([trace.y for trace in figure.data], axis=0)
  np.testing.assert_allclose(whole, [10] * 5 + [40])
  totals = charts.stage_totals([run, _other(run)])
  np.testing.assert_allclose(
    np.sum([trace.x for trace in totals.data], axis=0), [2, 4]
  )


def test_logprob_gap_has_a_log_axis_unless_there_are_zeros(run):
  name = "rollout/logprob_gap_max"
  assert charts.logprob_gap([run]).layout.yaxis.type == "log"
  zero = _other(run, **{name: 0.0})
  assert charts.logprob_gap([run, zero]).layout.yaxis.type is None


def test_all_charts_leaves_out_what_no_run_has(run):
  keys = set(charts.all_charts([run]))
  assert {"reward_parts", "heldout", "skipped", "stage_secs"} <= keys
  assert not {"benchmarks", "entropy", "heldout_by_secs"} & keys
  assert "heldout_by_secs" in charts.all_charts([run, _other(run)])
  sft = run._replace(curves={"update/loss": run.curve("reward/total")})
  assert list(charts.all_charts([sft])) == ["gradient"]
  assert charts.all_charts([run._replace(curves={})]) == {}


def test_all_charts_survive_curves_without_a_finite_number(run):
  bad = run._replace(
    curves={
      name: curve._replace(values=np.full_like(curve.values, np.nan))
      for name, curve in run.curves.items()
    }
  )
  assert charts.all_charts([bad]) == {}
  assert charts.all_charts([run, bad]).keys() >= {"reward_parts", "clipping"}


def test_thin_takes_means_and_maxima_of_stretches():
  values = np.array([1.0, 3.0, np.nan, 5.0, np.nan, np.nan])
  curve = runs.Curve(np.arange(1, 7), values)
  thin = thinning.thin(curve, most=3)
  np.testing.assert_array_equal(thin.steps, [2, 4, 6])
  np.testing.assert_array_equal(thin.values, [2, 5, np.nan])
  np.testing.assert_array_equal(
    thinning.thin(curve, most=3, of="max").values, [3, 5, np.nan]
  )
  assert thinning.thin(curve, most=6) is curve
  with pytest.raises(ValueError, match="at least 1"):
    thinning.thin(curve, most=0)
