#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A host that `remote.sh` runs commands on, with the environment that this script has: `host.sh ADDRESS`. Ends when
# there is a file $HOSTS/done. Emulated hosts share the machine's name and its /tmp, where Open MPI's daemons make
# folders that have the host's name: each host has a name and a folder of its own for them, or two daemons race to make
# one.
if [ -z "${NAMED-}" ]; then
    export NAMED=1
    exec unshare --uts "$0" "$@"
fi
echo "host-$1" | tr . - >/proc/sys/kernel/hostname
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
export -p >"$HOSTS/$1.environment"
echo $$ >"$HOSTS/$1.new"
mv "$HOSTS/$1.new" "$HOSTS/$1"
echo ready
while [ ! -e "$HOSTS/done" ]; do sleep 0.1; done
