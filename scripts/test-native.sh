#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The C++ tests of the engine and of the NCCL net plugin: once as they ship and once under AddressSanitizer and
# UndefinedBehaviorSanitizer. The plugin's conformance suite, which pytest runs as it ships, also under both of these,
# LeakSanitizer, and ThreadSanitizer. Then the fuzzers, briefly.
set -euo pipefail
cd "$(dirname "$0")/.."

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

# suite TITLE TREE TESTS CMAKE_OPTION...: builds what the tests whose names match TESTS need, and runs them.
suite() {
    local title=$1 tree=$2 tests=$3
    shift 3
    echo "test-native: $title"
    if ! { cmake -S . -B "$tree" -G Ninja -DPARALET_TESTS=ON "$@" && cmake --build "$tree" "${targets[@]}"; } >"$tree.log" 2>&1; then
        tail -n 80 "$tree.log" >&2
        exit 1
    fi
    ctest --test-dir "$tree" --output-on-failure --no-tests=error --timeout 300 --tests-regex "$tests"
}

mkdir -p build/cmake
targets=()
suite "as it ships" build/cmake/test . -DCMAKE_BUILD_TYPE=RelWithDebInfo
suite "with AddressSanitizer and UBSan" build/cmake/asan . -DCMAKE_BUILD_TYPE=Debug -DPARALET_SANITIZE=address,undefined
targets=(--target nccl_net_paralet net-conformance)
suite "with ThreadSanitizer" build/cmake/tsan ^conformance -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPARALET_SANITIZE=thread
echo "test-native: fuzzers (built with Clang, AddressSanitizer and UBSan)"
scripts/fuzz.sh 2000
