#!/usr/bin/env bash
# The part of run_on_tpu.sh on a worker; that script sends it there.
#
#   toolrl_worker.sh start ID -- COMMAND...   unpack, install, start
#   toolrl_worker.sh follow                   show the log until the end
#   toolrl_worker.sh wait                     end with the command's status
#   toolrl_worker.sh report                   one line: runs, or how it ended
#   toolrl_worker.sh stop | kill              SIGTERM, SIGKILL to the command
#
# The command outlives the connection: gcloud repeats a call whose connection
# broke, so each of these may be called twice. Everything of a run is in
# toolrl_runs/ID: command, pid, log, status.

set -euo pipefail

say() {
  printf '%s: %s\n' "$(hostname)" "$*"
}

# The newest run's folder, or nothing.
newest() {
  [[ ! -e toolrl_runs/newest ]] || cat toolrl_runs/newest
}

is_running() {
  [[ -e $1/pid && ! -e $1/status ]] && kill -0 "$(cat "$1/pid")" 2>/dev/null
}

must_have_run() {
  run=$(newest)
  if [[ ! $run ]]; then
    say "no command was started on this worker"
    exit 2
  fi
}

# The checkout as it was packed; the environment stays.
unpack() {
  mkdir -p toolrl_jax
  find toolrl_jax -mindepth 1 -maxdepth 1 ! -name .venv ! -name uv.lock \
    -exec rm -rf {} +
  tar -xzf toolrl_jax.tar.gz -C toolrl_jax
}

# uv once, the environment once; what is there already takes a second.
install() {
  local try
  for try in 1 2 3; do
    # The newest systems refuse pip outside an environment; this VM is ours.
    if command -v uv >/dev/null || PIP_BREAK_SYSTEM_PACKAGES=1 \
      python3 -m pip install --quiet --user uv; then
      (cd toolrl_jax && uv sync --quiet --no-dev --extra tpu) && return
    fi
    sleep "$try"
  done
  say "the environment must install, failed 3 times; see the lines above"
  say "exit status 1"
  exit 1
}

start() {
  local id=$1 run spelled
  shift 2
  spelled=$(printf '%q ' "$@")
  run=$(newest)
  if [[ $run ]] && is_running "$run"; then
    [[ $run != "toolrl_runs/$id" ]] || return 0
    if [[ $(cat "$run/command") == "$spelled" ]]; then
      say "this command runs already; following it"
      return 0
    fi
    say "one command at a time, $(cat "$run/command") runs; wait for it, or" \
      "stop it with run_on_tpu.sh --stop"
    say "exit status 2"
    exit 2
  fi
  [[ ! -e toolrl_runs/$id ]] || return 0
  unpack
  install
  run=toolrl_runs/$id
  mkdir -p toolrl_runs
  mkdir "$run" 2>/dev/null || return 0
  printf '%s\n' "$spelled" >"$run/command"
  setsid bash "$0" keep "$run" "$@" </dev/null >"$run/log" 2>&1 &
  until [[ -e $run/pid ]]; do sleep 0.1; done
  printf '%s\n' "$run" >toolrl_runs/newest
}

# Runs the command to its end and writes its status down.
keep() {
  local run=$PWD/$1 status=0
  shift
  trap : TERM INT # The command decides when it ends.
  printf '%s\n' "$$" >"$run/pid.part"
  mv "$run/pid.part" "$run/pid"
  cd toolrl_jax
  PATH=$PWD/.venv/bin:$PATH "$@" || status=$?
  printf '%s\n' "$status" >"$run/status.part"
  mv "$run/status.part" "$run/status"
}

follow() {
  must_have_run
  tail -n 200 -f -s 0.2 --pid="$(cat "$run/pid")" "$run/log"
}

await() {
  local status
  must_have_run
  until [[ -e $run/status ]]; do
    sleep 0.2
    if ! is_running "$run" && [[ ! -e $run/status ]]; then
      # Killed from outside, or the machine started anew.
      printf '137\n' >"$run/status"
    fi
  done
  status=$(cat "$run/status")
  # 255 belongs to ssh.
  ((status < 255)) || status=254
  say "exit status $status"
  return "$status"
}

report() {
  must_have_run
  if is_running "$run"; then
    say "runs $(cat "$run/command")| $(tail -n 1 "$run/log")"
  else
    say "ended with status $(cat "$run/status" 2>/dev/null || echo 137)," \
      "$(cat "$run/command")"
  fi
}

# A signal to the command and all that it started.
signal() {
  must_have_run
  if is_running "$run"; then
    kill "-$1" -- "-$(cat "$run/pid")"
    say "sent SIG$1"
  else
    say "nothing runs"
  fi
}

main() {
  cd "$HOME"
  export PATH=$HOME/.local/bin:$PATH
  case $1 in
    start) start "${@:2}" ;;
    keep) keep "${@:2}" ;;
    follow) follow ;;
    report) report ;;
    wait) await ;;
    stop) signal TERM ;;
    kill) signal KILL ;;
    *) exit 2 ;;
  esac
}

# On one line: the file may be replaced by a newer one while it runs.
main "$@"; exit
