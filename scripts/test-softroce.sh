#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests against the kernel's SoftRoCE: on this machine if it has rdma_rxe, otherwise in a guest that has it.
# Arguments go to pytest. A successful run of all tests updates docs/interoperability.md.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly out=build/softroce
readonly tree=build/cmake/release
readonly table=interoperability.md
mkdir -p $out
rm -f $out/$table

# What the guest would be slow to build: the engine's back ends as a Python module, which only these tests use, and the
# conformance suite of NCCL net plugins. The engine itself is in this tree since set-up.
exec {lock}>build/lock # scripts/wheel.sh compiles in this tree, too
flock $lock
cmake -S . -B $tree -G Ninja -DPARALET_TESTS=ON >$out/build.log
cmake --build $tree --target raw_qp net-conformance >>$out/build.log || {
    tail -n 60 $out/build.log >&2
    exit 1
}
exec {lock}>&-

job=(env "PYTHONPATH=$PWD/$tree/tests/softroce/raw_qp" "PARALET_INTEROPERABILITY_TABLE=$PWD/$out/$table" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
    .venv/bin/python -m pytest tests/softroce/interop -p no:cacheprovider "$@")
if [[ -d /sys/module/rdma_rxe ]] || modprobe -q rdma_rxe 2>/dev/null; then
    scripts/setup-softroce.sh --host
    "${job[@]}"
else
    scripts/setup-softroce.sh
    .venv/bin/python -m emul.guest --log $out/guest.log --time-limit-s 1800 --writable $out -- "${job[@]}"
fi
if (($# == 0)); then cp $out/$table docs/$table; fi
