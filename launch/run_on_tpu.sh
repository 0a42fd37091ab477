#!/usr/bin/env bash
# Runs one command on all workers of a TPU slice, in this checkout's code.
#
#   launch/run_on_tpu.sh --name=NAME [--zone=ZONE] [--project=PROJECT] -- \
#     toolrl-train --config=configs/toolrl_qwen25_3b.py --workdir=gs://...
#   launch/run_on_tpu.sh --name=NAME --stop
#
#   --name      a slice that is READY
#   --zone      default: compute/zone of gcloud's configuration
#   --project   default: core/project of gcloud's configuration
#   --log_worker=0   whose log is shown; every worker keeps its own in
#               toolrl_runs
#   --stop      ask the running command to end (SIGTERM: toolrl-train saves)
#   --straggler_secs=600   after one worker failed, the others are killed when
#               they have not ended by themselves in this time
#   --connect_flag=FLAG    given to gcloud's ssh and scp as it is, such as
#               --connect_flag=--internal-ip; may be repeated
#   --dry-run   print the gcloud commands, run nothing
#
# Copies the files that git tracks or would track, installs uv and the
# environment where they are missing, and starts the command in the checkout
# with its words unchanged. It outlives the connection: the same command again
# follows it. With several workers gcloud wants the key in the ssh agent
# (ssh-add ~/.ssh/google_compute_engine).
#
# Status: the command's. Of several workers the first that is neither 0 nor
# 75, then 75; 255 where the workers cannot be reached.

set -euo pipefail
# shellcheck source=launch/tpu.sh
source "$(dirname "$0")/tpu.sh"
root=$(cd "$(dirname "$0")/.." && pwd)

log_worker=0 stop="" straggler_secs=600
connect_flag=()
readonly NOT_REACHED=255
# What gcloud tells of its own tries.
readonly CHATTER='^(SSH:|SCP:|Using s|#####|Warning:|$)'

# Packs what git tracks or would track; a deleted file is tracked, too.
pack() {
  local file
  git -C "$root" rev-parse --git-dir >/dev/null 2>&1 ||
    fail "the code must be a git checkout, got '$root'; clone the repository"
  mkdir -p "$root/dist"
  git -C "$root" ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do
      [[ ! -e $root/$file && ! -L $root/$file ]] || printf '%s\0' "$file"
    done | COPYFILE_DISABLE=1 tar -C "$root" -czf "$root/$archive" \
      --null --files-from=-
}

# A subcommand on workers; the arguments are one worker or all, and a command.
on_workers() {
  local worker=$1 words=$2
  set -- gcloud compute tpus tpu-vm ssh "${connect[@]}" \
    "--worker=$worker" --ssh-flag=-oServerAliveInterval=30 "--command=$words"
  if [[ $dry_run ]]; then
    show "$@"
  else
    "$@" </dev/null
  fi
}

# The status of all from the workers' own lines in a file; NOT_REACHED where
# one is missing and no other failed.
read_status() {
  local one reports=0
  status=0
  while read -r one; do
    reports=$((reports + 1))
    case $one/$status in
      0/*) ;;
      75/0 | */0 | */75) status=$one ;;
    esac
  done < <(sed -n 's/^[^ ]*: exit status \([0-9]*\)$/\1/p' "$1")
  if ((status == 0 && reports < num_workers)); then
    status=$NOT_REACHED
  fi
}

# One line a worker that failed, and how to read more.
explain() {
  local line index
  while IFS= read -r line; do
    say "$line"
    index=${line%%:*}
    index=${index##*-}
    [[ $index =~ ^[0-9]+$ ]] || continue
    say "its log: $(quote gcloud compute tpus tpu-vm ssh "${connect[@]}" \
      "--worker=$index" \
      "--command=tail -n 50 \$(cat toolrl_runs/newest)/log")"
  done < <(grep -E '^[^ ]*: exit status ([1-9][0-9]*)$' "$1" || true)
}

# Starts a job in a process group of its own, so that clean_up ends it whole
# and a wait for it wakes up for a signal.
launch() {
  set -m
  "$@" </dev/null &
  set +m
  jobs+=("$!")
}

# Copies the code to every worker.
copy() {
  set -- gcloud compute tpus tpu-vm scp "$root/$archive" \
    "$name:toolrl_jax.tar.gz" "${connect[@]:1}" --worker=all \
    --scp-flag=-oServerAliveInterval=30
  remark "$archive holds what git tracks or would track"
  if [[ $dry_run ]]; then
    show "$@"
    return
  fi
  launch "$@" >"$scratch/copy" 2>&1
  wait "$!" || {
    grep -vE "$CHATTER" "$scratch/copy" >&2 || true
    say "the code must reach every worker, did not; see" \
      "launch/status.sh $(target_flags)"
    exit "$NOT_REACHED"
  }
}

# Starts the command everywhere; comes back when it runs on every worker.
start() {
  local words
  words="tar -xzOf toolrl_jax.tar.gz launch/worker.sh >toolrl_worker.sh"
  words+=" && bash toolrl_worker.sh start $(date -u +%Y%m%dT%H%M%SZ)-$$"
  words+=" -- $(quote "${remote_command[@]}")"
  if [[ $dry_run ]]; then
    on_workers all "$words"
    return
  fi
  say "setting up $num_workers workers; minutes the first time"
  launch on_workers all "$words" >"$scratch/start" 2>&1
  wait "$!" || {
    read_status "$scratch/start"
    grep -vE "$CHATTER" "$scratch/start" >&2 || true
    if ((status == NOT_REACHED)); then
      say "every worker must start the command, some cannot be reached;" \
        "see launch/status.sh $(target_flags)"
    fi
    exit "$status"
  }
  grep -E 'runs already' "$scratch/start" >&2 || true
}

# Where one worker failed and the others hang, nothing else ends the run.
kill_stragglers() {
  if ! grep -qE ': exit status [1-9]' "$scratch/wait"; then
    failed_at=$SECONDS
  elif ((SECONDS - failed_at >= straggler_secs)); then
    say "a worker failed $straggler_secs s ago; killing the others"
    on_workers all "bash toolrl_worker.sh kill" >/dev/null 2>&1 || true
    failed_at=$((SECONDS + 60))
  fi
}

# Shows one worker's log until all workers have ended.
watch() {
  local i follower waiter
  launch on_workers "$log_worker" "bash toolrl_worker.sh follow" \
    2>"$scratch/follow"
  follower=$!
  launch on_workers all "bash toolrl_worker.sh wait" >"$scratch/wait" 2>&1
  waiter=$!
  failed_at=$SECONDS
  while kill -0 "$waiter" 2>/dev/null; do
    kill_stragglers
    sleep 0.2
  done
  grep -q ': exit status' "$scratch/wait" || return 0
  # The log ends a moment after the command.
  for ((i = 0; i < 50; i++)); do
    kill -0 "$follower" 2>/dev/null || break
    sleep 0.2
  done
}

# Ends what runs here; the workers go on.
# shellcheck disable=SC2329 # A trap calls it.
clean_up() {
  local job
  for job in ${jobs[@]+"${jobs[@]}"}; do
    kill -TERM -- "-$job" 2>/dev/null || true
  done
  rm -rf "$scratch"
}

# shellcheck disable=SC2329 # A trap calls it.
interrupted() {
  say "left; $name runs the command on. The same command follows it again," \
    "launch/run_on_tpu.sh $(target_flags) --stop ends it"
  exit "$1"
}

read_flags "$TARGET_FLAGS log_worker straggler_secs" "stop" "connect_flag" "$@"
check_flag log_worker '^[0-9]{1,5}$' "the index of a worker" 0
check_secs straggler_secs
read_target
connect=("${target[@]}" --quiet ${connect_flag[@]+"${connect_flag[@]}"})
archive=dist/launch-$name.tar.gz
if [[ $stop ]]; then
  on_workers all "bash toolrl_worker.sh stop"
  exit
fi
((${#remote_command[@]})) ||
  mistake "a command must follow --, got none; see ${0##*/} --help"

jobs=() scratch=""
if [[ ! $dry_run ]]; then
  scratch=$(mktemp -d)
  trap clean_up EXIT
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM
fi

read_node || unreadable
if [[ ! $dry_run ]]; then
  if [[ $node_state != READY ]]; then
    say "$name must be READY to run on, is $node_state;" \
      "see launch/create_tpu.sh --help"
    exit "$NOT_REACHED"
  fi
  ((log_worker < num_workers)) ||
    mistake "--log_worker must be below $num_workers, got $log_worker;" \
      "write --log_worker=0"
  pack
fi
copy
start
if [[ $dry_run ]]; then
  on_workers "$log_worker" "bash toolrl_worker.sh follow"
  on_workers all "bash toolrl_worker.sh wait"
  exit
fi
watch
read_status "$scratch/wait"
if ((status == NOT_REACHED)); then
  say "the connection to $name broke; the same command follows it again"
elif ((status)); then
  explain "$scratch/wait"
fi
exit "$status"
