#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests against the kernel's SoftRoCE: on this machine if it has rdma_rxe, otherwise in a guest that has it.
# Arguments go to pytest. A successful run of all tests updates docs/interoperability.md.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly out=build/softroce
readonly table=interoperability.md
mkdir -p $out
rm -f $out/$table

# The engine's back ends as a Python module, which only these tests use.
cmake -S tests/softroce/raw_qp -B $out/native -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DPython_EXECUTABLE="$PWD/.venv/bin/python" -Dpybind11_DIR="$(.venv/bin/python -m pybind11 --cmakedir)" >$out/build.log
cmake --build $out/native --target raw_qp >>$out/build.log || {
    tail -n 60 $out/build.log >&2
    exit 1
}

job=(env "PYTHONPATH=$PWD/$out/native" "PARALET_INTEROPERABILITY_TABLE=$PWD/$out/$table" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
    .venv/bin/python -m pytest tests/softroce/interop -p no:cacheprovider "$@")
if [[ -d /sys/module/rdma_rxe ]] || modprobe -q rdma_rxe 2>/dev/null; then
    scripts/setup-softroce.sh --host
    "${job[@]}"
else
    scripts/setup-softroce.sh
    .venv/bin/python -m emul.guest --log $out/guest.log --time-limit-s 1800 --writable $out -- "${job[@]}"
fi
if (($# == 0)); then cp $out/$table docs/$table; fi
