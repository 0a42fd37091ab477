"""The command toolrl-evaluate on the bundled model, from end to end."""

import json

import pytest

from toolrl_jax import evaluate

_CONFIG = "configs/evaluate_tiny.py"


@pytest.fixture(scope="module")
def arguments(root_dir):
  """Makes a command line on few rows and short answers."""

  def make(workdir, config=_CONFIG, **fields):
    fields = {
      "data.eval_path": "synthetic:12",
      "benchmark.seeds": "(0, 1)",
      "rollout.slots": "8",
      "rollout.server": "inline",
      "mesh.cpu_devices": "0",
      **fields,
    }
    return [
      "toolrl-evaluate",
      f"--config={root_dir / config}",
      f"--workdir={workdir}",
      *(f"--config.{name}={value}" for name, value in fields.items()),
    ]

  return make


@pytest.fixture(scope="module")
def scored(arguments, tmp_path_factory):
  """A run that came to its end."""
  workdir = tmp_path_factory.mktemp("scores")
  evaluate.run(arguments(workdir))
  return workdir


def _scores(workdir):
  return json.loads((workdir / "scores.json").read_text())


def _fails(argv, capsys, status=2):
  with pytest.raises(SystemExit) as caught:
    evaluate.run(argv)
  assert caught.value.code == status
  (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
  return line


def test_a_score_file_carries_what_it_depends_on(scored):
  scores = _scores(scored)
  assert scores["protocol"]["template"] == "native"
  assert len(scores["protocol"]["hash"]) == len(scores["weights"]) == 16
  assert scores["seeds"] == [0, 1]
  assert {"jax", "toolrl-jax", "python", "platform"} <= set(scores["versions"])
  (name,) = scores["benchmarks"]
  one = scores["benchmarks"][name]
  assert one["headline"] == "exact" and "rows" in one["provenance"]
  for seed in ("0", "1"):
    part = one["by_seed"][seed]
    assert len(part["verdicts"]) == 12 == sum(part["counts"].values())
    usage = part["usage"]
    assert usage["items"] == usage["answers"] == 12 and usage["failed"] == 0
    assert usage["tokens"] > 12 and usage["secs"] > 0
    exact = sum(part["verdicts"].values()) / 12
    assert part["table"]["exact"] == pytest.approx(exact)
  mean = one["summary"]["exact"]["mean"]
  both = [one["by_seed"][seed]["table"]["exact"] for seed in ("0", "1")]
  assert mean == pytest.approx(sum(both) / 2)


def test_what_was_lost_is_answered_again_alike(scored, arguments):
  before = _scores(scored)
  path = scored / "answers" / "rows-seed1.jsonl"
  whole = path.read_bytes()
  # Killed inside the sixth line.
  lines = whole.split(b"\n")
  path.write_bytes(b"\n".join(lines[:5]) + b"\n" + lines[5][:20])
  evaluate.run(arguments(scored))
  after = _scores(scored)
  assert len(path.read_bytes().splitlines()) == 13
  seeds = [one["benchmarks"]["rows"]["by_seed"]["1"] for one in (before, after)]
  for one in seeds:
    one["usage"].pop("secs")
  assert seeds[0] == seeds[1]


def test_another_protocol_in_the_same_folder_is_refused(
  scored, arguments, capsys
):
  before = (scored / "answers" / "rows-seed0.jsonl").read_bytes()
  changed = {"rollout.temperature": "0.5"}
  line = _fails(arguments(scored, **changed), capsys)
  assert "temperature (1.0, now 0.5)" in line and "--workdir" in line
  assert (scored / "answers" / "rows-seed0.jsonl").read_bytes() == before
  # Nor is the configuration that the scores were made with.
  config = json.loads((scored / "config.json").read_text())
  assert config["rollout"]["temperature"] == 1.0


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/4"])
def test_the_folder_of_a_training_run_is_refused(
  name, arguments, tmp_path, capsys
):
  path = tmp_path / name
  path.parent.mkdir(exist_ok=True)
  path.write_text("")
  line = _fails(arguments(tmp_path), capsys)
  assert "must not be a folder of toolrl-train" in line
  assert not (tmp_path / "config.json").exists()


def test_show_prints_the_file(scored, tmp_path, capsys):
  evaluate.run(["toolrl-evaluate", f"--show={scored}"])
  text = capsys.readouterr().out
  scores = _scores(scored)
  for part in (scores["weights"], scores["protocol"]["hash"], "exact", "±"):
    assert part in text
  evaluate.run(["toolrl-evaluate", "--show", str(scored)])
  assert capsys.readouterr().out == text
  for flags in (["--show="], ["--show"], ["--show", "--against=x"]):
    assert "needs a folder" in _fails(["toolrl-evaluate", *flags], capsys)
  line = _fails(["toolrl-evaluate", f"--show={tmp_path}"], capsys)
  assert line.startswith("toolrl-evaluate: --show:")


def test_two_runs_are_compared_item_by_item(scored, tmp_path, capsys):
  scores = _scores(scored)
  rows = scores["benchmarks"]["rows"]
  for part in rows["by_seed"].values():
    part["verdicts"] = dict.fromkeys(part["verdicts"], 0.0)
  scores["model"] = "worse"
  (tmp_path / "scores.json").write_text(json.dumps(scores))
  flags = [f"--show={scored}", f"--against={tmp_path}"]
  evaluate.run(["toolrl-evaluate", *flags])
  text = capsys.readouterr().out
  mean = 100 * _scores(scored)["benchmarks"]["rows"]["summary"]["exact"]["mean"]
  assert "against worse" in text
  assert f"{mean:.1f} against 0.0, {mean:+.1f} points" in text
  rows["provenance"]["rows"] = "others"
  (tmp_path / "scores.json").write_text(json.dumps(scores))
  line = _fails(["toolrl-evaluate", *flags], capsys)
  assert "same data and rules" in line and "rows" in line
  scores["protocol"]["hash"] = "0" * 16
  rows["provenance"] = _scores(scored)["benchmarks"]["rows"]["provenance"]
  (tmp_path / "scores.json").write_text(json.dumps(scores))
  assert "one protocol" in _fails(["toolrl-evaluate", *flags], capsys)
  (tmp_path / "scores.json").write_text('{"benchmarks": {"rows": {}}}')
  _fails(["toolrl-evaluate", *flags], capsys)
  assert "--show" in _fails(["toolrl-evaluate", flags[1]], capsys)


def test_what_needs_no_model_is_found_before_it_is_loaded(
  arguments, tmp_path, capsys
):
  fields = {"data.eval_path": "/no/rows.jsonl", "model.path": "/no/model"}
  line = _fails(arguments(tmp_path / "w", **fields), capsys)
  assert "/no/rows.jsonl" in line


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"benchmark.names": "()"}, "config.benchmark.names is empty"),
    ({"benchmark.names": "('bfc',)"}, "must be some of rows, bfcl"),
    ({"benchmark.seeds": "(1, 1)"}, "must hold nothing twice"),
    ({"benchmark.seeds": "(-1,)"}, "whole numbers of at least 0"),
    ({"benchmark.system": "/no/such.txt"}, 'config.benchmark.system must be "d'),
    ({"data.eval_path": ""}, "needs config.data.eval_path"),
    ({"data.max_prompt_tokens": "4000",
      "data.prompt_buckets": "(4000,)"}, "must fit the checkpoint's 2048"),
    ({"model.path": "/no/where"}, "/no/where"),
  ],
)  # fmt: skip
def test_a_mistake_is_one_line(arguments, tmp_path, capsys, fields, message):
  line = _fails(arguments(tmp_path / "w", **fields), capsys)
  assert line.startswith("toolrl-evaluate: ") and message in line
  assert not list(tmp_path.glob("w/answers/*"))


def test_bfcl_runs_from_end_to_end(arguments, tmp_path):
  argv = arguments(
    tmp_path,
    **{
      "benchmark.names": "('bfcl',)",
      "benchmark.categories": "('simple_python', 'irrelevance', 'multi_turn_base')",
      "benchmark.max_items": "2",
      "benchmark.seeds": "(0,)",
      "prompt.completion": "native",
      "data.max_prompt_tokens": "1536",
      "data.prompt_buckets": "(1536,)",
      "rollout.prefix_store_tokens": "20000",
    },
  )
  evaluate.run(argv)
  one = _scores(tmp_path)["benchmarks"]["bfcl"]
  part = one["by_seed"]["0"]
  assert part["counts"] == {
    "simple_python": 2, "irrelevance": 2, "multi_turn_base": 2,
  }  # fmt: skip
  # The tiny model knows other tools only, and multi-turn prompts are too long.
  assert part["usage"]["failed"] == 0 and part["usage"]["over_long"] >= 2
  assert part["table"]["multi_turn_base"] == 0
  assert one["provenance"]["bfcl_eval"] == "2026.3.23"
  files = sorted(path.name for path in tmp_path.glob("bfcl/seed0/result/*/*/*"))
  assert files == [
    "BFCL_v4_irrelevance_result.json",
    "BFCL_v4_multi_turn_base_result.json",
    "BFCL_v4_simple_python_result.json",
  ]
  lines = (
    next(tmp_path.glob("bfcl/seed0/result/*/*/BFCL_v4_simple*"))
    .read_text()
    .splitlines()
  )
  assert [json.loads(line)["id"] for line in lines] == [
    "simple_python_0", "simple_python_1",
  ]  # fmt: skip


def test_a_study_scores_each_cell_once_and_compares(
  arguments, tmp_path, capsys
):
  argv = arguments(
    tmp_path,
    "configs/sensitivity.py",
    **{
      "data.eval_path": "synthetic:8",
      "data.max_prompt_tokens": "640",
      "data.prompt_buckets": "(640,)",
      "rollout.max_completion_tokens": "8",
      "rollout.completion_buckets": "(8,)",
      "sensitivity.templates": "('native', 'context')",
      "sensitivity.thinking": "('official',)",
      "sensitivity.systems": "()",
      "sensitivity.base": "bundled:tiny",
    },
  )
  evaluate.run(argv)
  report = json.loads((tmp_path / "study.json").read_text())
  part = report["benchmarks"]["rows"]
  assert [cell["template"] for cell in part["cells"]] == ["native", "context"]
  assert set(part["axes"]) == {"template"}
  # The same weights on both sides.
  assert [row["difference"] for row in part["gains"]] == [0.0, 0.0]
  text = (tmp_path / "study.md").read_text()
  assert "The gain survives 0 of 2 cells" in text
  assert "The largest difference by template is" in text
  chart = (tmp_path / "study_rows.svg").read_text()
  assert "template: context" in chart
  files = sorted(tmp_path.glob("*cells/*/answers/*"))
  assert len(files) == 8
  # Nothing is run again, and the same bytes come out.
  times = [file.stat().st_mtime_ns for file in files]
  evaluate.run(argv)
  assert [file.stat().st_mtime_ns for file in files] == times
  assert (tmp_path / "study_rows.svg").read_text() == chart
  assert (tmp_path / "study.md").read_text() == text
  # Other rules in the same cells are refused, not mixed in.
  capsys.readouterr()
  line = _fails([*argv, "--config.reward.no_call=zero"], capsys)
  assert "reward" in line and "another --workdir" in line
  line = _fails([*argv, "--config.sensitivity.base=/nope"], capsys)
  assert "config.sensitivity.base" in line
