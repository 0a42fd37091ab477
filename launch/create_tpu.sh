#!/usr/bin/env bash
# Creates a TPU slice and waits until it is READY.
#
#   launch/create_tpu.sh --name=NAME --accelerator_type=v5litepod-16 --spot \
#     [--queued] [--zone=ZONE] [--project=PROJECT]
#
#   --name      1 to 63 lowercase letters, digits and dashes
#   --accelerator_type   v5litepod-16, v6e-8, v5p-8, ...
#   --spot      may be preempted, costs less; default: on demand
#   --queued    ask through a queued resource, which waits for capacity;
#               default: ask once, now
#   --recreate  delete one that failed or was preempted, and make it anew
#   --zone      default: compute/zone of gcloud's configuration
#   --project   default: core/project of gcloud's configuration
#   --runtime_version   default: by generation, for JAX
#   --create_flag=FLAG  given to gcloud's create as it is, such as
#               --create_flag=--network=mine; may be repeated
#   --poll_secs=30      between two looks at it
#   --wait_secs=86400   the longest wait in the queue
#   --dry-run   print the gcloud commands, run nothing
#
# Safe to repeat: one that is READY is kept, one that is on its way is waited
# for. Status: 0 READY, 75 no capacity now (the same command may get it
# later), 2 a mistake in the flags, 1 anything else.

set -euo pipefail
# shellcheck source=launch/tpu.sh
source "$(dirname "$0")/tpu.sh"

accelerator_type="" runtime_version="" spot="" queued="" recreate=""
poll_secs=30 wait_secs=86400
create_flag=()
readonly NO_CAPACITY=75

# What https://cloud.google.com/tpu/docs/runtimes names for JAX.
choose_runtime() {
  case $accelerator_type in
    v6e-*) runtime_version=v2-alpha-tpuv6e ;;
    v5p-*) runtime_version=v2-alpha-tpuv5 ;;
    v5litepod-*) runtime_version=v2-alpha-tpuv5-lite ;;
    v[234]-*) runtime_version=tpu-ubuntu2204-base ;;
    v5e-*)
      mistake "--accelerator_type of v5e is v5litepod, got" \
        "'$accelerator_type'; write v5litepod-${accelerator_type#*-}"
      ;;
    *)
      mistake "--runtime_version is known for v2, v3, v4, v5litepod, v5p and" \
        "v6e, got '$accelerator_type'; give --runtime_version"
      ;;
  esac
}

# True where gcloud's words mean that the zone is full, not that the request
# is wrong. A quota does not come back by waiting, except the one of requests
# a minute.
is_capacity() {
  case $1 in
    *"per minute"*) return 0 ;;
    *[Qq]uota*) return 1 ;;
    *"no more capacity"* | *nsufficient*capacity* | *UNAVAILABLE*) return 0 ;;
    *RESOURCE_EXHAUSTED* | *tockout* | *"urrently unavailable"*) return 0 ;;
    *) return 1 ;;
  esac
}

# Ends the script on a request that was refused or came to nothing.
refused() {
  if is_capacity "$1"; then
    say "no capacity for $accelerator_type now, gcloud says '$1';" \
      "try later or in another zone"
    exit "$NO_CAPACITY"
  fi
  fail "gcloud must accept the request for $name, got '$1'; for a quota see" \
    "https://cloud.google.com/tpu/docs/quota"
}

request() {
  local what=("--accelerator-type=$accelerator_type")
  [[ ! $spot ]] || what+=(--spot)
  what+=(${create_flag[@]+"${create_flag[@]}"} --quiet)
  if [[ $queued ]]; then
    what=(queued-resources create "${target[@]}" "--node-id=$name"
      "--runtime-version=$runtime_version" "${what[@]}" --async)
  else
    what=(tpu-vm create "${target[@]}" "--version=$runtime_version"
      "${what[@]}")
  fi
  say "asking for $name, a $accelerator_type ${spot:+(spot)}"
  if ! ask_gcloud compute tpus "${what[@]}"; then
    # Somebody else was faster: the next look says how it stands.
    [[ $problem == *ALREADY_EXISTS* ]] || refused "$problem"
  fi
  requested=yes
}

# One that failed, was preempted or suspended.
renew() {
  local how=$1
  if [[ $requested ]]; then
    [[ ! $queue_problem ]] || refused "$queue_problem"
    say "$name is $how before it could be used; try later"
    exit "$NO_CAPACITY"
  fi
  if [[ ! $recreate ]]; then
    fail "$name must be READY to be kept, is $how; add --recreate to delete" \
      "it and make it anew"
  fi
  say "$name is $how and is made anew"
  delete_slice
}

keep() {
  if [[ $node_type && $node_type != "$accelerator_type" ]]; then
    mistake "$name must be a $accelerator_type, is a $node_type; delete it or" \
      "choose another --name"
  fi
  local kept=""
  [[ $requested ]] || kept="; kept as it is"
  say "$name is READY ($node_type, workers: $num_workers)$kept"
  exit 0
}

wait_for_it() {
  local how=$1
  if ((SECONDS >= wait_secs)); then
    say "$name is still $how after $wait_secs s; the same command goes on" \
      "waiting, launch/delete_tpu.sh $(target_flags) gives up"
    exit "$NO_CAPACITY"
  fi
  [[ $how == "${seen:-}" ]] || say "$name is $how; waiting"
  seen=$how
  sleep "$poll_secs"
}

print_commands() {
  [[ ! $queued ]] || read_queue
  read_node
  if [[ $recreate ]]; then
    remark "where it failed or was preempted:"
    delete_slice
  fi
  remark "where nothing is there:"
  request 2>/dev/null
  exit 0
}

read_flags "$TARGET_FLAGS accelerator_type runtime_version poll_secs \
wait_secs" "spot queued recreate" "create_flag" "$@"
check_flag accelerator_type '^v[0-9]+[a-z]*-[0-9]+$' \
  "a TPU type and its size" v5litepod-16
[[ $runtime_version ]] || choose_runtime
check_flag runtime_version '^[a-z0-9][a-z0-9.-]*$' "a TPU software version" \
  v2-alpha-tpuv6e
check_secs poll_secs wait_secs
read_target
[[ ! $dry_run ]] || print_commands

requested="" queue_state=NONE queue_problem=""
while true; do
  if [[ $queued ]]; then
    read_queue || unreadable
  fi
  read_node || unreadable
  case $queue_state/$node_state in
    FAILED/* | SUSPENDING/* | SUSPENDED/*) renew "$queue_state" ;;
    DELETING/*) wait_for_it "$queue_state" ;;
    */READY) keep ;;
    */PREEMPTED | */TERMINATED | */UNKNOWN | ACTIVE/MISSING)
      renew "$node_state"
      ;;
    */STOPPED | */STOPPING | */HIDDEN | */HIDING)
      fail "$name must run, is $node_state; start it with gcloud compute" \
        "tpus tpu-vm start $(quote "${target[@]}") or delete it"
      ;;
    NONE/MISSING | MISSING/MISSING) request ;;
    NONE/* | MISSING/*) wait_for_it "$node_state" ;;
    *) wait_for_it "$queue_state" ;;
  esac
done
