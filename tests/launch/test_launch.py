"""What holds for every launch script: lint, usage, mistakes, dry runs."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

_LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch"
_SCRIPTS = [
  "create_tpu.sh",
  "run_on_tpu.sh",
  "supervise.sh",
  "delete_tpu.sh",
  "status.sh",
]
_NAME = ["--name=toolrl", "--zone=us-west4-a"]
_TYPE = [*_NAME, "--accelerator_type=v5litepod-16"]


def _script(text) -> list[str]:
  return ["--", "bash", "-c", text]


def test_scripts_are_clean_for_shellcheck():
  shellcheck = shutil.which(
    "shellcheck", path=pathlib.Path(sys.executable).parent
  )
  assert shellcheck, "shellcheck is in the dev group: uv sync"
  scripts = sorted(map(str, _LAUNCH.glob("*.sh")))
  root = str(_LAUNCH.parent)
  found = subprocess.run(
    [shellcheck, "--external-sources", "--source-path", root, *scripts],
    capture_output=True,
    text=True,
    check=False,
  )
  assert found.returncode == 0, found.stdout


def test_scripts_need_no_newer_bash_than_macos_has():
  for path in _LAUNCH.glob("*.sh"):
    newer = r"declare -A|local -[An]|mapfile|readarray|wait -n|\$\{\w+[,^@]"
    assert not re.search(newer, path.read_text()), path


@pytest.mark.parametrize("script", _SCRIPTS)
def test_usage_is_shown_on_help_and_on_no_arguments(cloud, script):
  out, said = cloud.run(script, "--help")
  assert f"launch/{script} --name=NAME" in out
  assert "--dry-run" in out
  assert said == ""
  out, said = cloud.run(script, status=2)
  assert out == ""
  assert f"launch/{script} --name=NAME" in said


@pytest.mark.parametrize("script", _SCRIPTS)
@pytest.mark.parametrize(
  ("flag", "rule"),
  [
    ("--name=Tool_RL", "--name must be 1 to 63 lowercase"),
    ("--name=a$(id)", "--name must be"),
    ("--name=", "--name must be"),
    ("--name", "--name needs a value"),
    ("--zone=us west4", "--zone must be a zone, got 'us west4'"),
    ("--project=x;y", "--project must be a project id, got 'x;y'"),
    ("--nmae=x", "no flag is called '--nmae'"),
    ("--dry-run=yes", "--dry_run takes no value"),
    ("name", "arguments are flags, got 'name'"),
  ],
)
def test_mistakes_in_flags_are_one_line(cloud, script, flag, rule):
  needed = ["--name=toolrl"]
  if script in ("create_tpu.sh", "supervise.sh"):
    needed.append("--accelerator_type=v6e-8")
  command = [] if script in _SCRIPTS[3:] else _script("true")
  command = [] if script == "create_tpu.sh" else command
  assert rule in cloud.complaint(script, *needed, flag, *command)
  assert cloud.calls() == []


@pytest.mark.parametrize("script", _SCRIPTS)
def test_a_missing_gcloud_is_one_line(cloud, script, tmp_path):
  programs = tmp_path / "none"
  programs.mkdir()
  for name in ["bash", "dirname", "env"]:
    (programs / name).symlink_to(shutil.which(name))
  cloud.environment = cloud.environment | {"PATH": str(programs)}
  command = [] if script == "create_tpu.sh" else _script("true")
  flags = _TYPE if script in ("create_tpu.sh", "supervise.sh") else _NAME
  said = cloud.complaint(script, *flags, *command, status=1)
  assert "gcloud must be installed" in said


@pytest.mark.parametrize("script", _SCRIPTS)
def test_a_dry_run_calls_nothing(cloud, script):
  command = [] if script == "create_tpu.sh" else ["--", "a"]
  flags = [*_TYPE, "--allow_local_workdir"] if script == "supervise.sh" else []
  flags = flags or (_TYPE if script == "create_tpu.sh" else _NAME)
  out, said = cloud.run(script, *flags, "--dry-run", *command)
  assert said == ""
  assert all(
    re.match("gcloud compute tpus|# ", line) for line in out.splitlines()
  )
  assert cloud.calls() == []
  assert not (cloud.checkout / "dist" / "launch-toolrl.tar.gz").exists()
