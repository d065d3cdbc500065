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

# clang-tidy takes seconds a file: a file is looked at again only when it, a header or the configuration changed.
tidy() {
    local stamps=build/tidy headers file key todo=()
    mkdir -p "$stamps"
    cmake -S hostlib/native -B build/native -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPARALET_TESTS=ON \
        -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
    headers=$(cat .clang-tidy $(git ls-files 'hostlib/native/*.h' 'hostlib/native/*CMakeLists.txt') | sha256sum)
    for file in "$@"; do
        grep -qF "$PWD/$file" build/native/compile_commands.json || continue # the Python binding is built elsewhere
        key=$(sha256sum "$file" - <<<"$headers" | sha256sum | cut -d' ' -f1)
        [[ -e $stamps/$key ]] || todo+=("$file $stamps/$key")
    done
    ((${#todo[@]})) || return 0
    printf '%s\n' "${todo[@]}" | xargs -P "$(nproc)" -L 1 bash -c \
        'clang-tidy-14 --quiet -p build/native --warnings-as-errors="*" "$0" && touch "$1"'
}

mapfile -t native < <(git ls-files --cached --others --exclude-standard 'hostlib/native/*.h' 'hostlib/native/*.cc' 'hostlib/native/*.cpp')
mapfile -t units < <(printf '%s\n' "${native[@]}" | grep -E '\.(cc|cpp)$' || true)
mapfile -t shell < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)

check ruff ruff check .
check ruff-format ruff format --check .
check mypy mypy
check import-linter lint-imports
check shellcheck shellcheck "${shell[@]}"
if ((${#native[@]})); then
    check clang-format clang-format-14 --dry-run --Werror "${native[@]}"
    check clang-tidy tidy "${units[@]}"
fi

if ((${#failed[@]})); then
    echo "lint: ${failed[*]} found fault" >&2
    exit 1
fi
