#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes build/roots/SUITE, the files of a minimal Debian SUITE, with debootstrap. Does nothing where they are already.
# scripts/in-root.sh runs commands there. Packages that are installed there start no services.
#
# usage: scripts/debian-root.sh SUITE (root), such as `trixie` for Debian 13
set -euo pipefail
cd "$(dirname "$0")/.."

readonly suite=$1 root=build/roots/$1 mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
[[ ! -d $root ]] || exit 0
((EUID == 0)) || {
    echo "debian-root: only root can make the files of another Debian" >&2
    exit 1
}
log=$PWD/$root.log
start=$SECONDS
rm -rf "$root.new" # of a script that did not end
mkdir -p "$root.new"
{
    command -v debootstrap || DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends debootstrap
    debootstrap --variant=minbase "$suite" "$root.new" "$mirror"
    printf '#!/bin/sh\nexit 101\n' >"$root.new/usr/sbin/policy-rc.d"
    chmod 755 "$root.new/usr/sbin/policy-rc.d"
    rm -f "$root.new"/var/cache/apt/archives/*.deb
} >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "debian-root: cannot make $root; the whole output is in $log" >&2
    exit 1
}
mv "$root.new" "$root"
echo "debian-root: $root is Debian $(cat "$root/etc/debian_version"), made in $((SECONDS - start)) s"
