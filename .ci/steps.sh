# Sourced by run and nightly. It runs steps, says which one runs, and prints how long each took.
# A step that fails does not keep the others from running; finish exits with 1 then.

verdicts=()
failed=0
beside_pid=

# took SECONDS prints minutes and seconds.
took() { printf '%d min %2d s' $(($1 / 60)) $(($1 % 60)); }

# verdict NAME SECONDS STATUS remembers how a step ended, and says so.
verdict() {
  local word=ok
  if [ "$3" -ne 0 ]; then word=FAILED failed=1; fi
  verdicts+=("$(printf '%-8s %-34s %s' "$word" "$1" "$(took "$2")")")
  printf '=== %s: %s after %s; %s since the start\n' "$1" "$word" "$(took "$2")" "$(took "$SECONDS")"
}

# step NAME COMMAND… runs a command.
step() {
  local name=$1 begin=$SECONDS status=0
  shift
  printf '=== %s: %s (%s since the start)\n' "$name" "$*" "$(took "$SECONDS")"
  "$@" || status=$?
  verdict "$name" $((SECONDS - begin)) "$status"
  return 0
}

# beside NAME COMMAND… runs a command beside the steps that follow, with what CPU they leave.
# join waits for it, and prints what it printed.
beside() {
  beside_name=$1 beside_log=$(mktemp)
  shift
  printf '=== %s, beside the next step: %s\n' "$beside_name" "$*"
  set -m # a process group of its own, which the caller can end
  (
    begin=$SECONDS status=0
    nice -n 10 "$@" >"$beside_log" 2>&1 || status=$?
    echo "$((SECONDS - begin)) $status" >"$beside_log.end"
    exit "$status"
  ) &
  beside_pid=$!
  set +m
}

join() {
  local seconds=0 status=1
  printf '=== waiting for %s\n' "$beside_name"
  wait "$beside_pid" || true
  beside_pid=
  if [ -s "$beside_log.end" ]; then read -r seconds status <"$beside_log.end"; fi
  cat "$beside_log"
  verdict "$beside_name" "$seconds" "$status"
  rm -f "$beside_log" "$beside_log.end"
}

# finish prints the verdicts and exits.
finish() {
  printf '\n'
  printf '%s\n' "${verdicts[@]}"
  if [ "$failed" -ne 0 ]; then echo "FAILED after $(took "$SECONDS")"; else echo "all passed in $(took "$SECONDS")"; fi
  exit "$failed"
}
