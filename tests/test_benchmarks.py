"""The benchmarks run, read their own figures right, and say what is wrong."""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest

_BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"
_TINY = (
  "--layers=1", "--width=32", "--ffn=48", "--vocab=64", "--heads=2",
  "--kv_heads=1", "--head_dim=16", "--prompt_len=12", "--response_len=5",
  "--group_size=2", "--steps=2",
)  # fmt: skip


@pytest.fixture(autouse=True)
def benchmarks_path(monkeypatch):
  """Lets the scripts find one another, as when they are run."""
  monkeypatch.syspath_prepend(str(_BENCHMARKS))


def _step_time(root_dir, *flags, **environment):
  return subprocess.run(
    [sys.executable, "benchmarks/step_time.py", *_TINY, *flags],
    cwd=root_dir,
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, **environment},
  )


# ----- step_time.py -----


def test_step_time_prints_the_figures_of_our_step_and_the_floor(root_dir):
  done = _step_time(root_dir, "--peer=floor")
  assert done.returncode == 0, done.stderr
  figures = json.loads(done.stdout.splitlines()[-1])
  assert (figures["P"], figures["R"], figures["n"]) == (12, 5, 2)
  assert 0 < figures["ours_secs"] < 60
  parts = figures["ours_rollout_secs"] + figures["ours_update_secs"]
  # Medians of two steps are means, so the parts add up.
  assert parts == pytest.approx(figures["ours_secs"], abs=3e-4)
  assert figures["versions"]["google-jetstream"] == "0.2.2"
  assert figures["compilations_after_first"] == 0
  assert figures["ours_over_floor"] == pytest.approx(
    figures["ours_secs"] / figures["floor_secs"], rel=0.1
  )
  assert figures["ours_peak_mib"] > figures["floor_peak_mib"] > 50
  assert "ratio_vs_tunix" not in figures


def test_step_time_names_why_the_peer_cannot_be_installed(root_dir, tmp_path):
  uv = tmp_path / "uv"
  uv.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n")
  uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
  # Away from an environment that an earlier run may have made.
  copy = tmp_path / "benchmarks"
  shutil.copytree(root_dir / "benchmarks", copy)
  done = subprocess.run(
    [sys.executable, str(copy / "step_time.py"), *_TINY, "--peer=tunix"],
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, "PATH": str(tmp_path)},
  )
  assert done.returncode == 1
  assert done.stderr.strip().splitlines()[-1] == (
    "step_time.py: google-tunix==0.1.7 cannot be installed: no such package"
  )
  assert not (tmp_path / ".peers" / "tunix" / "installed.txt").exists()


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--core=999", "--core must be one of"),
    ("--peer=verl", "--peer must name some of tunix,trl,floor, got 'verl'"),
    ("--max_prompt_len=5", "max_prompt_len must be at least prompt_len"),
    ("--steps=0", "must be at least 1"),
  ],
)
def test_parse_args_refuses(capsys, flag, message):
  import step_time

  with pytest.raises(SystemExit) as stopped:
    step_time.parse_args([*_TINY, flag])
  assert stopped.value.code == 2
  assert message in capsys.readouterr().err


def _records(*secs):
  return [{"step_secs": s, "cpu_secs": s / 2} for s in secs]


def test_figures_are_ratios_of_medians_after_the_first_step():
  import step_time

  steps = {
    "tunix": _records(40.0, 20.0, 22.0, 30.0),
    "floor": _records(5.0, 1.0, 2.0, 4.0),
    "ours": _records(10.0, 2.0, 2.2, 2.5),
  }
  found = step_time.figures(steps)
  assert found["ours_secs"] == 2.2 and found["ours_cpu_secs"] == 1.1
  assert found["ratio_vs_tunix"] == 10.0
  assert found["ratio_vs_tunix_of_each_pair"] == [10.0, 10.0, 12.0]
  assert found["ours_over_floor"] == 1.1
  assert found["ours_over_floor_of_each_pair"] == [2.0, 1.1, 0.62]
  assert found["ours_first_over_tunix"] == 0.25
  assert list(found)[0].startswith("ours")
  assert "limit_ratio" not in found


def test_figures_under_a_limit_compare_ours_with_ours():
  import step_time

  found = step_time.figures(
    {
      "ours": _records(10.0, 2.0, 2.2, 2.5),
      "short": _records(9.0, 2.0, 2.0, 2.0),
      "tunix": _records(90.0, 44.0, 44.0, 44.0),
    }
  )
  assert found["limit_ratio"] == 1.1 and found["limit_cpu_ratio"] == 1.1
  assert found["ratio_vs_tunix"] == 20.0
  # The long prompt came before, so no first step is one from a cold start.
  assert not [name for name in found if "_first_" in name]


def test_take_steps_goes_back_and_forth():
  import step_time

  order = []
  takers = {
    name: lambda name=name: order.append(name) or {"step_secs": 1.0}
    for name in ("a", "b")
  }

  class Counter:
    def take(self):
      order.append("|")
      return 3

  steps, num_compiled = step_time.take_steps(takers, 2, Counter())
  assert order == ["a", "b", "|", "b", "a", "a", "b", "|"]
  assert num_compiled == 3
  assert {name: len(records) for name, records in steps.items()} == {
    "a": 3,
    "b": 3,
  }


def test_parse_peak_mib_reads_the_high_water_mark():
  import peer_process

  status = "Name:\tpython\nVmPeak:\t 9999 kB\nVmHWM:\t  524288 kB\n"
  assert peer_process.parse_peak_mib(status) == 512
  with pytest.raises(ValueError, match="VmHWM"):
    peer_process.parse_peak_mib("Name:\tpython\n")
  assert peer_process.peak_mib(os.getpid()) > 20


def test_call_text_is_a_call_whatever_was_drawn():
  import our_step

  from toolrl_jax import scoring, types

  gold = types.Gold((types.ToolCall("book", {"words": "a", "guests": 2}),))
  words = '<tool_call></think>"\\ \n'
  scored = scoring.parse_and_score(
    [[our_step.call_text(words, i) for i in range(4)]],
    [gold],
    reward=scoring.RewardOptions(),
  )
  assert all(parsed.is_parsed and parsed.has_call for parsed in scored.parsed)
  assert [len(parsed.calls) for parsed in scored.parsed] == [1, 1, 1, 1]
  total = scored.parts.total[0]
  # The right name earns more than the wrong one.
  assert total[0] == total[2] > total[1] == total[3]


def test_full_tokenizer_has_text_for_every_id():
  import our_step

  text = our_step.full_tokenizer(1200)
  assert len(text) >= 1200
  assert text.decode([1199]).strip() == "w1199"


# ----- grid.py -----


def test_grid_goes_on_where_it_was():
  import grid

  args = grid.parse_args(
    ["--out=x.jsonl", "--prompt_lens=1024,512", "--group_sizes=4",
     "--peer=floor", "--limit=512,2048,8"]
  )  # fmt: skip
  wanted = grid.settings(args)
  assert [(s["P"], s["max_P"], s["n"]) for s in wanted] == [
    (512, 512, 4),
    (1024, 1024, 4),
    (512, 2048, 8),
  ]
  ended = {**wanted[0], "ours_secs": 1.0}
  assert grid.missing(wanted, [ended]) == wanted[1:]
  other = {**ended, "peers": "tunix"}
  assert grid.missing(wanted, [other]) == wanted


def test_grid_table_has_a_row_a_setting():
  import grid

  row = {
    "P": 1024, "max_P": 1024, "n": 8, "ratio_vs_tunix": 10.456,
    "ratio_vs_tunix_of_each_pair": [9.0, 12.34, 10.0], "ours_peak_mib": 900,
  }  # fmt: skip
  lines = grid.table([row, {"P": 512, "max_P": 512, "n": 4}]).splitlines()
  assert lines[2].startswith("| 512 | 512 | 4 | - | - |")
  assert lines[3].startswith("| 1024 | 1024 | 8 | 10.46 | 9.0 to 12.3 | - |")
  assert "| 900 |" in lines[3]


# ----- rollout_throughput.py -----


def test_rollout_figures_are_medians_of_pairs():
  import argparse

  import rollout_throughput

  args = argparse.Namespace(prompts=2, group_size=4, response_len=10, slots=4)
  found = rollout_throughput.figures(
    args,
    {
      "jetstream": [(2.0, 1.0), (4.0, 1.0), (2.0, 1.0)],
      "inline": [(2.2, 1.5), (4.0, 2.0), (1.0, 0.5)],
      "tunix": [(6.0, 3.0), (16.0, 3.0), (8.0, 2.0)],
    },
    num_iterations=22,
  )
  # 2 * 4 * 10 tokens in 2 seconds.
  assert found["driver_tokens_per_sec"] == 40.0
  assert found["driver_over_inline"] == 1.0
  assert found["driver_over_inline_cpu"] == 1.5
  assert found["driver_over_tunix"] == 4.0
  # 8 completions in 4 rows: two rounds of 10.
  assert found["iterations_over_ideal"] == 1.1
