#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Measures over UCX's TCP transport: ucx.sh OWN-ADDRESS PORT [PEER-ADDRESS]. Without a peer it is the server, and says
# `ready` when it listens.
set -eu
own=$1 port=$2
shift 2
if [ -z "${UCX_NET_DEVICES-}" ]; then
    UCX_NET_DEVICES=$(ip -o address show to "$own" | cut -d ' ' -f 2)
    export UCX_NET_DEVICES UCX_TLS=tcp,self
    # UCX finds its devices in /sys, which shows those of the network namespace in which it was mounted.
    exec unshare --mount "$0" "$own" "$port" "$@"
fi
mount -t sysfs sysfs /sys
# Where it is built with MPI it is an MPI program, unless its standard input is a terminal.
script --quiet --return --command "ucx_perftest -t tag_bw -s 65536 -n 40 -w 2 -p $port $*" /dev/null </dev/null &
if [ $# -eq 0 ]; then
    until grep -q "$(printf ':%04X ' "$port")" /proc/net/tcp; do sleep 0.1; done
    echo ready
fi
wait $!
