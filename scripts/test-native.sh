#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The C++ tests of the engine: once as it ships and once under AddressSanitizer and UndefinedBehaviorSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

suite() {
    local title=$1 tree=$2
    shift 2
    echo "test-native: $title"
    if ! { cmake -S hostlib/native -B "$tree" -G Ninja -DPARALET_TESTS=ON "$@" && cmake --build "$tree"; } >"$tree.log" 2>&1; then
        tail -n 80 "$tree.log" >&2
        exit 1
    fi
    ctest --test-dir "$tree" --output-on-failure --no-tests=error --timeout 300
}

mkdir -p build
suite "as it ships" build/native -DCMAKE_BUILD_TYPE=RelWithDebInfo
suite "with AddressSanitizer and UBSan" build/asan -DCMAKE_BUILD_TYPE=Debug -DPARALET_SANITIZE=address,undefined
