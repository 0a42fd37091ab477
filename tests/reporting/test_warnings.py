"""What a run's files say that asks for a look."""

import json
import math
import time

import numpy as np
import pytest

from toolrl_jax.reporting import charts, runs, warnings


def _texts(write_run, folder, **options):
  seen = warnings.seen(runs.read(write_run(folder, **options)))
  return [one.text for one in seen]


def test_a_run_without_trouble_has_no_warning(write_run, tmp_path):
  assert _texts(write_run, tmp_path) == []


@pytest.mark.parametrize(
  ("step", "changes", "said"),
  [
    (3, {"update__loss": math.nan}, "update/loss is not a finite number at step 3"),
    (3, {"update__is_finite": 0.0}, "Loss or gradient was not finite at step 3"),
    (12, {"step__compilations": 2.0}, "2 programs were compiled after step 10, at step 12"),
    (12, {"rollout__cut_frac": 0.5}, "10.0% of the completions of the last steps"),
    (3, {"rollout__parse_fail_frac": 0.9}, "only 10% of the completions parse"),
    (3, {"rollout__tool_call_frac": 0.1}, "only 10% of the completions call a tool"),
    (3, {"rollout__logprob_gap_max": 0.5}, "up to 0.5 nats on a token at step 3"),
    (12, {"heldout__exact_greedy_frac": 0.25}, "fell from 50.0% to 25.0%"),
  ],
)  # fmt: skip
def test_each_trouble_gives_its_warning(
  write_run, tmp_path, step, changes, said
):
  options = {"num_steps": 12, "changes": {step: changes}}
  if "heldout__exact_greedy_frac" in changes:
    options["num_steps"] = 13
    folder = write_run(tmp_path, **options)
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    texts = [one.text for one in warnings.seen(runs.read(folder))]
  else:
    texts = _texts(write_run, tmp_path, **options)
  [text] = texts
  assert said in text


def test_compilations_of_the_first_steps_are_no_warning(write_run, tmp_path):
  changes = {10: {"step__compilations": 2.0}}
  assert _texts(write_run, tmp_path, num_steps=12, changes=changes) == []


def test_damage_stop_and_resume_are_warnings(write_run, tmp_path):
  folder = write_run(tmp_path, tensorboard=True)
  time.sleep(1.1)  # Names of TensorBoard files have seconds.
  write_run(tmp_path, tensorboard=True)
  (folder / "summary.json").unlink()
  path = folder / "metrics.jsonl"
  path.write_bytes(path.read_bytes()[:-5])
  seen = warnings.seen(runs.read(folder))
  assert [one.is_grave for one in seen] == [True, False, False]
  assert "ends inside line" in seen[0].text
  assert "after step 5 the run goes on" in seen[1].text
  assert "started 2 times" in seen[2].text


def test_missing_steps_are_named(write_run, tmp_path):
  folder = write_run(tmp_path)
  path = folder / "metrics.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join(lines[:2] + lines[4:]))
  [one] = warnings.seen(runs.read(folder))
  assert one.text == "metrics.jsonl has no line at steps 2, 3."


def test_many_steps_are_counted():
  assert (
    warnings._at(np.arange(1, 10)) == "at steps 1, 2, 3, 4, 5, 6 and 3 more"
  )


def test_what_the_run_said_is_shown_once(write_run, tmp_path):
  folder = write_run(tmp_path)
  line = '{"time": "2026-01-01T00:00:00Z", "text": "<b>low</b> disk"}\n'
  (folder / "warnings.jsonl").write_text(line * 3 + '{"text": 5}\nno json\n')
  texts = [one.text for one in warnings.seen(runs.read(folder))]
  assert "It said: <b>low</b> disk (3 times)" in texts
  assert any("warnings.jsonl has damaged lines, 1 in all" in t for t in texts)
  assert len(texts) == 2


def test_a_gap_of_any_length_is_one_warning(write_run, tmp_path):
  folder = write_run(tmp_path)
  with (folder / "metrics.jsonl").open("a") as file:
    file.write('{"step": 10000000000, "step/secs": 1.0}\n')
  texts = [one.text for one in warnings.seen(runs.read(folder))]
  # Steps 1 to 6 are there.
  assert any(
    "steps 7, 8, 9, 10, 11, 12 and 9999999987 more" in text for text in texts
  )


def test_limits_that_are_no_shares_are_left_out(write_run, tmp_path):
  folder = write_run(tmp_path)
  path = folder / "config.json"
  fields = json.loads(path.read_text())
  fields["logging"]["min_parse_frac"] = 10**400
  path.write_text(json.dumps(fields))
  assert all("parse" not in w.text for w in warnings.seen(runs.read(folder)))


def test_epochs_that_are_no_numbers_give_no_skipped_share(write_run, tmp_path):
  folder = write_run(tmp_path)
  path = folder / "metrics.jsonl"
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  for row in rows:
    row["sampler/epoch"] = None
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  assert not charts.skipped_share(runs.read(folder)).steps.size
