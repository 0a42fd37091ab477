"""The scorer's environment: made once, checked, remade, or one clear line."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from toolrl_jax.evaluation import bfcl_environment

_MAKE = (
  "import pathlib, sys;"
  "from toolrl_jax.evaluation import bfcl_environment as environment;"
  "print(environment.ensure(pathlib.Path(sys.argv[1])).python)"
)


def _package(folder):
  (found,) = (folder / "env").glob("lib/python*/site-packages/bfcl_eval")
  return found


def test_ensure_makes_once_for_two_at_a_time(tmp_path):
  folder = tmp_path / "bfcl"
  makers = [
    subprocess.Popen(
      [sys.executable, "-c", _MAKE, str(folder)],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for _ in range(2)
  ]
  ends = [maker.communicate() for maker in makers]
  assert [maker.returncode for maker in makers] == [0, 0], ends
  assert len({out for out, _ in ends}) == 1
  made = (folder / "ready.json").stat().st_mtime_ns

  # Sound: used as it is.
  found = bfcl_environment.ensure(folder)
  assert found.version == "2026.3.23"
  assert found.data_sha256 == bfcl_environment.DATA_SHA256
  assert (folder / "ready.json").stat().st_mtime_ns == made

  # A changed data file is noticed, and the environment made anew.
  changed = _package(folder) / "data" / "possible_answer"
  (changed / "BFCL_v4_multiple.json").write_text("{}\n")
  bfcl_environment.ensure(folder)
  assert (folder / "ready.json").stat().st_mtime_ns > made
  found = bfcl_environment.data_sha256(_package(folder))
  assert found == bfcl_environment.DATA_SHA256

  # So is a half-made one.
  (folder / "ready.json").write_text("{broken")
  shutil.rmtree(_package(folder))
  bfcl_environment.ensure(folder)
  ready = json.loads((folder / "ready.json").read_text())
  assert ready["python_version"].startswith("3.")


def test_ensure_without_network_gives_one_line(tmp_path, monkeypatch):
  monkeypatch.setenv("UV_OFFLINE", "1")
  monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
  # For pip, where there is no uv.
  monkeypatch.setenv("PIP_NO_INDEX", "1")
  with pytest.raises(bfcl_environment.BrokenEnvironment) as raised:
    bfcl_environment.ensure(tmp_path / "bfcl")
  text = str(raised.value)
  assert text.startswith("BFCL needs bfcl-eval 2026.3.23 in an environment")
  assert "network" in text and "\n" not in text


@pytest.mark.quick
def test_ensure_leaves_foreign_folders_alone(tmp_path):
  precious = tmp_path / "env" / "precious"
  precious.mkdir(parents=True)
  with pytest.raises(bfcl_environment.BrokenEnvironment, match="holds another"):
    bfcl_environment.ensure(tmp_path)
  assert precious.is_dir()
  file = tmp_path / "file"
  file.write_text("")
  with pytest.raises(bfcl_environment.BrokenEnvironment, match="got the file"):
    bfcl_environment.ensure(file)


@pytest.mark.quick
def test_default_folder_follows_xdg(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  assert bfcl_environment.default_folder() == (
    tmp_path / "toolrl_jax" / "bfcl-2026.3.23"
  )
  monkeypatch.delenv("XDG_CACHE_HOME")
  assert bfcl_environment.default_folder().is_relative_to(pathlib.Path.home())


@pytest.mark.quick
def test_data_sha256_sees_names_and_contents(tmp_path):
  data = tmp_path / "data"
  data.mkdir()
  (data / "a").write_text("1")
  first = bfcl_environment.data_sha256(tmp_path)
  (data / "a").write_text("2")
  second = bfcl_environment.data_sha256(tmp_path)
  (data / "a").rename(data / "b")
  assert len({first, second, bfcl_environment.data_sha256(tmp_path)}) == 3
