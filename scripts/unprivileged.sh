#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# unprivileged.sh COMMAND...: runs COMMAND without root's rights. Called by root it becomes the user nobody, with a home
# of its own under /tmp; called by anyone else it changes nothing. Unit tests run this way, which proves that they need
# no privilege.
set -euo pipefail

((EUID == 0)) || exec "$@"

home=$(mktemp -d /tmp/paralet-unprivileged.XXXXXX)
trap 'rm -rf "$home"' EXIT
chown 65534:65534 "$home"
drop=(setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs)
if ! "${drop[@]}" test -r "$PWD/pyproject.toml"; then
    echo "unprivileged.sh: the user nobody cannot read $PWD, so this runs as root" >&2
    drop=()
fi
HOME=$home TMPDIR=$home PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=$home/hypothesis "${drop[@]}" "$@"
