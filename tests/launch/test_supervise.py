"""Capacity, preemption, failure and interrupts around one command."""

import signal

import pytest

_NAME = ["--name=toolrl", "--zone=us-west4-a"]
_TYPE = [*_NAME, "--accelerator_type=v5litepod-16"]
_QUICK = ["--first_wait=0", "--poll_secs=1", "--grace_secs=0"]


def _supervised(*command) -> list[str]:
  return [*_TYPE, "--spot", *_QUICK, *command]


def _resuming(text) -> list[str]:
  """A command that knows whether it ran before; its workdir is elsewhere."""
  return ["--", "bash", "-c", text, "toolrl-train", "--workdir=gs://b/run"]


def test_supervise_creates_runs_and_stops_on_success(cloud):
  out, said = cloud.run("supervise.sh", *_supervised(*_resuming("echo hello")))
  assert out == "hello\n"
  assert "the command is done" in said
  assert "cost money; delete it with launch/delete_tpu.sh --name=toolrl" in said
  assert cloud.count("tpu-vm create") == 1
  assert cloud.count("tpu-vm delete") == 0


def test_supervise_waits_for_capacity_with_doubling_waits(cloud, tmp_path):
  cloud.play(create=["capacity"] * 4 + ["ok"])
  # The waits are written down instead of waited for.
  slept = tmp_path / "slept"
  cloud.replace_sleep(f'echo "$1" >>"{slept}"')
  flags = ["--first_wait=10", "--max_wait=35"]
  _, said = cloud.run("supervise.sh", *_supervised(*flags, *_resuming("true")))
  waits = [line for line in slept.read_text().split() if "." not in line]
  assert waits == ["10", "20", "35", "35"]
  assert "no capacity, try 1 of 50; again in 10 s" in said
  assert cloud.count("tpu-vm create") == 5


def test_supervise_gives_up_when_no_capacity_comes(cloud):
  cloud.play(create=["capacity"])
  flags = ["--max_attempts=3"]
  command = _resuming("true")
  _, said = cloud.run("supervise.sh", *_supervised(*flags, *command), status=1)
  assert "--max_attempts=3" in said
  assert cloud.count("tpu-vm create") == 3
  assert cloud.count("tpu-vm ssh") == 0


def test_supervise_does_not_repeat_a_refused_request(cloud):
  cloud.play(create=["quota"])
  cloud.run("supervise.sh", *_supervised(*_resuming("true")), status=1)
  assert cloud.count("tpu-vm create") == 1


@pytest.mark.parametrize("how", ["gone", "hang"])
def test_supervise_starts_anew_after_a_preemption(cloud, how):
  cloud.play(wait=[how, "ok"])
  command = _resuming('echo "$1"')
  out, said = cloud.run("supervise.sh", *_supervised(*command))
  assert "toolrl is gone" in said
  assert "restart 1 of 100" in said
  assert out.endswith("--workdir=gs://b/run\n")
  assert cloud.count("tpu-vm create") == 2
  assert cloud.count("tpu-vm delete") == 1


def test_supervise_starts_anew_after_a_crash_by_a_lost_worker(cloud):
  # Worker 1 vanishes, worker 0 aborts, as JAX does where a peer is missing.
  cloud.play(workers=2, wait=["halfgone", "ok"])
  text = "[[ -e ../../second ]] && exit; ((PLAY_WORKER)) && sleep 60;"
  text += " touch ../../second; exit 134"
  # It does not look at the slice while the command runs.
  command = ["--poll_secs=60", *_resuming(text)]
  _, said = cloud.run("supervise.sh", *_supervised(*command))
  assert "w-0: exit status 134" in said
  assert "restart 1 of 100" in said
  assert cloud.count("tpu-vm create") == 2


def test_supervise_queued_makes_a_new_request_after_a_preemption(cloud):
  cloud.play(wait=["gone", "ok"])
  command = ["--queued", *_resuming("true")]
  cloud.run("supervise.sh", *_supervised(*command))
  assert cloud.count("queued-resources create") == 2
  assert cloud.count("queued-resources delete") == 1


def test_supervise_runs_again_after_status_75_on_a_slice_that_stays(cloud):
  text = "[[ -e ../second ]] && exit; touch ../second; exit 75"
  _, said = cloud.run("supervise.sh", *_supervised(*_resuming(text)))
  assert "told to stop, and toolrl is there" in said
  assert cloud.count("tpu-vm create") == 1


def test_supervise_follows_again_after_a_broken_connection(cloud):
  cloud.play(wait=["lost", "ok"])
  text = "echo once >>../ran; until [[ -e ../go ]]; do sleep 0.1; done"
  process = cloud.start("supervise.sh", *_supervised(*_resuming(text)))
  cloud.until_followed(2)
  (cloud.worker(0) / "go").touch()
  _, said = process.communicate(timeout=60)
  assert process.returncode == 0
  assert "the connection broke, and toolrl is there" in said
  assert cloud.count("tpu-vm create") == 1
  assert (cloud.worker(0) / "ran").read_text() == "once\n"


@pytest.mark.parametrize("status", [1, 2, 134])
def test_supervise_stops_on_a_failure_that_is_no_preemption(cloud, status):
  command = _resuming(f"echo ran >>../ran; exit {status}")
  _, said = cloud.run("supervise.sh", *_supervised(*command), status=status)
  assert (cloud.worker(0) / "ran").read_text() == "ran\n"
  assert "see its message above" in said
  assert "restart" not in said


def test_supervise_never_repeats_a_mistake_even_on_a_lost_slice(cloud):
  cloud.play(workers=2, wait=["halfgone"])
  text = "((PLAY_WORKER)) && sleep 60; exit 2"
  command = ["--poll_secs=60", *_resuming(text)]
  cloud.run("supervise.sh", *_supervised(*command), status=2)
  assert cloud.count("tpu-vm create") == 1


def test_supervise_waits_for_the_cloud_to_know_of_a_preemption(cloud):
  # Created, run, and READY at two more looks before it says PREEMPTED.
  text = "[[ -e ../../second ]] && exit; touch ../../second; exit 134"
  flags = ["--poll_secs=1", "--grace_secs=30"]
  cloud.play(workers=1, node=["READY"] * 4 + ["PREEMPTED"] * 3 + ["READY"])
  _, said = cloud.run("supervise.sh", *_supervised(*flags, *_resuming(text)))
  assert "is gone; was preempted" in said
  assert cloud.count("tpu-vm create") == 2


def test_supervise_counts_its_restarts(cloud):
  cloud.play(wait=["gone"])
  command = ["--max_restarts=2", *_resuming("sleep 60")]
  _, said = cloud.run("supervise.sh", *_supervised(*command), status=1)
  assert "--max_restarts=2 restarts" in said
  assert cloud.count("tpu-vm create") == 3


@pytest.mark.parametrize("status", [0, 1])
def test_supervise_deletes_at_the_end_only_when_told(cloud, status):
  command = _resuming(f"exit {status}")
  flags = ["--delete_when_done"]
  arguments = _supervised(*flags, *command)
  _, said = cloud.run("supervise.sh", *arguments, status=status)
  assert "toolrl is deleted" in said
  assert cloud.count("tpu-vm delete") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_supervise_interrupted_says_what_costs_money(cloud, number):
  command = ["--delete_when_done", *_resuming("touch ../up; sleep 60")]
  process = cloud.start("supervise.sh", *_supervised(*command))
  cloud.until_file("worker_0/up")
  process.send_signal(number)
  _, said = process.communicate(timeout=30)
  assert process.returncode == 128 + number
  assert "may still be there and cost money" in said
  assert "launch/delete_tpu.sh --name=toolrl --zone=us-west4-a" in said
  assert cloud.count("tpu-vm delete") == 0


@pytest.mark.parametrize(
  "words", [["--workdir=/data/run"], ["--workdir", "run"], []]
)
def test_supervise_refuses_a_workdir_that_a_preemption_deletes(cloud, words):
  command = ["--", "true", *words]
  said = cloud.complaint("supervise.sh", *_supervised(*command))
  assert "must be gs://BUCKET/..." in said
  assert cloud.calls() == []
  cloud.run("supervise.sh", *_supervised("--allow_local_workdir", *command))


def test_supervise_takes_the_workdir_in_two_words(cloud):
  command = ["--", "true", "--workdir", "gs://b/run"]
  cloud.run("supervise.sh", *_supervised(*command))


def test_supervise_hands_its_flags_on(cloud):
  cloud.play(workers=2)
  flags = [
    "--runtime_version=mine",
    "--create_flag=--network=n",
    "--create_flag=--labels=a=b c",
    "--connect_flag=--internal-ip",
    "--log_worker=1",
  ]
  cloud.run("supervise.sh", *_supervised(*flags, *_resuming("true")))
  create = cloud.last("tpu-vm create")
  for flag in ["--version=mine", "--network=n", "--labels=a=b c", "--spot"]:
    assert flag in create
  assert "--internal-ip" in cloud.last("tpu-vm scp")
  assert "--internal-ip" in cloud.last("tpu-vm ssh")
