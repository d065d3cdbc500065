#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs NVIDIA's wheels of NCCL from PyPI, each into build/nccl/VERSION, for the CPU device (docs/nccl.md, which
# names their licences). `make nccl` calls it; `make setup` does not.
#
# usage: scripts/setup-nccl.sh [all | VERSION...]
#   Default: 2.32.3. `all` adds a release for each older net plugin interface that NCCL chooses: v11, v10, v9 and v8.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly into=build/nccl                            # testbed/nccl/cpu_device/wheels.py looks here
readonly every=(2.32.3 2.28.9 2.27.7 2.25.1 2.21.5) # these choose v12, v11, v10, v9 and v8
readonly library=nvidia/nccl/lib/libnccl.so.2

say() { printf 'setup-nccl: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

install_version() {
    local version=$1 work log
    [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "'$version' is not a version such as 2.32.3"
    if [[ -f $into/$version/$library ]]; then
        say "NCCL $version is installed"
        return
    fi
    [[ $(uname -m) == x86_64 ]] || die "the CPU device is for x86-64 machines"
    # The first release of the wheels for CUDA 13 is 2.27.7; those for CUDA 12 of the same release are larger.
    local package=nvidia-nccl-cu13
    [[ $(printf '%s\n' 2.27.7 "$version" | sort -V | head -n 1) == 2.27.7 ]] || package=nvidia-nccl-cu12
    mkdir -p "$into"
    log=$into/$version.log
    work=$(mktemp -d "$into/.new.XXXXXX")
    say "fetching $package $version from PyPI (some 200 to 300 MB)"
    if ! .venv/bin/python -m pip install --no-deps --only-binary :all: --disable-pip-version-check --no-cache-dir \
        --target "$work" "$package==$version" >"$log" 2>&1; then
        rm -rf "$work"
        tail -n 5 "$log" >&2
        die "$package $version could not be installed; the whole of pip's output is in $log"
    fi
    [[ -f $work/$library ]] || {
        rm -rf "$work"
        die "$package $version has no $library"
    }
    chmod 755 "$work" # mktemp made it for this user only, and unit tests run as another
    mv "$work" "$into/$version"
    rm -f "$log"
    say "NCCL $version is in $into/$version"
}

[[ -x .venv/bin/python ]] || die ".venv is missing: run 'make setup'"
versions=("$@")
((${#versions[@]})) || versions=("${every[0]}")
[[ ${versions[*]} != all ]] || versions=("${every[@]}")
for each in "${versions[@]}"; do install_version "$each"; done
