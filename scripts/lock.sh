#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes requirements.lock anew: the versions and hashes of all Python packages that a checkout uses on Debian 12 (Python
# 3.11). scripts/setup.sh installs these and no others there. Run it after a change of the dependencies in
# pyproject.toml, or to take newer versions. Needs the network.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly uv=0.13.9
mkdir -p build/lock
[[ -x build/lock/bin/uv ]] || python3 -m venv build/lock
build/lock/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv"
python3 scripts/locked.py requirements >build/lock/requirements.in
build/lock/bin/uv pip compile build/lock/requirements.in --quiet --upgrade --no-config --python-version 3.11 \
    --generate-hashes --no-annotate --no-header --only-binary :all: --output-file build/lock/requirements.lock
{
    echo "# Made by scripts/lock.sh for Python 3.11; do not edit."
    echo "# requirements: $(python3 scripts/locked.py digest)"
    cat build/lock/requirements.lock
} >build/lock/finished
mv build/lock/finished requirements.lock
echo "lock: $(grep -c '==' requirements.lock) packages are in requirements.lock"
