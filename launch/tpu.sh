# shellcheck shell=bash
# What the launch scripts share: flags, messages, gcloud, states of a slice.
# Sourced by them; knows nothing of what runs on the workers.
# shellcheck disable=SC2034 # The scripts read what is set here.

# Every script has these; a queued resource and its TPU VM share one name.
name="" zone="" project="" dry_run=""
readonly TARGET_FLAGS="name zone project"

# The comment at the head of a script is its usage text.
usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
}

say() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# The run cannot go on; one line.
fail() {
  say "$*"
  exit 1
}

# The user's mistake; one line.
mistake() {
  say "$*"
  exit 2
}

# Reads --flag=value and --switch into variables of the same names ("-" in a
# flag is "_"), a flag of the third list into the end of an array, and what
# follows -- into the array remote_command.
read_flags() {
  local values=" $1 " switches=" $2 dry_run " lists=" $3 " key value
  shift 3
  if (($# == 0)); then
    usage >&2
    exit 2
  fi
  remote_command=()
  while (($#)); do
    case $1 in
      --)
        shift
        remote_command=("$@")
        return
        ;;
      -h | --help)
        usage
        exit 0
        ;;
      --?*) ;;
      *) mistake "arguments are flags, got '$1'; see ${0##*/} --help" ;;
    esac
    key=${1%%=*} value=${1#*=}
    key=${key#--}
    key=${key//-/_}
    if [[ $values == *" $key "* && $1 == *=* ]]; then
      printf -v "$key" '%s' "$value"
    elif [[ $lists == *" $key "* && $1 == *=* ]]; then
      eval "$key+=(\"\$value\")" # The name is one of ours.
    elif [[ $values$lists == *" $key "* ]]; then
      mistake "--$key needs a value, got none; write --$key=VALUE"
    elif [[ $switches == *" $key "* && $1 != *=* ]]; then
      printf -v "$key" '%s' yes
    elif [[ $switches == *" $key "* ]]; then
      mistake "--$key takes no value, got '$value'; write --$key"
    else
      mistake "no flag is called '--$key'; see ${0##*/} --help"
    fi
    shift
  done
}

# Checks a flag's value against a pattern.
check_flag() {
  local key=$1 pattern=$2 rule=$3
  if ! [[ ${!key} =~ $pattern ]]; then
    mistake "--$key must be $rule, got '${!key}'; write --$key=$4"
  fi
}

check_secs() {
  local key
  for key in "$@"; do
    check_flag "$key" '^[0-9]{1,8}$' "a whole number of 0 or more" 60
  done
}

# Checks what names the slice, and joins it for gcloud. Zone and project are
# left to gcloud's configuration where they are not given.
read_target() {
  check_flag name '^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$' \
    "1 to 63 lowercase letters, digits and dashes, a letter first" toolrl
  target=("$name")
  if [[ $zone ]]; then
    check_flag zone '^[a-z]+-[a-z]+[0-9]+-[a-z0-9]+$' "a zone" us-west4-a
    target+=("--zone=$zone")
  fi
  if [[ $project ]]; then
    check_flag project '^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$' \
      "a project id" my-project
    target+=("--project=$project")
  fi
  if [[ ! $dry_run ]] && ! type gcloud >/dev/null 2>&1; then
    fail "gcloud must be installed, found none in PATH;" \
      "install the Google Cloud CLI and run gcloud init"
  fi
}

# The same flags again, for another of our scripts.
target_flags() {
  local flags="--name=$name"
  [[ ! $zone ]] || flags+=" --zone=$zone"
  [[ ! $project ]] || flags+=" --project=$project"
  printf '%s' "$flags"
}

# One word, or several, as a POSIX shell reads them back unchanged.
quote() {
  local word separator="" escaped="'\"'\"'"
  for word in "$@"; do
    if [[ ! $word =~ ^[A-Za-z0-9_./:=@%+,-]+$ ]]; then
      word="'${word//\'/$escaped}'"
    fi
    printf '%s%s' "$separator" "$word"
    separator=" "
  done
}

# Prints what a dry run leaves out; to the script's own output, always.
exec 3>&1
show() {
  printf '%s\n' "$(quote "$@")" >&3
}

remark() {
  [[ ! $dry_run ]] || printf '# %s\n' "$*" >&3
}

# Asks gcloud: its output in answer, its complaint in problem, as one line.
ask_gcloud() {
  local complaint status=0
  answer="" problem=""
  if [[ $dry_run ]]; then
    show gcloud "$@"
    return 0
  fi
  complaint=$(mktemp)
  answer=$(gcloud "$@" </dev/null 2>"$complaint") || status=$?
  problem=$(tr -s '\n\t ' ' ' <"$complaint")
  problem=${problem:0:500}
  rm -f "$complaint"
  return "$status"
}

is_missing() {
  [[ $problem == *NOT_FOUND* || $problem == *"was not found"* ]]
}

# Reads the TPU VM: node_state (MISSING where there is none), node_type,
# num_workers. Fails where gcloud does, with its complaint in problem.
read_node() {
  local format="value(state,acceleratorType.basename()"
  format+=",networkEndpoints.len())"
  node_state=MISSING node_type="" num_workers=0
  if ! ask_gcloud compute tpus tpu-vm describe "${target[@]}" \
    "--format=$format"; then
    is_missing
    return
  fi
  [[ ! $answer ]] || read -r node_state node_type num_workers <<<"$answer"
}

# Reads the queued resource: queue_state (MISSING where there is none) and
# queue_problem, the reason of a failure.
read_queue() {
  local format="value(state.state,state.failedData.error.message)"
  queue_state=MISSING queue_problem=""
  if ! ask_gcloud compute tpus queued-resources describe "${target[@]}" \
    "--format=$format"; then
    is_missing
    return
  fi
  [[ ! $answer ]] || read -r queue_state queue_problem <<<"$answer"
}

unreadable() {
  fail "gcloud must answer for $name, got '$problem'; check --zone," \
    "--project and gcloud auth login"
}

# States that a slice does not come back from.
is_lost() {
  case $1 in
    MISSING | PREEMPTED | TERMINATED | UNKNOWN | DELETING) return 0 ;;
    *) return 1 ;;
  esac
}

# Deletes the queued resource and the TPU VM, whichever is there.
delete_slice() {
  local deleted=""
  read_queue || unreadable
  remark "where that is there:"
  if [[ $dry_run || $queue_state != MISSING ]]; then
    # --force takes the TPU VM with it.
    ask_gcloud compute tpus queued-resources delete "${target[@]}" \
      --force --quiet || is_missing ||
      fail "the queued resource $name must go, got '$problem'; try again"
    deleted=yes
  fi
  read_node || unreadable
  remark "where that is there:"
  if [[ $dry_run || $node_state != MISSING ]]; then
    ask_gcloud compute tpus tpu-vm delete "${target[@]}" --quiet ||
      is_missing || fail "the TPU VM $name must go, got '$problem'; try again"
    deleted=yes
  fi
  [[ ! $dry_run ]] || return 0
  if [[ $deleted ]]; then
    say "$name is deleted"
  else
    say "nothing is called $name; nothing to delete"
  fi
}
