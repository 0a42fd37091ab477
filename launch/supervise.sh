#!/usr/bin/env bash
# Trains to the end on slices that may vanish: waits for capacity, creates,
# runs, and after a preemption does it again; the command goes on from its
# workdir.
#
#   launch/supervise.sh --name=NAME --accelerator_type=v5litepod-16 --spot \
#     [--queued] [--delete_when_done] -- \
#     toolrl-train --config=configs/toolrl_qwen25_3b.py --workdir=gs://...
#
#   --max_attempts=50   tries in a row that find no capacity
#   --first_wait=60     seconds after the first of them; doubles each time
#   --max_wait=1800     up to this
#   --max_restarts=100  runs after the first
#   --poll_secs=30      between two looks at the slice
#   --grace_secs=120    after a crash, how long the slice may take to show
#               that it was preempted
#   --delete_when_done  delete the slice at the end, after success or failure;
#               not when interrupted
#   --allow_local_workdir   let the command write where a preemption deletes
#   --dry-run   print the gcloud commands of one round, run nothing
#
# --name, --zone, --project, --accelerator_type, --runtime_version, --spot,
# --queued, --wait_secs and --create_flag are create_tpu.sh's; --log_worker,
# --straggler_secs and --connect_flag are run_on_tpu.sh's.
#
# Statuses of the command: 0 done; 75 stopped by a preemption, goes on; 2 the
# user's mistake, not tried again; any other is a failure and ends this too,
# unless the slice is gone. Status: the command's; 1 when the tries are used
# up; 130, 143 on an interrupt.

set -euo pipefail
# shellcheck source=launch/tpu.sh
source "$(dirname "$0")/tpu.sh"
here=$(dirname "$0")

accelerator_type="" runtime_version="" spot="" queued="" wait_secs=86400
create_flag=()
log_worker=0 straggler_secs=600
connect_flag=()
max_attempts=50 first_wait=60 max_wait=1800 max_restarts=100
poll_secs=30 grace_secs=120 delete_when_done="" allow_local_workdir=""
readonly NO_CAPACITY=75 PREEMPTED=75 NOT_REACHED=255

# What a preemption would take with it is no place to go on from.
check_workdir() {
  local word workdir="" previous=""
  for word in "${remote_command[@]}"; do
    case $word in --workdir=* | -workdir=*) workdir=${word#*=} ;; esac
    case $previous in --workdir | -workdir) workdir=$word ;; esac
    previous=$word
  done
  if [[ $workdir != gs://?* && ! $allow_local_workdir ]]; then
    mistake "--workdir of the command must be gs://BUCKET/..., which outlives" \
      "the slice, got '$workdir'; change it or add --allow_local_workdir"
  fi
}

# Runs one of our scripts so that a signal reaches us at once.
call() {
  local status=0
  "$here/$1" "${@:2}" </dev/null &
  child=$!
  wait "$child" || status=$?
  child=""
  return "$status"
}

# Waits for capacity; comes back when the slice is READY.
create() {
  local attempt status pause=$first_wait
  for ((attempt = 1; attempt <= max_attempts; attempt++)); do
    status=0
    call create_tpu.sh "${create_flags[@]}" || status=$?
    ((status)) || return 0
    ((status == NO_CAPACITY)) || finish "$status"
    ((attempt < max_attempts)) || break
    say "no capacity, try $attempt of $max_attempts; again in $pause s"
    rest "$pause"
    pause=$((pause * 2 < max_wait ? pause * 2 : max_wait))
  done
  say "capacity must come in --max_attempts=$max_attempts tries, did not;" \
    "try another zone or more tries"
  finish 1
}

# Sleeps, and wakes up for a signal.
rest() {
  sleep "$1" &
  child=$!
  wait "$child" || true
  child=""
}

# True where the slice will not come back. Where gcloud does not answer, it
# is thought to be there.
is_gone() {
  if [[ $queued ]] && read_queue; then
    case $queue_state in FAILED | SUSPENDING | SUSPENDED) return 0 ;; esac
  fi
  read_node && is_lost "$node_state"
}

# After a crash the cloud may know of the preemption later than we do.
is_gone_soon() {
  local since=$SECONDS
  until is_gone; do
    ((SECONDS - since < grace_secs)) || return 1
    rest "$poll_secs"
  done
}

# Runs the command once. A connection to a slice that is gone can hang for
# ever, so the slice is looked at meanwhile. The status is in run_status.
run() {
  local looked_at=$SECONDS
  run_status=0
  "$here/run_on_tpu.sh" "${run_flags[@]}" -- "${remote_command[@]}" \
    </dev/null &
  child=$!
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - looked_at >= poll_secs)); then
      if is_gone; then
        kill -TERM "$child" 2>/dev/null || true
        break
      fi
      looked_at=$SECONDS
    fi
  done
  wait "$child" || run_status=$?
  child=""
}

# What the end of a run means: comes back where it is to run again.
judge() {
  case $run_status in
    0)
      say "the command is done"
      finish 0
      ;;
    2)
      say "the command must be right to be tried again, it says status 2;" \
        "see its message above"
      finish 2
      ;;
    1)
      # The run says itself that it cannot go on; no need to wait.
      if is_gone; then
        say "$name is gone"
        return
      fi
      ;;
    *)
      if is_gone_soon; then
        say "$name is gone; was preempted"
        return
      elif ((run_status == PREEMPTED)); then
        say "the command was told to stop, and $name is there; running it again"
        return
      elif ((run_status == NOT_REACHED)); then
        say "the connection broke, and $name is there; following it again"
        return
      fi
      ;;
  esac
  say "the command failed with status $run_status and $name was not" \
    "preempted; see its message above"
  finish "$run_status"
}

# Ends the script, and the slice where that is asked for.
finish() {
  trap - INT TERM
  if [[ $delete_when_done ]]; then
    delete_slice
  else
    still_there
  fi
  exit "$1"
}

still_there() {
  say "$name may still be there and cost money; delete it with" \
    "launch/delete_tpu.sh $(target_flags)"
}

# shellcheck disable=SC2329 # A trap calls it.
interrupted() {
  trap - INT TERM
  still_there
  [[ ! $child ]] || kill -TERM "$child" 2>/dev/null || true
  wait
  exit "$1"
}

read_flags "$TARGET_FLAGS accelerator_type runtime_version wait_secs \
log_worker straggler_secs max_attempts first_wait max_wait max_restarts \
poll_secs grace_secs" "spot queued delete_when_done allow_local_workdir" \
  "create_flag connect_flag" "$@"
check_secs max_attempts first_wait max_wait max_restarts poll_secs grace_secs
read_target
((${#remote_command[@]})) ||
  mistake "a command must follow --, got none; see ${0##*/} --help"
check_workdir

read -ra shared <<<"$(target_flags)"
create_flags=("${shared[@]}" "--accelerator_type=$accelerator_type"
  "--wait_secs=$wait_secs" "--poll_secs=$poll_secs" --recreate)
[[ ! $runtime_version ]] ||
  create_flags+=("--runtime_version=$runtime_version")
[[ ! $spot ]] || create_flags+=(--spot)
[[ ! $queued ]] || create_flags+=(--queued)
for flag in ${create_flag[@]+"${create_flag[@]}"}; do
  create_flags+=("--create_flag=$flag")
done
run_flags=("${shared[@]}" "--log_worker=$log_worker"
  "--straggler_secs=$straggler_secs")
for flag in ${connect_flag[@]+"${connect_flag[@]}"}; do
  run_flags+=("--connect_flag=$flag")
done

if [[ $dry_run ]]; then
  "$here/create_tpu.sh" "${create_flags[@]}" --dry-run
  "$here/run_on_tpu.sh" "${run_flags[@]}" --dry-run -- "${remote_command[@]}"
  remark "after a preemption: the same again, $max_restarts times at most"
  if [[ $delete_when_done ]]; then
    remark "at the end:"
    delete_slice
  fi
  exit
fi

child=""
trap 'interrupted 130' INT
trap 'interrupted 143' TERM
for ((restart = 0; restart <= max_restarts; restart++)); do
  ((restart == 0)) || say "restart $restart of $max_restarts"
  create
  run
  judge
done
say "the command must end in --max_restarts=$max_restarts restarts, did not;" \
  "the same command goes on from its workdir"
finish 1
