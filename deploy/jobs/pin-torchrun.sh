#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a script with torchrun over the transport that it has, with planned source ports. One agent serves all workers of
# a host. On each host:
#
#   PARALET_PATH_SERVICE=10.0.0.1:4792 NNODES=2 RENDEZVOUS=host1:29400 JOB=bert pin-torchrun.sh train.py
set -euo pipefail

: "${PARALET_PATH_SERVICE:?set it to the address of the path service, as 10.0.0.1:4792}"
export PARALET_PATH_SERVICE PARALET_JOB=$JOB
export PARALET_PATH_SERVICE_TOKEN_FILE=${PARALET_PATH_SERVICE_TOKEN_FILE:-$HOME/.paralet-token}
exec paralet pin -- torchrun --nnodes "$NNODES" --nproc-per-node gpu --rdzv-backend c10d \
    --rdzv-endpoint "$RENDEZVOUS" --rdzv-id "$JOB" "$@"
