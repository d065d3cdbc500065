#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the host library and the path service of the last release in build/last-release.COMMIT, and tests them with
# today's: docs/upgrading.md. `make test-upgrade` calls it.
#
# usage: test-upgrade.sh [pytest arguments...]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly release=36e4d27913107cda29859ff9a81dd60afd03f38e # 0.1.0
readonly tree=$PWD/build/last-release.$release python=$PWD/.venv/bin/python

git cat-file -e "$release^{commit}" 2>/dev/null || {
    echo "test-upgrade: this clone lacks commit $release, the last release: git fetch --unshallow" >&2
    exit 1
}
[[ -d "$tree" ]] || { # a tree of this name is whole
    rm -rf build/last-release*
    mkdir -p "$tree.new"
    git archive "$release" | tar -x -C "$tree.new"
    mv "$tree.new" "$tree"
}
cmake -S "$tree" -B "$tree/build/cmake" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPARALET_PYTHON=ON \
    -DPython_EXECUTABLE="$python" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" >/dev/null
cmake --build "$tree/build/cmake" --target _engine _planners
for module in hostlib/_engine sdn/_planners; do
    find "$tree/build/cmake" -name "${module#*/}.*.so" -exec cp {} "$tree/${module%/*}/" \;
done
PARALET_LAST_RELEASE=$tree "$python" -m pytest tests/deploy/test_last_release.py "$@"
