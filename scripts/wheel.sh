#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a manylinux wheel into dist/. auditwheel adds libisal and checks that the wheel needs no other library beyond the
# manylinux standard. The manylinux version follows from this machine's glibc: on Debian 12 it is 2.36 or older.
#
# Beside it dist/paralet.cdx.json lists what the wheel carries and what was locked: CycloneDX.
#
# usage: scripts/wheel.sh [--test]
#   --test  also install the wheel into an empty environment, then one extra after the other, and use what each promises
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

rm -rf build/wheel/plain dist build/bdist.*
quietly flock build/lock python -m build --wheel --no-isolation --outdir build/wheel/plain
quietly auditwheel repair --wheel-dir dist build/wheel/plain/*.whl
quietly python scripts/bill_of_materials.py dist/*.whl dist/paralet.cdx.json
echo "wheel: $(echo dist/*.whl), its bill of materials: dist/paralet.cdx.json"
[[ ${1:-} == --test ]] || exit 0

empty=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$empty"' EXIT
cp experiments/demo.yaml "$empty"
wheel=$(echo "$PWD"/dist/*.whl)
quietly python3 -I -m venv "$empty/venv"
quietly "$empty/venv/bin/pip" download --quiet --dest "$empty/base" "$wheel"
cd "$empty"
# Isolated from this checkout: another folder, -I, and a PATH without Debian's tools.
export PATH="$empty/venv/bin:/usr/bin:/bin"

packages=(base/*)
megabytes=$(cat "${packages[@]}" | wc -c | awk '{ printf "%.1f", $1 / 1e6 }')
started=$(date +%s%N)
pip install --quiet --no-index --find-links base paralet
echo "wheel: the base is $megabytes MB with its ${#packages[@]} packages, installed in $((($(date +%s%N) - started) / 1000000)) ms"
awk "BEGIN { exit !($megabytes < 15) }" || {
    echo "wheel: the base must be smaller than 15 MB" >&2
    exit 1
}

# lacks EXTRA COMMAND...: the command refuses in one sentence. Then installs the extra by the command in that sentence.
lacks() {
    local extra=$1 status=0
    shift
    "$@" >/dev/null 2>refusal || status=$?
    cat refusal
    [[ $status == 2 && "$(cat refusal)" == "paralet: "*": run pip install 'paralet[$extra]'" ]]
    eval "$(sed 's/.*: run pip/pip --quiet/' refusal)"
}

paralet --version
paralet plugin
python -I - <<'EOF'
import os
import subprocess

import hostlib

with hostlib.Device("127.0.0.1", lanes=2) as sender, hostlib.Device("127.0.0.2", lanes=2) as receiver:
    listener = receiver.listen()
    outgoing, incoming = sender.connect(listener.handle), listener.accept(timeout_s=60)
    data, received = bytearray(b"paralet") * 100_000, bytearray(700_000)
    receive, send = incoming.recv(received), outgoing.send(data)
    receive.wait(timeout_s=60)
    send.wait(timeout_s=60)
    assert received == data
    own = str(os.getpid())
    subprocess.run(["paralet", "stat", own], check=True)
    subprocess.run(["paralet", "stat", own, "--why"], check=True)
EOF

lacks models paralet predict h1 h5 50000 --topology demo.yaml
paralet predict h1 h5 50000 --topology demo.yaml
paralet run demo.yaml --fabric fluid --policy ecmp --policy pinned --seeds 1 --results results
python -I -c 'from netmodel import leaf_spine; from sdn.planners import PLANNERS; assert leaf_spine(2, 2, 2, 10**9).hosts'

serve=(paralet path-service run --topology demo.yaml --listen 127.0.0.1:0 --token-file token)
lacks service "${serve[@]}"
"${serve[@]}" >ready 2>/dev/null &
timeout 60 sh -c 'until grep -q ready ready; do sleep 0.1; done'
paralet path-service status --token-file token

lacks top paralet top --picture screen.svg --count 1
paralet top --picture screen.svg --count 1
grep -q '<svg' screen.svg

lacks fabric paralet run demo.yaml
python -I -c 'import sdn.openflow.app'
for use in plugin models service; do paralet doctor --for "$use" | grep "^ready for $use"; done
