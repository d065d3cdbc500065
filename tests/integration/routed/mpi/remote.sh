#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Stands in for ssh between emulated hosts: `remote.sh HOST COMMAND..` runs a command on the host with this address,
# where `host.sh` runs.
pid=$(cat "$HOSTS/$1") || exit 1
# shellcheck disable=SC1090
. "$HOSTS/$1.environment"
shift
exec nsenter --target "$pid" --net --mount --uts sh -c "$*"
