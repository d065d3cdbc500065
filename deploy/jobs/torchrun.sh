#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a script over paralet with torchrun. On each host:
#
#   NNODES=2 RENDEZVOUS=host1:29400 JOB=bert torchrun.sh train.py
set -euo pipefail

paralet doctor --for plugin >/dev/null
eval "$(paralet plugin | grep '^export ')"
export PARALET_JOB=$JOB
exec torchrun --nnodes "$NNODES" --nproc-per-node gpu --rdzv-backend c10d --rdzv-endpoint "$RENDEZVOUS" \
    --rdzv-id "$JOB" "$@"
