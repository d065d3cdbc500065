#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# unprivileged.sh COMMAND...: runs COMMAND without root's rights. Called by root it becomes the user nobody, with a home
# of its own under /tmp, and fails where COMMAND leaves a process running; called by anyone else it changes nothing. Unit
# tests run this way, which proves that they need no privilege and end what they start.
set -euo pipefail

((EUID == 0)) || exec "$@"

home=$(mktemp -d /tmp/paralet-unprivileged.XXXXXX)
trap 'rm -rf "$home"' EXIT
# Hypothesis keeps the constants of every source, and finding them takes each process two seconds.
mkdir "$home/hypothesis"
[[ ! -d .hypothesis/constants ]] || cp -r .hypothesis/constants "$home/hypothesis/"
chown -R 65534:65534 "$home"
drop=(setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs)
if ! "${drop[@]}" test -r "$PWD/pyproject.toml"; then
    echo "unprivileged.sh: the user nobody cannot read $PWD, so this runs as root" >&2
    drop=()
fi
status=0
HOME=$home TMPDIR=$home PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=$home/hypothesis "${drop[@]}" "$@" || status=$?

# Processes of the command are known by their home. Those that end with it have a minute.
for ((tries = 600; tries > 0; tries--)); do
    mapfile -t left < <(grep -lsF "TMPDIR=$home" /proc/[0-9]*/environ | cut -d/ -f3)
    ((${#left[@]})) || exit "$status"
    sleep 0.1
done
for pid in "${left[@]}"; do
    echo "unprivileged.sh: left running, and killed: $(ps -o args= -p "$pid" || true)" >&2
    kill -KILL "$pid" || true
done
exit $((status > 0 ? status : 1))
