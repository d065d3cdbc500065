#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Every check that reads sources and runs none of them. All of them run; the exit status says whether one complained.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

failed=()
check() {
    local name=$1 start=$SECONDS output
    shift
    if output=$("$@" 2>&1); then
        printf 'lint: %-14s ok (%d s)\n' "$name" $((SECONDS - start))
    else
        failed+=("$name")
        printf '%s\nlint: %-14s FAILED\n' "$output" "$name"
    fi
}

# The native parts as set-up builds them, the tests as test-native builds them, and the fuzzers. It takes minutes, so
# what was found clean is not looked at again until a file changes.
tidy() {
    local key clean=build/tidy
    key=$(cat .clang-tidy CMakeLists.txt ./*/native/CMakeLists.txt nccl_net_plugin/driver/CMakeLists.txt "${native[@]}" | sha256sum)
    [[ "$(cat $clean 2>/dev/null)" != "$key" ]] || return 0
    cmake -S . -B build/cmake/test -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPARALET_TESTS=ON &&
        run-clang-tidy-14 -quiet -p build/cmake/inplace "$PWD/(hostlib|nccl_net_plugin|sdn|sim)/.*" &&
        run-clang-tidy-14 -quiet -p build/cmake/test "$PWD/((hostlib|nccl_net_plugin|sim)/native/(packet/)?tests|tests)/.*" &&
        cmake -S hostlib/native -B build/cmake/fuzz -G Ninja -DPARALET_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++-14 &&
        run-clang-tidy-14 -quiet -p build/cmake/fuzz "$PWD/hostlib/native/fuzz/.*" &&
        printf '%s' "$key" >$clean
}

mapfile -t native < <(git ls-files --cached --others --exclude-standard '*.hpp' '*.cpp' '*.h' '*.c')
mapfile -t shell < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)

check ruff ruff check .
check ruff-format ruff format --check .
check mypy mypy
check import-linter lint-imports
check shellcheck shellcheck "${shell[@]}"
check clang-format clang-format-14 --dry-run --Werror "${native[@]}"
check clang-tidy tidy

if ((${#failed[@]})); then
    echo "lint: ${failed[*]} found fault" >&2
    exit 1
fi
