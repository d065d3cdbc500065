#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a program of Open MPI over TCP with planned source ports, one agent for each process:
#
#   PARALET_PATH_SERVICE=10.0.0.1:4792 INTERFACES=eth1 HOSTS=hosts.txt pin-mpirun.sh ./program
set -euo pipefail

: "${PARALET_PATH_SERVICE:?set it to the address of the path service, as 10.0.0.1:4792}"
export PARALET_PATH_SERVICE PARALET_IFNAME=$INTERFACES
export PARALET_PATH_SERVICE_TOKEN_FILE=${PARALET_PATH_SERVICE_TOKEN_FILE:-$HOME/.paralet-token}
exec mpirun --hostfile "$HOSTS" --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include "$INTERFACES" \
    -x PARALET_PATH_SERVICE -x PARALET_PATH_SERVICE_TOKEN_FILE -x PARALET_IFNAME paralet pin -- "$@"
