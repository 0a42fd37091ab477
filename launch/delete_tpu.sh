#!/usr/bin/env bash
# Deletes a TPU slice, and its queued resource where it has one.
#
#   launch/delete_tpu.sh --name=NAME [--zone=ZONE] [--project=PROJECT]
#
#   --name      what create_tpu.sh called it
#   --zone      default: compute/zone of gcloud's configuration
#   --project   default: core/project of gcloud's configuration
#   --dry-run   print the gcloud commands, run nothing
#
# Safe to repeat: where nothing is left, it says so and ends with status 0.

set -euo pipefail
# shellcheck source=launch/tpu.sh
source "$(dirname "$0")/tpu.sh"

read_flags "$TARGET_FLAGS" "" "" "$@"
read_target
delete_slice
