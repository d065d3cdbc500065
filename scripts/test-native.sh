#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The C++ tests of the engine, the NCCL net plugin, the packet simulation and the CPU device for NCCL: as they ship,
# under AddressSanitizer (with LeakSanitizer) and UndefinedBehaviorSanitizer, and under ThreadSanitizer. The sanitizer
# runs include the plugin's conformance suite; pytest runs that suite as it ships. The fuzzers run briefly at the end.
# A suite that fails does not keep the others from running. Tests that fail run once more alone, because those with real
# sockets depend on the timing of a shared machine; what a sanitizer reports is a failure the first time.
#
# usage: scripts/test-native.sh [--build]
#   --build  only compile the tests and the fuzzers
set -euo pipefail
cd "$(dirname "$0")/.."

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=atexit_sleep_ms=50 # the default is a second for each process

case ${1:-} in
'' | --build) only_build=${1:-} ;;
*)
    echo "usage: scripts/test-native.sh [--build]" >&2
    exit 2
    ;;
esac
failed=()

# suite TITLE TREE CMAKE_OPTION...: builds the targets that the tests need, and runs the tests with `runner`.
suite() {
    local title=$1 tree=$2 start=$SECONDS
    shift 2
    echo "test-native: $title"
    if ! { cmake -S . -B "$tree" -G Ninja -DPARALET_TESTS=ON "$@" && cmake --build "$tree" "${targets[@]}"; } >"$tree.log" 2>&1; then
        tail -n 80 "$tree.log" >&2
        failed+=("$title (build)")
        return
    fi
    echo "test-native: $title: built in $((SECONDS - start)) s"
    [[ -z $only_build ]] || return 0
    local tests=("${runner[@]}" ctest --test-dir "$tree" --output-on-failure --no-tests=error --timeout 300 "${selected[@]}")
    local log=$tree/Testing/Temporary names
    # Every test takes free ports, so the tests of a suite can run side by side. They wait for most of the time.
    "${tests[@]}" --parallel $((2 * $(nproc))) && return
    if names=$(cut -d: -f2 "$log/LastTestsFailed.log") && ! grep -qE 'Sanitizer|runtime error: ' "$log/LastTest.log" &&
        "${tests[@]}" --rerun-failed; then
        echo "test-native: $title: passed only the second time: ${names//$'\n'/ }"
    else
        failed+=("$title")
    fi
}

mkdir -p build/cmake
threaded=(--target engine_tests verbs_tests verbs_old_tests plugin_tests plugin_verbs_tests profiler_tests nccl_net_paralet
    net-conformance cpu_device_tests cpu_kernel_tests pin_tests pin_verbs_tests pin_linked_tests pin_dlvsym_tests
    pin_agent_tests tls_tests tls_beside_tests)
targets=("${threaded[@]}" packet_tests plugin_header_is_c driver_tests nccl_profiler_paralet link_delay_tests)
runner=()
selected=()
# Of the trees that only tests use. Users' compilers may be newer and warn of more.
strict=-DCMAKE_COMPILE_WARNING_AS_ERROR=ON
# The tree of setup.py: what it built for the Python packages is not compiled again.
suite "as it ships" build/cmake/release
# The tree of scripts/fuzz.sh: the tests and the fuzzers share the engine, and nothing waits for the last of either.
targets+=(fuzzers)
suite "with AddressSanitizer and UBSan" build/cmake/clang "$strict" -DPARALET_FUZZ=ON -DCMAKE_C_COMPILER=clang-14 \
    -DCMAKE_CXX_COMPILER=clang++-14
# ThreadSanitizer needs a memory layout that kernels with much address randomisation do not give.
! setarch -R true 2>/dev/null || runner=(setarch -R)
# The tree has no tests without a second thread (settings.cmake), and whole programs of them are not built.
targets=("${threaded[@]}")
selected=(--exclude-regex '^(packet_|link_delay_|plugin_poll_deadline)')
suite "with ThreadSanitizer" build/cmake/tsan "$strict" -DPARALET_SANITIZE=thread
if [[ -z $only_build ]]; then
    echo "test-native: fuzzers (with AddressSanitizer and UBSan)"
    scripts/fuzz.sh 2000 || failed+=(fuzzers)
fi

if ((${#failed[@]})); then
    printf 'test-native: FAILED: %s\n' "${failed[@]}" >&2
    exit 1
fi
