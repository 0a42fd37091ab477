import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.training import metrics


def _lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def _writer(workdir, **changes):
  return metrics.MetricWriter(
    workdir, total_steps=10, **({"tensorboard": False} | changes)
  )


def test_write_puts_one_object_a_step_at_once(tmp_path):
  with _writer(tmp_path) as writer:
    writer.truncate_to(-1)
    writer.write(1, {"reward/total": np.float32(0.5), "update/loss": -1})
    # Read while the writer is open: nothing waits in a buffer.
    assert _lines(tmp_path / "metrics.jsonl") == [
      {"step": 1, "reward/total": 0.5, "update/loss": -1}
    ]
    writer.write(2, {"update/is_finite": True, "update/loss": float("nan")})
  assert _lines(tmp_path / "metrics.jsonl")[1] == {
    "step": 2,
    "update/is_finite": 1,
    "update/loss": None,
  }


def test_write_rejects_an_unknown_name(tmp_path):
  with _writer(tmp_path) as writer:
    with pytest.raises(ValueError, match="got reward/totl; add it"):
      writer.write(1, {"reward/totl": 1.0})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_truncate_to_cuts_later_steps_and_a_torn_line(tmp_path):
  with _writer(tmp_path) as writer:
    writer.truncate_to(-1)
    for step in range(4):
      writer.write(step, {"reward/total": float(step)})
      writer.write_samples(step, [{"text": "a"}, {"text": "b"}])
  path = tmp_path / "metrics.jsonl"
  with path.open("a") as file:
    file.write('{"step": 2, "reward/to')
  with _writer(tmp_path) as writer:
    writer.truncate_to(2)
    assert [line["step"] for line in _lines(path)] == [0, 1, 2]
    samples = _lines(tmp_path / "samples.jsonl")
    assert [line["step"] for line in samples] == [0, 0, 1, 1, 2, 2]
    writer.write(3, {"reward/total": 7.0})
  assert [line["step"] for line in _lines(path)] == [0, 1, 2, 3]


def test_truncate_to_start_over_empties_the_files(tmp_path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 0}\nnot json\n')
  with _writer(tmp_path) as writer:
    writer.truncate_to(-1)
  assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_write_samples_takes_any_text(tmp_path):
  text = 'lone \ud800, line\u2028break\r\n, snow \u2603, quote "'
  with _writer(tmp_path) as writer:
    writer.write_samples(1, [{"text": text, "reward": 1.5}])
    writer.truncate_to(1)
  (line,) = (tmp_path / "samples.jsonl").read_bytes().splitlines()
  assert json.loads(line) == {"step": 1, "text": text, "reward": 1.5}


def test_tensorboard_events_are_written(tmp_path):
  with _writer(tmp_path, tensorboard=True) as writer:
    writer.truncate_to(-1)
    writer.write(1, {"reward/total": 1.0})
  (events,) = (tmp_path / "tensorboard").iterdir()
  assert b"reward/total" in events.read_bytes()


def test_progress_names_the_time_left(monkeypatch):
  lines = []
  monkeypatch.setattr(
    metrics.logging, "info", lambda text, *args: lines.append(text % args)
  )
  clock = [100.0]
  monkeypatch.setattr(metrics.time, "monotonic", lambda: clock[0])
  monkeypatch.setattr(metrics.sys.stderr, "isatty", lambda: False)
  progress = metrics.Progress(10)
  progress.start(4)
  progress.show(4, {})
  clock[0] = 190.0
  progress.show(5, {})
  clock[0] = 205.0
  progress.show(6, {"reward/total": 2.345678})
  # 15 seconds for the step after the one that compiled, four to go.
  assert lines == [
    "step 4/10    left ?",
    "step 5/10    left ?",
    "step 6/10  reward 2.35  left 01:00",
  ]


def test_compilation_counter_counts_new_programs_only():
  counter = metrics.CompilationCounter()
  double = jax.jit(lambda x: x * 2)
  short, long = jnp.ones(3), jnp.ones(5)
  counter.take()
  double(short)
  double(short)
  assert counter.take() == 1
  double(long)
  assert counter.take() == 1
  assert counter.take() == 0
  counter.close()
  double(jnp.ones(7))
  assert counter.take() == 0


def test_declared_metrics_have_stage_unit_and_meaning():
  for name, metric in metrics.METRICS.items():
    stage, _, rest = name.partition("/")
    assert stage and rest and metric.unit and metric.meaning
  assert {"filter/stay_1_frac", "heldout/refusal_greedy_frac"} <= set(
    metrics.METRICS
  )


def test_every_metric_stands_in_the_docs(root_dir):
  page = (root_dir / "docs" / "metrics.md").read_text()
  for name, (unit, meaning) in metrics.METRICS.items():
    assert f"| `{name}` | {unit} | {meaning} |" in page, name
