#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# torchrun on one of several hosts, over Gloo: `torchrun.sh PYTHON OWN_ADDRESS FIRST_ADDRESS HOSTS SCRIPT..`. Emulated
# hosts share the machine's name, so each is told which interface and which address are its own.
python=$1 own=$2 first=$3 hosts=$4
shift 4
unset RANK WORLD_SIZE
GLOO_SOCKET_IFNAME=$(ip -brief address | awk -v own=" $own/" 'index($0, own) { sub("@.*", "", $1); print $1 }')
export GLOO_SOCKET_IFNAME OMP_NUM_THREADS=1
[ "$own" = "$first" ] && is_host=1 || is_host=0
exec "$python" -m torch.distributed.run --nnodes "$hosts" --nproc-per-node 1 --local-addr "$own" \
    --rdzv-backend c10d --rdzv-endpoint "$first:29400" --rdzv-conf "is_host=$is_host" --rdzv-id bert "$@"
