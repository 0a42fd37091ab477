"""Files of answers that go on, and what they refuse."""

import json

import pytest

from toolrl_jax.evaluation import records, respond

pytestmark = pytest.mark.quick

_HEADER = records.Header(
  "rows",
  0,
  {"hash": "a", "template": "native", "system": ""},
  "w",
  {"rows": "i"},
)


def _ended(name, **outcome):
  return respond.Ended(name, outcome, "", 1, 10, 5, 0, 0, 0, 0, 0.5)


def test_answers_survive_and_go_on(tmp_path):
  path = tmp_path / "answers" / "rows-seed0.jsonl"
  with records.AnswerFile(path, _HEADER) as file:
    assert file.ended == {}
    file.write([_ended("a", text="\ud800 é"), _ended("b", text="x")])
  with records.AnswerFile(path, _HEADER) as file:
    assert list(file.ended) == ["a", "b"]
    assert file.ended["a"] == _ended("a", text="\ud800 é")
    file.write([_ended("c")])
  with records.AnswerFile(path, _HEADER) as file:
    assert list(file.ended) == ["a", "b", "c"]


def test_a_line_that_broke_off_is_run_again(tmp_path):
  path = tmp_path / "rows.jsonl"
  with records.AnswerFile(path, _HEADER) as file:
    file.write([_ended("a"), _ended("b")])
  whole = path.read_bytes()
  for cut in (1, 5, 40):
    path.write_bytes(whole[:-cut])
    with records.AnswerFile(path, _HEADER) as file:
      assert list(file.ended) == ["a"]
      file.write([_ended("b")])
    assert path.read_bytes() == whole


def test_a_file_without_a_whole_header_begins_anew(tmp_path):
  path = tmp_path / "rows.jsonl"
  path.write_bytes(b'{"benchm')
  with records.AnswerFile(path, _HEADER) as file:
    assert file.ended == {}
  assert json.loads(path.read_bytes())["benchmark"] == "rows"


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"seed": 1}, r"seed \(0, now 1\)"),
    ({"weights": "v"}, r"weights \('w', now 'v'\)"),
    ({"items": {"rows": "j"}}, r"rows \('i', now 'j'\)"),
    (
      {"protocol": {"hash": "b", "template": "context", "system": ""}},
      r"template \('native', now 'context'\)",
    ),
  ],
)
def test_another_run_is_refused(tmp_path, changes, message):
  path = tmp_path / "rows.jsonl"
  with records.AnswerFile(path, _HEADER) as file:
    file.write([_ended("a")])
  before = path.read_bytes()
  with pytest.raises(ValueError, match=message):
    records.AnswerFile(path, _HEADER._replace(**changes))
  assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["not json\n", "[1]\n", '{"a": 1}\n[2]\n'])
def test_another_file_is_refused(tmp_path, text):
  path = tmp_path / "rows.jsonl"
  path.write_text(text)
  with pytest.raises(ValueError, match="another --workdir"):
    records.AnswerFile(path, _HEADER)
  assert path.read_text() == text


@pytest.mark.parametrize(
  "field", [{"id": []}, {"outcome": None}, {"num_tokens": "5"}, {"secs": None}]
)
def test_a_damaged_line_is_refused(tmp_path, field):
  path = tmp_path / "rows.jsonl"
  with records.AnswerFile(path, _HEADER) as file:
    file.write([_ended("a")])
  with path.open("a") as file:
    file.write(json.dumps(_ended("b")._asdict() | field) + "\n")
  with pytest.raises(ValueError, match="is not a file of answers"):
    records.AnswerFile(path, _HEADER)


def test_scores_are_read_from_a_folder_or_file(tmp_path):
  scores = {"benchmarks": {"rows": {}}}
  records.write_scores(tmp_path / "scores.json", scores)
  assert records.read_scores(tmp_path) == scores
  assert records.read_scores(tmp_path / "scores.json") == scores


@pytest.mark.parametrize("text", [None, "{", "[]", '{"benchmarks": 3}'])
def test_a_broken_score_file_is_one_line(tmp_path, text):
  if text is not None:
    (tmp_path / "scores.json").write_text(text)
  with pytest.raises(ValueError, match="no score file") as caught:
    records.read_scores(tmp_path)
  assert "\n" not in str(caught.value)
