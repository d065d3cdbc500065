#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# TaskProlog of slurm.conf: planned source ports for the tasks of jobs that ask for them, one agent for each task. A job
# asks by PARALET_PIN=1, and has the address of the path service:
#
#   PARALET_PIN=1 PARALET_PATH_SERVICE=10.0.0.1:4792 srun python train.py
set -euo pipefail

[[ "${PARALET_PIN:-}" == 1 ]] || exit 0
export PARALET_PATH_SERVICE_TOKEN_FILE=${PARALET_PATH_SERVICE_TOKEN_FILE:-$HOME/.paralet-token}
exec "${PARALET:-paralet}" pin --variables "$SLURM_TASK_PID"
