#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# processes.sh PROGRAM FOLDER: a server and workers as processes, some of which are killed.
set -u
program=$1
folder=$2
mkdir -p "$folder" && cd "$folder" || exit 1
rm -rf ./*.txt
unset PARAMETER_SERVER_TOKEN PARAMETER_SERVER_RUN SERVE_ON
trap 'kill -9 $(jobs -p) 2>/dev/null' EXIT

fail() {
  echo "processes.sh: $1"
  tail -n 5 ./*.txt
  exit 1
}
# serve NAME ARGUMENTS...: starts a server in the background; sets `server` and `port`.
serve() {
  local name=$1
  shift
  : >"$name.txt"
  "$program" serve "$@" >"$name.txt" 2>&1 &
  server=$!
  await "$name.txt" 'listening on port'
  port=$(sed -n 's/listening on port //p' "$name.txt")
}
work() { timeout 100 "$program" work 127.0.0.1 "$@"; }
# await FILE WORDS: until a file has them, 60 s at most.
await() {
  for _ in $(seq 600); do
    grep -q "$2" "$1" && return
    sleep 0.1
  done
  fail "'$2' never came in $1"
}
digest() { sed -n 's/.*digest of the parameters //p' "$1"; }
expect() { grep -q "$2" "$1" || fail "'$2' is not in $1"; }

"$program" together 3 40 >together.txt || fail 'together'

# The same bits, while another program sends bytes that are no frame, and opens connections and leaves them.
serve server 0 3
(head -c 300000 /dev/urandom >/dev/tcp/127.0.0.1/"$port") 2>/dev/null
many=$(($(ulimit -n) - 50))
[ "$many" -gt 10000 ] && many=10000
bash -c 'for _ in $(seq '"$many"'); do exec {fd}<>/dev/tcp/127.0.0.1/'"$port"' || exit; done; sleep 100' 2>crowd.txt &
crowd=$!
work "$port" 0 40 >first.txt 2>&1 &
work "$port" 1 40 >second.txt 2>&1 &
work "$port" 2 40 >third.txt 2>&1 || fail 'the third worker'
wait %4 %5 2>/dev/null
for name in first second third; do
  await $name.txt digest
  [ "$(digest $name.txt)" = "$(digest together.txt | head -n 1)" ] || fail "$name has other bits"
done
kill -9 $crowd
kill $server
wait $server || fail 'the server did not end as it should'

# A worker is killed; the other one says so, and goes on when it is back.
serve killed 0 2
work "$port" 0 20000 >survivor.txt 2>&1 &
survivor=$!
timeout 100 "$program" work 127.0.0.1 "$port" 1 60000 >victim.txt 2>&1 &
await victim.txt trains
pkill -9 -P $! 2>/dev/null || kill -9 $!
await survivor.txt 'worker 1 has failed'
work "$port" 1 20 >back.txt 2>&1 || fail 'the worker that came back'
wait $survivor || fail 'the worker that stayed'
expect survivor.txt digest

# The server is killed: its workers end in one sentence, once they have tried for long enough to reach it.
work "$port" 0 60000 >orphan.txt 2>&1 &
orphan=$!
work "$port" 1 60000 >/dev/null 2>&1 &
await orphan.txt trains
kill -9 $server

# A server with a folder is killed again and again, and started again; the bits are the same.
"$program" together 2 100 >together.txt || fail 'together'
rm -rf kept
serve durable 0 2 kept
work "$port" 0 100 >first.txt 2>&1 &
first=$!
work "$port" 1 100 >second.txt 2>&1 &
second=$!
await first.txt trains
for _ in 1 2 3 4 5; do
  kill -9 $server
  wait $server 2>/dev/null
  serve durable "$port" 2 kept
  sleep 0.2
done
wait $first || fail 'a worker whose server was killed'
wait $second || fail 'the other worker whose server was killed'
for name in first second; do
  [ "$(digest $name.txt)" = "$(digest together.txt | head -n 1)" ] || fail "$name has other bits"
done
"$program" serve 0 2 kept >refused.txt 2>&1 && fail 'two servers with one folder'
expect refused.txt 'is used by another parameter server'
kill $server
wait $server
"$program" serve 0 3 kept >refused.txt 2>&1 && fail 'the folder of another run'
expect refused.txt 'for 2 workers, this one is made for 3'
PARAMETER_SERVER_RUN=today "$program" serve 0 2 kept >refused.txt 2>&1 && fail 'the folder of a run of another name'
expect refused.txt "with the name '', this one has the name 'today'"

# What is refused.
SERVE_ON=0.0.0.0 "$program" serve 0 2 >refused.txt 2>&1 && fail 'a server without a token'
expect refused.txt 'give it a token'
PARAMETER_SERVER_TOKEN=short "$program" serve 0 2 >refused.txt 2>&1 && fail 'a short token'
expect refused.txt 'has 5 bytes; use 16 to 64'
export PARAMETER_SERVER_TOKEN=0123456789abcdef
serve guarded 0 1
PARAMETER_SERVER_TOKEN=0123456789abcdeX work "$port" 0 1 >refused.txt 2>&1 && fail 'a wrong token'
expect refused.txt 'the token is not that of the server'
work "$port" 0 3 >let_in.txt 2>&1 || fail 'the right token'
kill $server
PARAMETER_SERVER_RUN=today serve today 0 1
PARAMETER_SERVER_RUN=yesterday work "$port" 0 1 >refused.txt 2>&1 && fail 'a worker of another run'
expect refused.txt "worker 0 is of run 'yesterday', the parameter server that it joins of run 'today'"
PARAMETER_SERVER_RUN=today work "$port" 0 1 >let_in.txt 2>&1 || fail 'a worker of the run'
kill $server
work "$port" three 1 >refused.txt 2>&1 && fail 'a word for a number'
expect refused.txt "'three' is no number"
wait $orphan && fail 'a worker without a server'
expect orphan.txt 'the connection with the parameter server at .* has ended'
expect orphan.txt 'parameter_server: cannot connect with the parameter server at '
echo 'all as it should be'
