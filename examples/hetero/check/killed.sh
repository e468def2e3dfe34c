#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# killed.sh PROGRAM FOLDER DEVICE: a worker's process is killed, then the program itself; nothing of it stays.
set -u
program=$1
device=$3
cd "$2" || exit 1
mark=$2/losses_of_those_to_be_killed.csv  # in the command lines of all processes

fail() {
  echo "killed.sh: $1"
  cat said.txt
  exit 1
}
processes() { pgrep -f -- "$mark"; }
trap 'kill -9 $(processes) 2>/dev/null' EXIT
# none_left: within 20 s.
none_left() {
  for _ in $(seq 200); do
    processes >/dev/null || return 0
    sleep 0.1
  done
  fail "processes are left: $(pgrep -a -f -- "$mark")"
}
# start: trains for a long time in the background; sets `main`, and returns once it does.
start() {
  : >said.txt
  "$program" --device "$device" --workers 3 --stages 2 --batch 2 --steps 100000 --in-flight 1 --sync asp \
    --csv "$mark" >out.txt 2>said.txt &
  main=$!
  for _ in $(seq 300); do
    grep -q '^step' said.txt && return
    sleep 0.1
  done
  fail 'it does not train'
}

start
victim=$(pgrep -n -f -- "$mark")  # the youngest
kill -9 "$victim"
wait "$main"
[ $? = 2 ] || fail 'should end with 2'
[ "$(grep -c '^hetero: .* was killed by signal 9 (Killed)$' said.txt)" = 1 ] || fail 'should say that a process was killed'
[ "$(grep -vc '^step' said.txt)" = 1 ] || fail 'should say nothing else'
[ -s out.txt ] && fail 'should print nothing'
none_left

for signal in TERM KILL; do
  start
  kill -$signal "$main"
  wait "$main" 2>/dev/null
  none_left
done
