#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Names the tests that passed only the second time, from the logs of the first runs: pytest's lines "FAILED name" and
# "ERROR name", and what scripts/test-native.sh says. More than three in all are a failure: then a fault hides there.
#
# usage: scripts/repeats.sh LOG...
set -euo pipefail
readonly most=3

names=$(sed -nE -e 's/^(FAILED|ERROR) ([^ ]+).*/\2/p' "$@")
native=$(sed -nE 's/^test-native: .*: passed only the second time: (.*)/\1/p' "$@" | tr ' ' '\n')
mapfile -t repeated < <(printf '%s\n%s\n' "$names" "$native" | sed '/^$/d' | sort -u)
echo "ci: ${#repeated[@]} tests passed only the second time"
((${#repeated[@]} == 0)) || printf 'ci:   %s\n' "${repeated[@]}"
((${#repeated[@]} <= most)) || {
    echo "ci: more than $most: a failure" >&2
    exit 1
}
