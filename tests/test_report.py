"""The command toolrl-report."""

import os

import pytest

from toolrl_jax import report
from toolrl_jax.reporting import settings


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("run")
  (folder / "metrics.jsonl").write_text('{"step": 1, "reward/total": 2.5}\n')
  return folder


def _fails(capsys, *argv) -> str:
  with pytest.raises(SystemExit) as caught:
    report.run([str(one) for one in argv])
  assert caught.value.code == 2
  said = capsys.readouterr().err
  assert said.startswith("toolrl-report: ")
  assert said.count("\n") == 1
  return said


def test_report_is_written_beside_the_run(run_folder, capsys):
  report.run([str(run_folder)])
  path = run_folder / "report.html"
  assert capsys.readouterr().out == (
    f"{path}, {path.stat().st_size / 1e6:.1f} MB\n"
  )
  text = path.read_text()
  assert text.startswith("<!doctype html>")
  assert text.rstrip().endswith("</html>")
  assert "config.json is missing." in text
  assert not list(run_folder.glob(".*"))


def test_report_goes_where_it_is_told(run_folder, tmp_path):
  out = tmp_path / "page.html"
  tiny = settings.RECIPES / "tiny.py"
  report.run([str(run_folder), f"--out={out}", f"--recipe={tiny}"])
  assert out.stat().st_size < 8e6


@pytest.mark.parametrize(
  ("argv", "said"),
  [
    ([], "required: WORKDIR"),
    (["{run}/missing"], "there is no folder"),
    (["{empty}"], "has none of config.json"),
    (["{run}", "{run}"], "given twice"),
    (["{run}", "--out={empty}/no/where.html"], "in a folder that is there"),
    (["{run}", "--out={empty}"], "--out must be a file"),
    (["{run}", "--out={empty}/pipe"], "--out must be a file"),
    (["{run}", "--out={run}/metrics.jsonl"], "is no page"),
    (["~no_such_user/run"], "home directory"),
    (["{run}", "--recipe={run}/none.py"], "cannot be read"),
    (["{run}", "--speed=9"], "unrecognized arguments"),
  ],
)
def test_mistakes_are_one_line(run_folder, tmp_path, capsys, argv, said):
  os.mkfifo(tmp_path / "pipe")  # A page renamed over it would take it away.
  names = {"run": run_folder, "empty": tmp_path}
  assert said in _fails(capsys, *(one.format(**names) for one in argv))


def test_help_tells_what_the_page_holds(capsys):
  with pytest.raises(SystemExit) as caught:
    report.run(["--help"])
  assert caught.value.code == 0
  said = capsys.readouterr().out
  for word in ("WORKDIR", "--out", "--recipe", "status 2", "no network"):
    assert word in said


def test_a_refused_page_leaves_nothing(run_folder, tmp_path, capsys):
  target = tmp_path / "folder"
  target.mkdir()
  _fails(capsys, str(run_folder), f"--out={target}")
  assert [path.name for path in tmp_path.glob("*") if path.is_file()] == []
