"""A command on all workers: its words, code, environment, log and status."""

import re
import shlex
import signal

import pytest

_NAME = ["--name=toolrl", "--zone=us-west4-a"]
_NODE = (
  "'--format=value(state,acceleratorType.basename(),networkEndpoints.len())'"
)
_WHERE = "toolrl --zone=us-west4-a"


def _script(text) -> list[str]:
  return ["--", "bash", "-c", text]


def test_run_dry_run_prints_the_exact_commands(cloud):
  command = ["toolrl-train", "--config.x=('bfcl',)"]
  out, _ = cloud.run("run_on_tpu.sh", *_NAME, "--dry-run", "--", *command)
  out = re.sub(r"start \d{8}T\d{6}Z-\d+", "start ID", out)
  archive = cloud.checkout / "dist" / "launch-toolrl.tar.gz"
  alive = "--ssh-flag=-oServerAliveInterval=30"
  ssh = f"gcloud compute tpus tpu-vm ssh {_WHERE} --quiet"
  assert [shlex.split(line) for line in out.splitlines() if line[0] != "#"] == [
    shlex.split(f"gcloud compute tpus tpu-vm describe {_WHERE} {_NODE}"),
    shlex.split(
      f"gcloud compute tpus tpu-vm scp {archive} toolrl:toolrl_jax.tar.gz"
      " --zone=us-west4-a --quiet --worker=all"
      " --scp-flag=-oServerAliveInterval=30"
    ),
    [
      *shlex.split(f"{ssh} --worker=all {alive}"),
      "--command=tar -xzOf toolrl_jax.tar.gz launch/worker.sh"
      " >toolrl_worker.sh && bash toolrl_worker.sh start ID --"
      " toolrl-train " + shlex.quote(command[1]),
    ],
    [
      *shlex.split(f"{ssh} --worker=0 {alive}"),
      "--command=bash toolrl_worker.sh follow",
    ],
    [
      *shlex.split(f"{ssh} --worker=all {alive}"),
      "--command=bash toolrl_worker.sh wait",
    ],
  ]


def test_run_passes_every_word_unchanged(cloud):
  cloud.given()
  words = [
    "--config.benchmark.names=('bfcl',)",
    "two  words",
    'say "hi"',
    "it's",
    "$HOME `id` $(id) \\ * ~ & ; | < > ! # % ^",
    "",
    "a\nb",
    "umlaut-ä",
    "-n",
  ]
  program = "import sys; print(sys.argv[1:])"
  out, _ = cloud.run(
    "run_on_tpu.sh", *_NAME, "--", "python3", "-c", program, *words
  )
  assert out == f"{words}\n"


def test_run_brings_the_files_git_tracks_or_would_track(cloud):
  cloud.given()
  cloud.play(workers=2)
  cloud.run("run_on_tpu.sh", *_NAME, *_script("true"))
  for worker in (0, 1):
    code = cloud.worker(worker) / "toolrl_jax"
    names = {path.name for path in code.iterdir()}
    assert names == {
      "launch",
      ".gitignore",
      "tracked.py",
      "two words.txt",
      "untracked.py",
    }
    assert (code / "two words.txt").read_text() == "two words.txt"
  # What went away here goes away there; the environment stays.
  code = cloud.worker(0) / "toolrl_jax"
  (code / "old.py").write_text("")
  (code / ".venv").mkdir()
  cloud.run("run_on_tpu.sh", *_NAME, *_script("true"))
  assert not (code / "old.py").exists()
  assert (code / ".venv").is_dir()


def test_run_installs_uv_once_and_the_environment_of_the_tpu(cloud):
  cloud.given()
  cloud.play(workers=2)
  (cloud.programs / "uv").unlink()
  cloud.program(
    "python3",
    'echo "$*" >>"$HOME/pip.txt"; mkdir -p "$HOME/.local/bin"\n'
    'printf \'#!/bin/bash\\necho "$*" >>"$HOME/uv.txt"\\n\' '
    '>"$HOME/.local/bin/uv"; chmod +x "$HOME/.local/bin/uv"',
  )
  for _ in range(2):
    cloud.run("run_on_tpu.sh", *_NAME, *_script("true"))
  home = cloud.worker(1)
  assert (home / "pip.txt").read_text() == "-m pip install --quiet --user uv\n"
  sync = "sync --quiet --no-dev --extra tpu\n"
  assert (home / "uv.txt").read_text() == 2 * sync


def test_run_ends_when_the_environment_does_not_install(cloud):
  cloud.given()
  cloud.program("uv", "echo 'no space left' >&2; exit 2")
  cloud.program("sleep", "true")
  _, said = cloud.run("run_on_tpu.sh", *_NAME, *_script("true"), status=1)
  assert "the environment must install" in said
  assert "no space left" in said
  assert "SSH" not in said


def test_run_shows_one_log_and_keeps_the_others(cloud):
  cloud.given()
  cloud.play(workers=2)
  text = 'echo "I am $PLAY_WORKER"; echo loud >&2'
  for flags, shown in [([], "0"), (["--log_worker=1"], "1")]:
    out, _ = cloud.run("run_on_tpu.sh", *_NAME, *flags, *_script(text))
    assert out == f"I am {shown}\nloud\n"
  logs = list(cloud.worker(1).glob("toolrl_runs/*/log"))
  assert [log.read_text() for log in logs] == ["I am 1\nloud\n"] * 2
  said = cloud.complaint(
    "run_on_tpu.sh", *_NAME, "--log_worker=2", *_script(text)
  )
  assert "--log_worker must be below 2, got 2" in said


def test_run_uses_the_environment_in_the_checkout(cloud):
  cloud.given()
  (cloud.worker(0) / "toolrl_jax" / ".venv" / "bin").mkdir(parents=True)
  out, _ = cloud.run("run_on_tpu.sh", *_NAME, *_script('pwd; echo "$PATH"'))
  code = cloud.worker(0) / "toolrl_jax"
  assert out.startswith(f"{code}\n{code}/.venv/bin:")


@pytest.mark.parametrize(
  ("statuses", "expected"),
  [
    ([0, 3, 0], 3),
    ([75, 0, 75], 75),
    ([75, 75, 1], 1),
    ([0, 75, 2], 2),
    ([255, 0, 0], 254),
  ],
)
def test_run_ends_with_the_commands_status(cloud, statuses, expected):
  cloud.given()
  cloud.play(workers=3)
  text = f"set -- {' '.join(map(str, statuses))}; shift $PLAY_WORKER; exit $1"
  _, said = cloud.run("run_on_tpu.sh", *_NAME, *_script(text), status=expected)
  for worker, status in enumerate(statuses):
    reported = f"t1v-n-0-w-{worker}: exit status {min(status, 254)}\n"
    assert (reported in said) == (status != 0)
    assert (f"--worker={worker} " in said) == (status != 0)


def test_run_kills_workers_that_hang_after_one_failed(cloud):
  cloud.given()
  cloud.play(workers=2)
  text = "((PLAY_WORKER)) && exit 9; exec sleep 60"
  flags = [*_NAME, "--straggler_secs=0"]
  _, said = cloud.run("run_on_tpu.sh", *flags, *_script(text), status=9)
  assert "killing the others" in said
  assert "w-0: exit status 137" in said


def test_run_starts_once_when_gcloud_repeats_its_calls(cloud):
  cloud.given()
  cloud.play(workers=2, start=["twice"], wait=["twice"])
  text = "echo once >>../ran; sleep 0.3; exit 5"
  cloud.run("run_on_tpu.sh", *_NAME, *_script(text), status=5)
  assert (cloud.worker(0) / "ran").read_text() == "once\n"
  assert (cloud.worker(1) / "ran").read_text() == "once\n"


def test_run_follows_the_same_command_after_a_lost_connection(cloud):
  cloud.given()
  cloud.play(workers=2, wait=["lost", "ok"])
  text = "echo once >>../ran; until [[ -e ../go ]]; do sleep 0.1; done; exit 6"
  _, said = cloud.run("run_on_tpu.sh", *_NAME, *_script(text), status=255)
  assert "the same command follows it again" in said
  other = cloud.run("run_on_tpu.sh", *_NAME, *_script("true"), status=2)
  assert "one command at a time" in other[1]
  again = cloud.start("run_on_tpu.sh", *_NAME, *_script(text))
  cloud.until_followed(2)
  for worker in (0, 1):
    (cloud.worker(worker) / "go").touch()
  _, said = again.communicate(timeout=60)
  assert again.returncode == 6
  assert (cloud.worker(1) / "ran").read_text() == "once\n"


def test_run_interrupted_leaves_the_command_and_stop_ends_it(cloud):
  cloud.given()
  cloud.play(workers=2)
  text = (
    "trap 'echo saved; exit 75' TERM; touch ../up; while :; do sleep 0.1; done"
  )
  first = cloud.start("run_on_tpu.sh", *_NAME, *_script(text))
  cloud.until_file("worker_0/up", "worker_1/up")
  cloud.until_followed(1)
  first.send_signal(signal.SIGTERM)
  _, said = first.communicate(timeout=30)
  assert first.returncode == 143
  assert "toolrl runs the command on" in said
  assert "--name=toolrl --zone=us-west4-a --stop" in said
  second = cloud.start("run_on_tpu.sh", *_NAME, *_script(text))
  cloud.until_followed(2)
  out, _ = cloud.run("run_on_tpu.sh", *_NAME, "--stop")
  assert out.count("sent SIGTERM") == 2
  out, _ = second.communicate(timeout=60)
  assert second.returncode == 75
  assert out.endswith("saved\n")


def test_run_needs_a_ready_slice_and_a_command(cloud):
  said = cloud.complaint("run_on_tpu.sh", *_NAME, *_script("true"), status=255)
  assert "toolrl must be READY to run on, is MISSING" in said
  assert "a command must follow --" in cloud.complaint("run_on_tpu.sh", *_NAME)


@pytest.mark.parametrize("call", ["scp", "start"])
def test_run_says_that_workers_are_out_of_reach(cloud, call):
  cloud.given()
  cloud.play(**{call: ["lost"]})
  _, said = cloud.run("run_on_tpu.sh", *_NAME, *_script("true"), status=255)
  assert "launch/status.sh --name=toolrl" in said
  assert "Using ssh" not in said
