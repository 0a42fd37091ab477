"""Tests of colab/runtime.py: the first cell of every notebook."""

import os
import pathlib
import runpy
import shutil
import subprocess
import sys

import notebook_runs
import pytest

# Stands for uv, which would change the environment of the tests: notes the
# folder and the arguments, then does what $FAKE_UV says.
_UV = """#!/bin/sh
echo "$PWD" >> "$UV_LOG"
echo "$@" >> "$UV_LOG"
eval "$FAKE_UV"
"""


@pytest.fixture
def run_cell(tmp_path):
  """Runs the first cell in a folder of its own, with uv replaced."""
  log = tmp_path / "uv.log"
  uv = tmp_path / "bin" / "uv"
  uv.parent.mkdir()
  uv.write_text(_UV)
  uv.chmod(0o755)

  def run(source="", cwd=None, fake_uv="", **environment):
    cwd = cwd or tmp_path / "content"
    cwd.mkdir(exist_ok=True)
    cell = notebook_runs.code(notebook_runs.read("quickstart"))[0]
    cell = cell.replace('SOURCE = ""', f"SOURCE = {str(source)!r}")
    done = subprocess.run(
      [sys.executable, "-c", f"{cell}\nprint('at', CHECKOUT)"],
      cwd=cwd,
      env=os.environ
      | {
        "PATH": f"{uv.parent}:{os.environ['PATH']}",
        "UV_LOG": str(log),
        "FAKE_UV": fake_uv,
        **environment,
      },
      capture_output=True,
      text=True,
      check=False,
    )
    return done, log.read_text().splitlines() if log.exists() else []

  return run


@pytest.fixture
def repository(tmp_path, root_dir) -> pathlib.Path:
  """What of the checkout the first cell needs, as a git repository."""
  folder = tmp_path / "toolrl_jax-main"
  (folder / "colab").mkdir(parents=True)
  shutil.copy(root_dir / "colab" / "runtime.py", folder / "colab")
  shutil.copy(root_dir / "pyproject.toml", folder)
  git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
  for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
    subprocess.run([*git, *arguments], cwd=folder, check=True)
  return folder


def test_first_cell_in_a_checkout_installs_nothing(run_cell, root_dir):
  done, asked_of_uv = run_cell(cwd=root_dir / "colab")
  assert done.stdout.splitlines()[-1] == f"at {root_dir}", done.stderr
  assert asked_of_uv == []
  done, asked_of_uv = run_cell(cwd=root_dir)
  assert done.stdout.splitlines()[-1] == f"at {root_dir}", done.stderr
  assert asked_of_uv == []


def test_first_cell_installs_from_a_repository(run_cell, repository, tmp_path):
  done, asked_of_uv = run_cell(repository)
  checkout = tmp_path / "content" / "toolrl_source"
  assert done.stdout.splitlines()[-1] == f"at {checkout}", done.stderr
  # In the checkout, whose pyproject.toml holds the overrides.
  assert asked_of_uv[0] == str(checkout)
  assert asked_of_uv[1] == f"pip install --python {sys.executable} -e ."
  # The cell runs again after a restart.
  done, _ = run_cell(repository)
  assert done.stdout.splitlines()[-1] == f"at {checkout}", done.stderr


def test_first_cell_installs_from_a_zip(run_cell, repository, tmp_path):
  zipped = shutil.make_archive(
    str(tmp_path / "toolrl"), "zip", tmp_path, repository.name
  )
  done, asked_of_uv = run_cell(zipped)
  checkout = tmp_path / "content" / "toolrl_source" / "toolrl_jax-main"
  assert done.stdout.splitlines()[-1] == f"at {checkout}", done.stderr
  assert asked_of_uv[0] == str(checkout)


def test_first_cell_takes_the_right_address_after_a_wrong_one(
  run_cell, repository, tmp_path
):
  for wrong in (tmp_path / "nowhere", tmp_path):
    done, _ = run_cell(wrong)
    assert "there is no toolrl_jax in" in done.stderr
    assert "fatal: " in done.stderr  # What git says of it.
  # What a clone that broke off leaves.
  (tmp_path / "content" / "toolrl_source" / ".git").mkdir(parents=True)
  done, _ = run_cell(f" {repository} ")
  checkout = tmp_path / "content" / "toolrl_source"
  assert done.stdout.splitlines()[-1] == f"at {checkout}", done.stderr


def test_first_cell_says_why_the_installation_failed(run_cell, repository):
  done, _ = run_cell(repository, fake_uv="echo no room on disk; exit 1")
  assert done.returncode == 1
  assert done.stderr.splitlines()[-1] == "no room on disk"
  assert "Traceback" not in done.stderr


def test_first_cell_asks_for_a_restart_where_modules_were_replaced(
  run_cell, repository, tmp_path
):
  packages = tmp_path / "packages"
  record = packages / "loaded-1.0.dist-info"
  record.mkdir(parents=True)
  # Loaded at the start of Python, as notebook services do with some packages.
  (packages / "sitecustomize.py").write_text("import loaded")
  (packages / "loaded.py").write_text("")
  (record / "METADATA").write_text("Name: loaded\nVersion: 1.0\n")
  (record / "top_level.txt").write_text("loaded\n")
  (record / "RECORD").write_text("")
  replace = (
    f"mv {record} {packages}/loaded-2.0.dist-info; printf "
    f"'Name: loaded\\nVersion: 2.0\\n' > {packages}/loaded-2.0.dist-info/METADATA"
  )
  done, _ = run_cell(repository, fake_uv=replace, PYTHONPATH=str(packages))
  assert done.returncode == 1
  assert "loaded had been loaded in an older version" in done.stderr
  assert "Restart session" in done.stderr


@pytest.mark.parametrize(
  ("devices", "has_gpu", "extra"),
  [
    ({}, False, ""),
    ({"0": ("0x1ae0", "0x020000"), "1": ("0x1ae0", "0x010802")}, False, ""),
    ({"0": ("0x10de", "0x030200")}, True, "gpu"),
    ({"0": ("0x1ae0", "0x020000"), "1": ("0x1ae0", "0x120000")}, True, "tpu"),
  ],
)
def test_accelerator_is_read_from_what_the_machine_has(
  devices, has_gpu, extra, tmp_path, root_dir
):
  for name, (vendor, kind) in devices.items():
    (tmp_path / "pci" / name).mkdir(parents=True)
    (tmp_path / "pci" / name / "vendor").write_text(f"{vendor}\n")
    (tmp_path / "pci" / name / "class").write_text(f"{kind}\n")
  if has_gpu:
    (tmp_path / "nvidia0").touch()
  runtime = runpy.run_path(str(root_dir / "colab" / "runtime.py"))
  found = runtime["accelerator_extra"](tmp_path / "pci", tmp_path / "nvidia0")
  assert found == extra


@pytest.mark.slow
def test_installation_leaves_tensorflow_out(root_dir, tmp_path):
  """Asks the real uv what it would install, in the folder it runs in."""
  environment = tmp_path / "environment"
  subprocess.run(
    [sys.executable, "-m", "venv", "--without-pip", environment], check=True
  )
  for extra in (".", ".[gpu]", ".[tpu]"):
    done = subprocess.run(
      ["uv", "pip", "install", "--dry-run", "--python",
       environment / "bin" / "python", "-e", extra],
      cwd=root_dir, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = [
      line.split("==")[0].strip(" +") for line in done.stderr.split("\n")
    ]
    assert "jax" in names
    assert not {"tensorflow", "seqio"} & set(names)
