#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fuzzes the engine with packets, with frames over TCP, with lanes over TCP, with a peer that breaks every rule it
# can, with forged answers to probes, and with lines of a path service that does the same. Fuzzes what the path service
# reads natively with lines of hosts.
#
# usage: scripts/fuzz.sh [AMOUNT [TARGET...]]
#   AMOUNT  executions of each target (20000), or seconds when it ends in s (600s)
#   TARGET  frames, lanes, packets, peer, probes, renewals or service; all without one
#
# scripts/fuzz.sh 600s packets
#
# An input that makes a target fail is kept in build/fuzz/TARGET/. Run the program that is named there to repeat it.
# New inputs are kept there too. `PARALET_FUZZ_KEEP=1` merges it into the corpus, minimised.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly sources=hostlib/native/fuzz tree=build/cmake/clang
readonly programs=$tree/hostlib/native/fuzz
die() {
    echo "fuzz: $*" >&2
    exit 2
}

amount=${1:-20000}
shift || true
targets=("$@")
((${#targets[@]})) || targets=(frames lanes packets peer probes renewals service)
for target in "${targets[@]}"; do
    [[ -f $sources/$target.cpp ]] || die "there is no target '$target': take frames, lanes, packets, peer, probes, renewals or service"
done
case $amount in
*[!0-9s]* | s | *s?*) die "'$amount' is neither a number of executions (20000) nor of seconds (600s)" ;;
*s) limit="-max_total_time=${amount%s}" ;;
*) limit="-runs=$amount" ;;
esac
command -v clang++-14 >/dev/null || die "clang++-14 is missing: apt-get install clang-14 libclang-rt-14-dev"

mkdir -p build/fuzz
if ! { cmake -S . -B $tree -G Ninja -DPARALET_FUZZ=ON -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14 &&
    cmake --build $tree --target "${targets[@]/#/fuzz_}"; } >build/fuzz/build.log 2>&1; then
    tail -n 80 build/fuzz/build.log >&2
    exit 1
fi

# Reports show two frames of an allocation: more take time. Without ASAN_OPTIONS a repeated input shows all of them.
export ASAN_OPTIONS=detect_stack_use_after_return=0:malloc_context_size=2:quarantine_size_mb=16
export UBSAN_OPTIONS=print_stacktrace=1
for target in "${targets[@]}"; do
    found=build/fuzz/$target
    mkdir -p "$found/corpus"
    length=256
    [[ $target != renewals && $target != service ]] || length=1024 # a line has a hundred bytes or more
    # Leaks are looked for once, at the end. Entropic schedules took more time than the engine.
    options=("$limit" "-max_len=$length" -entropic=0 -detect_leaks=0 -timeout=60 -rss_limit_mb=2048 -print_final_stats=1
        "-artifact_prefix=$found/")
    [[ ! -f $sources/$target.dict ]] || options+=("-dict=$sources/$target.dict")
    if ! $programs/fuzz_"$target" "${options[@]}" "$found/corpus" "$sources/corpus/$target" >"$found/log" 2>&1; then
        grep -v '^#' "$found/log" | tail -n 60 >&2
        echo "fuzz: $target broke a promise; again with: $programs/fuzz_$target $found/crash-..." >&2
        exit 1
    fi
    sed -n "s/^Done \([0-9]*\) runs in \([0-9]*\) second.*/fuzz: $target: \1 executions in \2 s, nothing found/p" "$found/log"
    if [[ -n ${PARALET_FUZZ_KEEP:-} ]]; then
        rm -rf "$found/merged"
        mkdir "$found/merged"
        $programs/fuzz_"$target" -merge=1 -use_counters=0 "$found/merged" "$found/corpus" "$sources/corpus/$target" >"$found/log" 2>&1
        rm -rf "$sources/corpus/$target"
        mv "$found/merged" "$sources/corpus/$target"
        rm -rf "$found/corpus"
    fi
done
