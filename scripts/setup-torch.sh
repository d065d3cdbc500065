#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs PyTorch's build for CPUs into .venv, for the backend `paralet` of torch.distributed (docs/torch.md). The wheel
# (190 MB) comes from where pip is configured to look, or else from PyTorch's own index. `make torch` calls it;
# `make setup` does not.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly version=2.13.0+cpu
readonly index=https://download.pytorch.org/whl/cpu
readonly log=build/torch/log

[[ -x .venv/bin/python ]] || {
    echo "setup-torch: .venv is missing: run 'make setup'" >&2
    exit 1
}
# PyTorch's own tests import expecttest.
installed=$(.venv/bin/python -c 'import expecttest; from importlib.metadata import version; print(version("torch"))' \
    2>/dev/null || true)
if [[ $installed == "$version" ]]; then
    echo "setup-torch: torch $version is installed" >&2
    exit 0
fi
mkdir -p build/torch
install=(.venv/bin/python -m pip install --only-binary :all: --disable-pip-version-check "torch==$version" expecttest)
if ! "${install[@]}" >"$log" 2>&1 && ! "${install[@]}" --extra-index-url "$index" >>"$log" 2>&1; then
    tail -n 3 "$log" >&2
    echo "setup-torch: torch $version could not be installed from pip's indexes or $index; pip's output is in $PWD/$log" >&2
    exit 1
fi
echo "setup-torch: torch $version is in .venv" >&2
