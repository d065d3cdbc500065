#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs COMMAND in another root folder, such as one of scripts/debian-root.sh, with the network and the devices of this
# machine. Its mounts and processes are in namespaces of their own and end with it, so nothing stays mounted in FOLDER.
#
# usage: scripts/in-root.sh FOLDER COMMAND... (root)
set -euo pipefail
root=$(realpath "$1")
shift

inside() {
    cd "$1"
    shift
    mount --bind . . # pivot_root wants a mount
    cd "$PWD"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    mount -t tmpfs -o mode=755 tmpfs run
    touch etc/resolv.conf
    mount --bind /etc/resolv.conf etc/resolv.conf
    if [[ -n ${SSL_CERT_FILE:-} ]]; then # with certificates that only this machine knows
        touch run/certificates
        mount --bind /etc/ssl/certs/ca-certificates.crt run/certificates
    fi
    # Not chroot: sandboxes within change how / is mounted, so it has to be a mount.
    pivot_root . .
    umount --lazy .
    cd /
    "$@"
}
environment=(
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "TERM=${TERM:-dumb}"
    DEBIAN_FRONTEND=noninteractive
)
[[ ! -f /etc/ssl/certs/ca-certificates.crt ]] || environment+=(SSL_CERT_FILE=/run/certificates)
exec unshare --mount --propagation private --pid --fork --kill-child \
    bash -euo pipefail -c "$(declare -f inside); inside \"\$@\"" in-root "$root" env -i "${environment[@]}" "$@"
