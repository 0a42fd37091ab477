#!/usr/bin/env bash
# Says what is there of a TPU slice, and what its workers do.
#
#   launch/status.sh --name=NAME [--zone=ZONE] [--project=PROJECT]
#
#   --name      what create_tpu.sh called it
#   --zone      default: compute/zone of gcloud's configuration
#   --project   default: core/project of gcloud's configuration
#   --connect_flag=FLAG   given to gcloud's ssh as it is, such as
#               --connect_flag=--internal-ip; may be repeated
#   --dry-run   print the gcloud commands, run nothing

set -euo pipefail
# shellcheck source=launch/tpu.sh
source "$(dirname "$0")/tpu.sh"

connect_flag=()
read_flags "$TARGET_FLAGS" "" "connect_flag" "$@"
read_target

read_queue || unreadable
read_node || unreadable
if [[ ! $dry_run ]]; then
  printf '%s: queued resource %s, TPU VM %s' \
    "$name" "$queue_state" "$node_state"
  [[ ! $node_type ]] || printf ' (%s, workers: %s)' "$node_type" "$num_workers"
  printf '\n'
  [[ ! $queue_problem ]] || printf '%s\n' "$queue_problem"
fi
remark "where it is READY:"
if [[ $dry_run || $node_state == READY ]]; then
  ask_gcloud compute tpus tpu-vm ssh "${target[@]}" --worker=all --quiet \
    ${connect_flag[@]+"${connect_flag[@]}"} \
    --command="bash toolrl_worker.sh report" || true
  [[ $dry_run ]] || printf '%s\n' "${answer:-no command was started on it}"
fi
