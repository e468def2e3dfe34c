#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which targets the tests need that `ctest -R PATTERN` would run: ./run test -R PATTERN builds no more.
#   test/targets_of.sh BUILD_FOLDER PATTERN
# Prints a target per line, nothing where the tests need none, and `all` where that is not known.
set -euo pipefail
build=$(readlink -m "$1") pattern=$2
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"

targets=() matched=0
add() { targets+=("$1") matched=1; }

# Tests of Catch2 are known to ctest once they are built: before, their names stand in the sources.
literal='"([^"\\]|\\.)*"( *"([^"\\]|\\.)*")*'
for folder in unit/*/; do
  sources=("$folder"*_test.cpp)
  [[ -e ${sources[0]} ]] || continue
  text=$(cat "${sources[@]}" | tr '\n' ' ')
  cases=$(grep -oE "TEST_CASE[A-Z_]*\( *$literal" <<<"$text" |
    sed -E 's/^[^"]*"//; s/"$//; s/([^\\])" *"/\1/g; s/\\(.)/\1/g; s/^/unit./') || true
  found=$(grep -c . <<<"$cases" || true)
  wanted=$(grep -oE 'TEST_CASE[A-Z_]*\(' <<<"$text" | grep -c . || true)
  # Where a name is not read, or ends in " - TYPE" of a template, it may match.
  unknown=$((found != wanted))
  if [[ $pattern == *[-$]* && $text == *TEMPLATE_TEST_CASE* ]]; then
    here=unit.$(basename "$folder")/ begin=${pattern#^}
    begin=${begin%%[^A-Za-z0-9_./ ]*}
    [[ $pattern != ^* || $here == "$begin"* || $begin == "$here"* ]] && unknown=1
  fi
  if ((unknown)) || grep -qE -e "$pattern" <<<"$cases"; then add "unit_$(basename "$folder")"; fi
done

while read -r test; do
  case $test in
    unit_*_NOT_BUILT-*) test=${test%_NOT_BUILT-*} && add "$test" ;;
    unit.*/*) test=${test#unit.} && add "unit_${test%%/*}" ;;
    unit.* | one_thread.*) add "unit_${test#*.}" ;;
    example.gpt.*) add gpt ;;
    example.vgg.*) add vgg ;;
    example.stagger.*) add stagger_tool ;;
    example.[0-9]*) add "example_${test#example.}" ;;
    fuzz.*) add "${test#fuzz.}" ;;
    combinations | compile_fail.* | floors | run.targets) matched=1 ;;
    *) echo all && exit ;;
  esac
done < <(ctest --test-dir "$build" -N -R "$pattern" 2>/dev/null | sed -nE 's/^ *Test +#[0-9]+: //p' | sed -E 's/ \(Disabled\)$//')

# No test is known by such a name: building all of them makes sure.
((matched)) || { echo all; exit; }
((${#targets[@]})) || exit 0
# What needs something that is not installed has no target, and ctest shows it as disabled.
known=$(<"$build/CMakeFiles/TargetDirectories.txt")
for target in $(printf '%s\n' "${targets[@]}" | sort -u); do
  grep -qE "/$target\.dir\$" <<<"$known" && echo "$target"
done
exit 0
