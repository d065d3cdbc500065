#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prepares a Debian or Ubuntu machine to build and run paralet: Debian packages, .venv, native engine. Does only what is
# missing, and prints nothing if nothing is. Each step prints a line that ends with its duration in seconds.
# `make setup` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly python=/usr/bin/python3 # Debian's own: the one that can import Debian's mininet
readonly log=.setup/log
mkdir -p .setup

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# quietly COMMAND...: runs it with its output kept in the log, and shows the end of it if the command fails.
quietly() {
    "$@" >"$log" 2>&1 || {
        [[ -z "${in_step:-}" ]] || echo >&2
        tail -n 60 "$log" >&2
        die "'$*' failed; the whole of its output is in $PWD/$log"
    }
}

# step TITLE COMMAND...: the same, as a step: its title when it begins, its duration when it ends.
step() {
    local title=$1 start=$SECONDS in_step=1
    shift
    printf 'setup: %s ... ' "$title" >&2
    quietly "$@"
    printf '%d s\n' $((SECONDS - start)) >&2
}

# missing FILE: the packages named in FILE that are not installed, one a line.
missing() {
    local package
    sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$1" | while read -r package; do
        [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
    done
}

debian_packages() {
    command -v dpkg-query >/dev/null ||
        die "this is not Debian: install what docs/dependencies.md lists, then run this again with PARALET_SKIP_APT=1"
    local needed checks package available=() lacking=()
    mapfile -t needed < <(missing scripts/apt-packages.txt)
    mapfile -t checks < <(missing scripts/apt-packages-check.txt)
    # Packages that this release lacks have been reported already.
    [[ "${checks[*]}" != "$(cat .setup/lacking 2>/dev/null)" ]] || checks=()
    ((${#needed[@]} + ${#checks[@]})) || return 0
    ((EUID == 0)) || ((${#needed[@]} == 0)) ||
        die "these Debian packages are missing and only root can install them: run 'sudo apt-get install --no-install-recommends ${needed[*]}'"
    ((EUID == 0)) || return 0
    export DEBIAN_FRONTEND=noninteractive
    step "reading the lists of Debian packages" apt-get update -q
    for package in "${checks[@]}"; do
        if [[ -n "$(apt-cache show "$package" 2>/dev/null)" ]]; then available+=("$package"); else lacking+=("$package"); fi
    done
    needed+=("${available[@]}")
    if ((${#needed[@]})); then
        step "installing ${#needed[@]} Debian packages: ${needed[*]}" apt-get install -q -y --no-install-recommends "${needed[@]}"
    fi
    ((${#lacking[@]} == 0)) || say "this release has no ${lacking[*]}: 'make lint', 'make test-native' and some unit tests need Debian 12"
    printf '%s' "${lacking[*]}" >.setup/lacking
}

# Whether the versions and hashes of requirements.lock are used: it is for Python 3.11. PARALET_UNLOCKED=1: never.
is_locked() {
    [[ -z "${PARALET_UNLOCKED:-}" && -f requirements.lock && "$("$python" --version)" == "Python 3.11."* ]]
}

python_environment() {
    local key stamp=.setup/python
    key="$("$python" --version) $PWD ${PARALET_UNLOCKED:-} $(cat pyproject.toml setup.py requirements.lock 2>/dev/null | sha256sum) $(echo */__init__.py)"
    [[ -x .venv/bin/paralet && "$(cat "$stamp" 2>/dev/null)" == "$key" ]] && return 0
    # --system-site-packages: mininet comes from Debian, not from PyPI.
    [[ -x .venv/bin/python ]] || step "making .venv" "$python" -m venv --system-site-packages .venv
    # --no-build-isolation keeps one pybind11, so that the CMake build tree is reused and not set up anew each time.
    local install=(.venv/bin/python -m pip install --quiet)
    if is_locked; then
        step "installing the Python packages of requirements.lock into .venv" \
            "${install[@]}" --require-hashes --only-binary :all: --requirement requirements.lock
        native_engine # a step of its own, which the next one finds done
        step "installing paralet into .venv" "${install[@]}" --no-deps --no-build-isolation --editable .
    else
        step "installing Python's build tools into .venv" "${install[@]}" 'setuptools>=66.1' wheel 'pybind11>=3.0,<4'
        native_engine
        step "installing paralet and its Python packages into .venv, which are not locked" \
            "${install[@]}" --no-build-isolation --editable '.[dev]'
    fi
    # Tests start many processes, as a user who cannot write what they compile.
    local packages=(*/__init__.py)
    quietly .venv/bin/python -m compileall -q "${packages[@]%/*}"
    printf '%s' "$key" >"$stamp"
}

# Ninja knows which sources changed; with none it takes a fraction of a second.
native_engine() {
    local tree=build/cmake/release compile=(.venv/bin/python setup.py --quiet build_ext --inplace)
    if [[ -f "$tree/build.ninja" ]] && ninja -C "$tree" -n paralet_python 2>/dev/null | grep -q 'no work to do'; then
        quietly "${compile[@]}"
    else
        step "compiling the native engine, which may take minutes" "${compile[@]}"
    fi
}

[[ -n "${PARALET_SKIP_APT:-}" ]] || debian_packages
python_environment
native_engine
