#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The C++ tests of the engine, of the NCCL net plugin and of the packet fabric: as they ship, under AddressSanitizer (with
# LeakSanitizer) and UndefinedBehaviorSanitizer, and under ThreadSanitizer. The sanitizers' runs include the plugin's
# conformance suite, which pytest runs as it ships. Then the fuzzers, briefly.
set -euo pipefail
cd "$(dirname "$0")/.."

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

# suite TITLE TREE CMAKE_OPTION...: builds `targets`, everything without any, and has `runner` run the tests.
suite() {
    local title=$1 tree=$2
    shift 2
    echo "test-native: $title"
    if ! { cmake -S . -B "$tree" -G Ninja -DPARALET_TESTS=ON "$@" && cmake --build "$tree" "${targets[@]}"; } >"$tree.log" 2>&1; then
        tail -n 80 "$tree.log" >&2
        exit 1
    fi
    "${runner[@]}" ctest --test-dir "$tree" --output-on-failure --no-tests=error --timeout 300
}

mkdir -p build/cmake
targets=() runner=()
suite "as it ships" build/cmake/test -DCMAKE_BUILD_TYPE=RelWithDebInfo
suite "with AddressSanitizer and UBSan" build/cmake/asan -DCMAKE_BUILD_TYPE=Debug -DPARALET_SANITIZE=address,undefined
# What no test runs is left out. ThreadSanitizer wants memory laid out as it expects; kernels with much randomness in it
# do otherwise.
targets=(--target engine_tests verbs_tests verbs_old_tests packet_tests plugin_tests plugin_verbs_tests nccl_net_paralet net-conformance)
! setarch -R true 2>/dev/null || runner=(setarch -R)
suite "with ThreadSanitizer" build/cmake/tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPARALET_SANITIZE=thread
echo "test-native: fuzzers (built with Clang, AddressSanitizer and UBSan)"
scripts/fuzz.sh 2000
