#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests on emulated fabrics: three modules at a time, because they mostly wait; then three of those that measure slow
# links, each of which takes a quarter to a half of a processor; then the other tests that measure rates or times, one
# after the other. Every module has network namespaces of its own. Modules that take long start first
# (tests/integration/conftest.py), so the other workers are not idle while one of them runs.
#
# usage: scripts/test-integration.sh [--beside | --alone] [ARGUMENT_OF_PYTEST...]
#   --beside  only those that mostly wait
#   --alone   only those that measure, beside which nothing else should run
set -euo pipefail
cd "$(dirname "$0")/.."

part=all
case ${1:-} in
--beside | --alone)
    part=${1#--}
    shift
    ;;
esac

none=5 # pytest's exit status when it selected no test
results=()
tests() {
    local result=0
    .venv/bin/python -m pytest tests/integration --durations=60 --durations-min=3 "$@" || result=$?
    results+=("$result")
}

beside=(-n 3 --dist loadfile --no-loadscope-reorder)
if [[ $part != alone ]]; then
    tests -m 'not alone and not paced' "${beside[@]}" "$@"
fi
if [[ $part != beside ]]; then
    tests -m paced "${beside[@]}" "$@"
    tests -m alone "$@"
fi
[[ " ${results[*]} " =~ [^$none\ ] ]] || exit $none
for result in "${results[@]}"; do
    ((result == 0 || result == none)) || exit "$result"
done
