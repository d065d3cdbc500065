#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# All static checks. Every check runs; the exit status is 1 if one of them failed. clang-tidy, which takes longest and
# uses all processors, runs beside the others, of which each uses one.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

failed=$(mktemp -d) # a file for each check that failed
trap 'rm -rf "$failed"' EXIT
trap 'kill 0' INT # a command in the background ignores Ctrl-C
check() {
    local name=$1 start=$SECONDS output
    shift
    if output=$("$@" 2>&1); then
        printf 'lint: %-14s ok (%d s)\n' "$name" $((SECONDS - start))
    else
        touch "$failed/$name"
        printf '%s\nlint: %-14s FAILED\n' "$output" "$name"
    fi
}

# Checks the code that set-up builds, the C++ tests and the fuzzers. The first run takes minutes; later ones check changes.
tidy() {
    local options=(-G Ninja -DCMAKE_UNITY_BUILD=OFF) sanitizers # whose headers are not in the package of clang-tidy
    sanitizers=$(clang++-14 -print-resource-dir)/include
    cmake -S . -B build/cmake/lint "${options[@]}" -DPARALET_TESTS=ON -DPARALET_PYTHON=ON \
        -DPython_EXECUTABLE="$PWD/.venv/bin/python" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >/dev/null &&
        cmake -S hostlib/native -B build/cmake/lint-fuzz "${options[@]}" -DPARALET_FUZZ=ON \
            -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_CXX_FLAGS="-idirafter $sanitizers" >/dev/null &&
        python scripts/tidy.py build/cmake/lint-fuzz build/cmake/lint
}

mapfile -t native < <(git ls-files --cached --others --exclude-standard '*.hpp' '*.cpp' '*.h' '*.c')
mapfile -t shell < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)

check clang-tidy tidy &
check ruff ruff check .
check ruff-format ruff format --check .
check mypy mypy
check import-linter lint-imports
check lock python scripts/locked.py check
check shellcheck shellcheck "${shell[@]}"
check clang-format clang-format-14 --dry-run --Werror "${native[@]}"
wait

mapfile -t names < <(ls "$failed")
if ((${#names[@]})); then
    echo "lint: ${names[*]} found fault" >&2
    exit 1
fi
