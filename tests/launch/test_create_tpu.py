"""A slice that is made, kept, waited for, renewed and deleted."""

import re

import pytest

_NAME = ["--name=toolrl", "--zone=us-west4-a"]
_TYPE = [*_NAME, "--accelerator_type=v5litepod-16"]
_NODE = (
  "'--format=value(state,acceleratorType.basename(),networkEndpoints.len())'"
)
_QUEUE = "'--format=value(state.state,state.failedData.error.message)'"
_WHERE = "toolrl --zone=us-west4-a"


def test_create_dry_run_prints_the_exact_commands(cloud):
  out, _ = cloud.run(
    "create_tpu.sh",
    *_TYPE,
    "--project=my-project",
    "--spot",
    "--create_flag=--network=a b",
    "--dry-run",
  )
  where = f"{_WHERE} --project=my-project"
  assert out.splitlines() == [
    f"gcloud compute tpus tpu-vm describe {where} {_NODE}",
    "# where nothing is there:",
    f"gcloud compute tpus tpu-vm create {where} --version=v2-alpha-tpuv5-lite"
    " --accelerator-type=v5litepod-16 --spot '--network=a b' --quiet",
  ]


def test_create_queued_dry_run_prints_the_exact_commands(cloud):
  flags = ["--queued", "--recreate", "--dry-run"]
  out, _ = cloud.run("create_tpu.sh", *_TYPE, *flags)
  queue = f"gcloud compute tpus queued-resources describe {_WHERE} {_QUEUE}"
  node = f"gcloud compute tpus tpu-vm describe {_WHERE} {_NODE}"
  assert out.splitlines() == [
    queue,
    node,
    "# where it failed or was preempted:",
    queue,
    "# where that is there:",
    f"gcloud compute tpus queued-resources delete {_WHERE} --force --quiet",
    node,
    "# where that is there:",
    f"gcloud compute tpus tpu-vm delete {_WHERE} --quiet",
    "# where nothing is there:",
    f"gcloud compute tpus queued-resources create {_WHERE} --node-id=toolrl"
    " --runtime-version=v2-alpha-tpuv5-lite --accelerator-type=v5litepod-16"
    " --quiet --async",
  ]


def test_create_leaves_zone_and_project_to_gcloud(cloud):
  cloud.run("create_tpu.sh", "--name=toolrl", "--accelerator_type=v6e-8")
  create = cloud.last("tpu-vm create")
  assert create[4] == "toolrl"
  assert not any(re.match("--(zone|project)", word) for word in create)


@pytest.mark.parametrize(
  ("accelerator", "runtime"),
  [
    ("v5litepod-16", "v2-alpha-tpuv5-lite"),
    ("v5p-8", "v2-alpha-tpuv5"),
    ("v6e-8", "v2-alpha-tpuv6e"),
    ("v4-8", "tpu-ubuntu2204-base"),
  ],
)
def test_create_knows_the_runtime_of_a_generation(cloud, accelerator, runtime):
  flags = [*_NAME, f"--accelerator_type={accelerator}"]
  out, _ = cloud.run("create_tpu.sh", *flags, "--dry-run")
  assert f"--version={runtime} " in out
  out, _ = cloud.run(
    "create_tpu.sh", *flags, "--runtime_version=mine-1.0", "--dry-run"
  )
  assert "--version=mine-1.0 " in out


@pytest.mark.parametrize(
  ("accelerator", "rule"),
  [
    ("v5e-16", "write v5litepod-16"),
    ("v9-8", "give --runtime_version"),
    ("v6e", "must be a TPU type and its size, got 'v6e'"),
    ("", "must be a TPU type"),
  ],
)
def test_create_refuses_other_accelerators(cloud, accelerator, rule):
  flag = f"--accelerator_type={accelerator}"
  assert rule in cloud.complaint("create_tpu.sh", *_NAME, flag)


def test_create_twice_keeps_what_is_ready(cloud):
  _, first = cloud.run("create_tpu.sh", *_TYPE)
  _, second = cloud.run("create_tpu.sh", *_TYPE, "--recreate")
  assert "toolrl is READY (v5litepod-16, workers: 1)\n" in first
  assert "workers: 1); kept as it is" in second
  assert cloud.count("tpu-vm create") == 1
  assert cloud.count("tpu-vm delete") == 0


def test_create_refuses_another_type_under_the_name(cloud):
  cloud.given()
  said = cloud.complaint("create_tpu.sh", *_NAME, "--accelerator_type=v6e-8")
  assert "must be a v6e-8, is a v5litepod-16" in said


@pytest.mark.parametrize(
  ("words", "status", "said"),
  [
    ("capacity", 75, "no capacity for v5litepod-16 now"),
    ("quota", 1, "https://cloud.google.com/tpu/docs/quota"),
    ("internal", 1, "an internal error"),
  ],
)
def test_create_tells_full_zones_from_errors(cloud, words, status, said):
  cloud.play(create=[words])
  _, lines = cloud.run("create_tpu.sh", *_TYPE, status=status)
  assert said in lines
  assert lines.count("\n") == 2
  assert cloud.count("tpu-vm create") == 1


def test_create_waits_for_one_that_somebody_else_makes(cloud):
  cloud.play(create=["exists"])
  cloud.run("create_tpu.sh", *_TYPE)
  cloud.given(node="CREATING")
  cloud.play(node=["CREATING", "CREATING", "READY"])
  cloud.run("create_tpu.sh", *_TYPE, "--poll_secs=0")
  assert cloud.count("tpu-vm create") == 1


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_create_renews_a_lost_slice_only_when_told(cloud, state):
  cloud.given(node=state)
  said = cloud.complaint("create_tpu.sh", *_TYPE, status=1)
  assert f"is {state}; add --recreate" in said
  assert cloud.calls() == ["tpu-vm describe"]
  cloud.run("create_tpu.sh", *_TYPE, "--recreate")
  assert cloud.count("tpu-vm delete") == cloud.count("tpu-vm create") == 1


def test_create_leaves_a_stopped_slice_alone(cloud):
  cloud.given(node="STOPPED")
  said = cloud.complaint("create_tpu.sh", *_TYPE, "--recreate", status=1)
  assert f"gcloud compute tpus tpu-vm start {_WHERE}" in said
  assert cloud.calls() == ["tpu-vm describe"]


def test_create_queued_waits_through_the_states(cloud):
  cloud.play(
    queue=["WAITING_FOR_RESOURCES"] * 3 + ["PROVISIONING", "ACTIVE"],
  )
  flags = ["--queued", "--spot", "--poll_secs=0"]
  _, said = cloud.run("create_tpu.sh", *_TYPE, *flags)
  assert said.count("WAITING_FOR_RESOURCES") == 1
  assert said.index("WAITING") < said.index("PROVISIONING")
  assert "toolrl is READY" in said
  create = cloud.last("queued-resources create")
  assert "--spot" in create
  assert "--node-id=toolrl" in create


def test_create_queued_stops_waiting_and_says_how_to_give_up(cloud):
  cloud.play(queue=["WAITING_FOR_RESOURCES"])
  flags = ["--queued", "--poll_secs=0", "--wait_secs=0"]
  _, said = cloud.run("create_tpu.sh", *_TYPE, *flags, status=75)
  assert "launch/delete_tpu.sh --name=toolrl --zone=us-west4-a gives up" in said
  # The same command goes on waiting for the same request.
  cloud.play(queue=["ACTIVE"])
  cloud.run("create_tpu.sh", *_TYPE, *flags)
  assert cloud.count("queued-resources create") == 1


@pytest.mark.parametrize(
  ("why", "status"),
  [("There is no more capacity in the zone", 75), ("Quota limit 0", 1)],
)
def test_create_queued_reads_why_a_request_failed(cloud, why, status):
  cloud.play(queue=["WAITING_FOR_RESOURCES", "FAILED"], why=why)
  flags = ["--queued", "--poll_secs=0"]
  _, said = cloud.run("create_tpu.sh", *_TYPE, *flags, status=status)
  assert why in said


def test_create_queued_renews_a_suspended_request_only_when_told(cloud):
  cloud.given(node="PREEMPTED", queue="SUSPENDED")
  flags = [*_TYPE, "--queued", "--poll_secs=0"]
  said = cloud.complaint("create_tpu.sh", *flags, status=1)
  assert "is SUSPENDED; add --recreate" in said
  cloud.play(queue=["SUSPENDED", "SUSPENDED", "ACTIVE"])
  cloud.run("create_tpu.sh", *flags, "--recreate")
  delete = cloud.last("queued-resources delete")
  assert delete[4:] == ["toolrl", "--zone=us-west4-a", "--force", "--quiet"]
  assert cloud.count("queued-resources create") == 1


def test_delete_takes_what_is_there_and_may_be_repeated(cloud):
  cloud.given(queue="ACTIVE")
  _, said = cloud.run("delete_tpu.sh", *_NAME)
  assert "toolrl is deleted" in said
  _, said = cloud.run("delete_tpu.sh", *_NAME)
  assert "nothing to delete" in said
  assert cloud.count("queued-resources delete") == 1
  cloud.given()
  cloud.run("delete_tpu.sh", *_NAME)
  assert cloud.count("tpu-vm delete") == 1


def test_status_says_what_is_there_and_what_the_workers_do(cloud):
  out, _ = cloud.run("status.sh", *_NAME)
  assert out == "toolrl: queued resource MISSING, TPU VM MISSING\n"
  cloud.given(queue="ACTIVE")
  cloud.play(workers=2)
  out, _ = cloud.run("status.sh", *_NAME)
  assert (
    "queued resource ACTIVE, TPU VM READY (v5litepod-16, workers: 2)" in out
  )
  cloud.run("run_on_tpu.sh", *_NAME, "--", "bash", "-c", "exit 4", status=4)
  out, _ = cloud.run("status.sh", *_NAME)
  assert sorted(out.splitlines())[:2] == [
    "t1v-n-0-w-0: ended with status 4, bash -c exit\\ 4 ",
    "t1v-n-0-w-1: ended with status 4, bash -c exit\\ 4 ",
  ]
