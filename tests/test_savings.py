"""The savings benchmark counts and compares what a run has written."""

import pathlib

import pytest

_BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_path(monkeypatch):
  """Lets the scripts find one another, as when they are run."""
  monkeypatch.syspath_prepend(str(_BENCHMARKS))


def _row(step, secs, *, compiled=0, epoch=0, rate=None):
  row = {
    "step": step, "step/cpu_secs": secs, "rollout/cpu_secs": secs / 2,
    "update/cpu_secs": secs / 4, "reward/cpu_secs": 0.0, "rollout/tokens": 200.0,
    "rollout/length_tokens": 25.0, "update/tokens": 300.0,
    "update/loss_tokens": 100.0, "step/compilations": compiled,
    "sampler/epoch": epoch, "filter/zero_variance_frac": 0.5,
    "filter/all_right_frac": 0.25, "filter/all_wrong_frac": 0.25,
    "filter/skipped_prompts": 0,
  }  # fmt: skip
  if rate is not None:
    row |= {
      "heldout/exact_sampled_frac": rate,
      "heldout/exact_greedy_frac": rate + 0.1,
      "heldout/secs": 99.0,
    }
  return row


def test_digest_counts_training_seconds_only():
  import savings_table

  before = {
    "step": 0, "heldout/exact_sampled_frac": 0.3,
    "heldout/exact_greedy_frac": 0.4, "heldout/secs": 50.0,
  }  # fmt: skip
  found = savings_table.digest(
    [
      before,
      _row(1, 10.0, compiled=7),
      _row(2, 2.0, rate=0.5),
      _row(3, 3.0, epoch=1),
      _row(4, 2.0, epoch=1, rate=0.6),
    ]
  )
  assert (found["num_steps"], found["secs"]) == (4, 17.0)
  # The step that compiled counts as the median of the others, 2.
  assert found["warm_secs"] == 9.0
  assert [
    (p["step"], p["secs"], p["warm_secs"], p["exact_sampled_frac"])
    for p in found["curve"]
  ] == [(0, 0.0, 0.0, 0.3), (2, 12.0, 4.0, 0.5), (4, 17.0, 9.0, 0.6)]
  assert found["generated_tokens"] == 800.0 and found["num_rollouts"] == 32
  assert [e["epoch"] for e in found["epochs"]] == [0, 1]
  assert found["epochs"][0]["zero_variance_frac"] == 0.5


def test_secs_to_rate_interpolates():
  import savings_table

  secs, rates = [0.0, 10.0, 20.0], [0.2, 0.4, 0.8]
  assert savings_table.secs_to_rate(secs, rates, 0.6) == pytest.approx(15.0)
  assert savings_table.secs_to_rate(secs, rates, 0.1) == 0.0
  assert savings_table.secs_to_rate(secs, rates, 0.9) is None


def test_smoothed_takes_the_newest_three():
  import savings_table

  assert savings_table.smoothed([0.0, 0.5, 1.0, 0.0]) == [0.0, 0.25, 0.5, 0.5]


def _run(variant, seed, secs_per_point, rates, *, num_rollouts=100):
  curve = [
    {
      "step": 5 * i, "secs": 10.0 + secs_per_point * i,
      "warm_secs": secs_per_point * i, "exact_sampled_frac": rate,
      "exact_greedy_frac": rate,
    }
    for i, rate in enumerate(rates)
  ]  # fmt: skip
  return {
    "variant": variant, "seed": seed, "overrides": [], "date": "2026-01-01",
    "num_steps": 10, "secs": 60.0, "rollout_secs": 20.0, "update_secs": 30.0,
    "generated_tokens": 2000.0, "updated_tokens": 4000.0,
    "num_rollouts": num_rollouts, "epochs": [], "curve": curve,
  }  # fmt: skip


def test_summarise_compares_times_to_the_same_rate():
  import savings_table

  rates = [0.4] * 3 + [0.8] * 5
  runs = []
  for seed, factor in ((1, 2.0), (2, 4.0), (3, 3.0)):
    runs.append(_run("baseline", seed, 12.0, rates))
    runs.append(_run("all", seed, 12.0 / factor, rates, num_rollouts=60))
  summary = savings_table.summarise(runs)
  assert list(summary) == ["baseline", "all"]
  # The same curve at 2, 4 and 3 times the speed: the median is 3.
  assert summary["all"]["ratio_best_warm"] == pytest.approx(3.0)
  assert summary["all"]["ratio_common_warm"] == pytest.approx(3.0)
  assert summary["all"]["ratio_best"] < 3.0  # Both start with 10 seconds.
  assert summary["baseline"]["ratio_best_warm"] == 1.0
  assert summary["all"]["left_out_frac"] == pytest.approx(0.4)
  assert summary["all"]["target_best"] == pytest.approx(0.95 * 0.8)
  text = savings_table.table(summary).splitlines()
  assert len(text) == 4 and text[3].startswith("| all | 10 | 40.0 | 20 | 30 |")


def test_summarise_tells_a_rate_that_was_not_reached():
  import savings_table

  summary = savings_table.summarise(
    [
      _run("baseline", 1, 10.0, [0.4, 0.8, 0.8, 0.8]),
      _run("slow", 1, 10.0, [0.4, 0.6, 0.6, 0.6]),
    ]
  )
  assert summary["slow"]["ratio_best_warm"] is None
  # All reach 0.6, the baseline at the first point whose mean is 0.6.
  assert summary["baseline"]["target_common"] == pytest.approx(0.6)
  assert summary["baseline"]["secs_common_warm"] == pytest.approx(10.0)
  assert "not reached" in savings_table.table(summary)


def test_targets_need_the_baseline():
  import savings_table

  with pytest.raises(ValueError, match="baseline"):
    savings_table.targets([_run("shared", 1, 1.0, [0.5])])


def test_savings_runs_only_what_has_not_ended():
  import savings

  args = savings.parse_args(
    ["--out=x", "--seeds=1,2", "--variants=baseline;everything, probe"]
  )
  ended = {
    "variant": "baseline",
    "seed": 1,
    "overrides": savings.overrides(args, "baseline", 1),
  }
  assert savings.missing(args, [ended]) == [
    ("baseline", 2),
    ("everything, probe", 1),
    ("everything, probe", 2),
  ]
  args.epochs = 7
  assert len(savings.missing(args, [ended])) == 4


def test_savings_variants_are_fields_of_the_configuration():
  import savings

  from configs import tiny

  args = savings.parse_args(["--out=x"])
  for variant in savings.VARIANTS:
    config = tiny.get_config()
    for override in savings.overrides(args, variant, 1):
      name, value = override.split("=", 1)
      section, _, field = name.rpartition(".")
      owner = config[section] if section else config
      assert field in owner, name
      assert type(owner[field])(value) is not None
    group_size = [
      o for o in savings.overrides(args, variant, 1) if "group_" in o
    ]
    assert group_size == ["rollout.group_size=8"]
