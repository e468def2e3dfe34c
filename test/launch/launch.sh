#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# launch.sh HOW PROGRAM [LAUNCHER...]: starts test/launch/rendezvous.cpp as several processes and sees whether all have met.
# Without a LAUNCHER the script plays Slurm. 77: this system cannot play that.
set -u
exec 3>&1
how=$1 program=$2
shift 2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES STAGGER_FILE
unset $(env | sed -n 's/^\(\(OMPI\|PMI\|PMIX\|SLURM\|TORCHELASTIC\)_[A-Z0-9_]*\)=.*/\1/p')
port=$("$program" free-port)
ranks=4 gpus='0 1 2 3'

by_torchrun() {  # of any version: 1.13 on Python 3.11 fails unless it is told where output goes
  "$@" --no_python --nproc_per_node $ranks --monitor_interval 1 -r 1 -t 1 --log_dir "$work/log" "$program"
}

by_slurm() {  # by_slurm ADDRESS [VARIABLE=VALUE...]; {} in a value is the number of the process
  address=$1
  shift
  for rank in 3 2 1 0; do
    env SLURM_JOB_ID=17 SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=4 MASTER_ADDR="$address" \
      MASTER_PORT="$port" $(printf '%s ' "$@" | sed "s/{}/$rank/g") "$program" &
  done
  wait
}

# alone SETUP ADDRESS: as Slurm in a network of its own, with nothing but the loopback.
alone() {
  map=''
  [ "$(id -u)" = 0 ] || map=-r
  if ! why=$(unshare $map -n sh -c "ip link set lo up && $1" 2>&1); then
    echo "skipped: $why" >&3
    exit 77
  fi
  unshare $map -n sh -c "ip link set lo up && $1 && exec sh '$0' slurm '$program' $2" >&3
  exit
}

case $how in
  torchrun) by_torchrun "$@" --master_port "$port" ;;
  torchrun-standalone) by_torchrun "$@" --standalone ;;
  torchrun-c10d) by_torchrun "$@" --rdzv_backend c10d --rdzv_endpoint "localhost:$port" --rdzv_id "$port" ;;
  mpirun) "$@" $ranks env MASTER_ADDR=localhost MASTER_PORT="$port" "$program" ;;
  mpirun-file) "$@" $ranks env STAGGER_FILE="$work/id" "$program" ;;
  mpirun-broadcast) "$@" $ranks "$program" ;;
  slurm) by_slurm "${1:-localhost}" ;;
  slurm-ipv4) alone 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6' 127.0.0.1 ;;
  slurm-ipv6) alone 'ip address del 127.0.0.1/8 dev lo' ::1 ;;
  slurm-gpu-per-task)
    gpus='0 0 0 0'
    by_slurm localhost CUDA_VISIBLE_DEVICES={}
    ;;
  slurm-file)
    printf 'of an earlier run' >"$work/id"
    by_slurm '' STAGGER_FILE="$work/id"
    ;;
  *)
    echo "launch.sh knows no $how" >&2
    exit 2
    ;;
esac >"$work/said"
result=$?
cat "$work/said"
[ $result = 0 ] || exit $result

sed -n 's/.*\(rank [0-9]* of \)/\1/p' "$work/said" | sort >"$work/ranks"
expected=0
for gpu in $gpus; do
  line=$(sed -n "$((expected + 1))p" "$work/ranks")
  case $line in
    "rank $expected of 4 by "*", GPU $gpu") ;;
    *)
      echo "no rank $expected of 4 with GPU $gpu"
      exit 1
      ;;
  esac
  expected=$((expected + 1))
done
ids=$(sed 's/.*id \([0-9]*\),.*/\1/' "$work/ranks" | sort -u | wc -l)
if [ "$ids" != 1 ]; then
  echo "ranks have $ids different ids"
  exit 1
fi
echo 'all have met'
