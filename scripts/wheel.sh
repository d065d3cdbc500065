#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a manylinux wheel into dist/. auditwheel adds libisal and checks that the wheel needs no other library beyond the
# manylinux standard. The manylinux version follows from this machine's glibc: on Debian 12 it is 2.36 or older.
#
# usage: scripts/wheel.sh [--test]
#   --test  also install the wheel into an empty environment, and use the parts that need no Debian package
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

case ${1:-} in
'' | --test) ;;
*)
    echo "usage: scripts/wheel.sh [--test]" >&2
    exit 2
    ;;
esac

mkdir -p build/wheel
log=build/wheel/log
quietly() {
    "$@" >"$log" 2>&1 || {
        tail -n 60 "$log" >&2
        echo "wheel: '$*' failed; the whole of its output is in $PWD/$log" >&2
        exit 1
    }
}

rm -rf build/wheel/plain dist build/lib.* build/bdist.*
quietly python -m build --wheel --no-isolation --outdir build/wheel/plain
quietly auditwheel repair --wheel-dir dist build/wheel/plain/*.whl
echo "wheel: $(echo dist/*.whl)"
[[ ${1:-} == --test ]] || exit 0

empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
quietly python3 -I -m venv "$empty/venv"
quietly "$empty/venv/bin/pip" install --quiet dist/*.whl
cp experiments/demo.yaml "$empty"
cd "$empty"
# Isolated from this checkout: another folder, -I, and a PATH without Debian's tools.
export PATH="$empty/venv/bin:/usr/bin:/bin"
paralet predict h1 h5 50000 --topology demo.yaml
paralet run demo.yaml --fabric fluid --policy ecmp --policy pinned --seeds 1 --results results
python -I - <<'EOF'
import hostlib
from netmodel import leaf_spine
from nccl_net_plugin import programs
from sdn.planners import PLANNERS

assert leaf_spine(2, 2, 2, 10**9).hosts and "optimal" in PLANNERS
with hostlib.Device("127.0.0.1", lanes=2) as sender, hostlib.Device("127.0.0.2", lanes=2) as receiver:
    sender.connect(receiver.listen().handle)
print("wheel: hostlib, netmodel, planners and the plugin's programs load:", programs.__name__)
EOF
