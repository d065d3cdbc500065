#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fetches what the guest with the kernel's SoftRoCE needs: QEMU and other tools from Debian, virtme-ng from PyPI, and a
# Debian kernel, which is unpacked into a cache and not installed. `make softroce` calls it; `make setup` does not.
# --host: fetch only what a machine needs whose own kernel has rdma_rxe.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly cache="${XDG_CACHE_HOME:-$HOME/.cache}/paralet/softroce" # emul/guest/kernel.py looks here
readonly suite=bookworm-backports                                 # 6.12: its rxe takes the source port from the flow label
readonly archive_keys=/usr/share/keyrings/debian-archive-keyring.gpg
# For the guest's root, console and shared folders; SoftRoCE; Open vSwitch's kernel datapath; shaping and packet loss.
readonly modules=(
    9p 9pnet_virtio virtio_pci virtio_mmio virtio_console overlay i8042 atkbd
    rdma_rxe crc32_generic ib_uverbs rdma_ucm
    openvswitch veth tun dummy
    sch_netem sch_tbf sch_htb sch_red sch_ingress cls_flower cls_u32 cls_matchall act_gact act_mirred act_police
    iptable_filter xt_u32 xt_statistic xt_tcpudp
)

say() { printf 'setup-softroce: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

debian_packages() {
    local wanted missing=() package
    mapfile -t wanted < <(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' scripts/softroce-packages.txt)
    for package in "${wanted[@]}"; do
        [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    ((EUID == 0)) ||
        die "only root can install Debian packages: run 'sudo apt-get install --no-install-recommends ${missing[*]}'"
    say "installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

virtme_ng() {
    [[ -x .venv/bin/virtme-run ]] && return 0
    say "installing virtme-ng into .venv"
    .venv/bin/python -m pip install --quiet 'virtme-ng>=1.42,<2'
}

# A separate apt configuration, so that the machine's package sources do not change.
own_apt() {
    local tool=$1
    shift
    "$tool" -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$work/lists" \
        -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root "$@"
}

kernel() {
    local version
    version=$(cat "$cache/version" 2>/dev/null) || true
    if [[ -f "$cache/boot/vmlinuz-$version" && "$(cat "$cache/modules")" == "${modules[*]}" ]]; then return 0; fi
    [[ "$(dpkg --print-architecture)" == amd64 ]] || die "the guest is for x86-64 machines"
    [[ -f $archive_keys ]] || die "$archive_keys is missing: apt-get install debian-archive-keyring"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work"/{lists,cache/archives}/partial "$work"/{tree,kept/boot,kept/lib/modules}
    echo "deb [signed-by=$archive_keys] http://deb.debian.org/debian $suite main" >"$work/sources.list"
    own_apt apt-get update -qq
    local package
    package=$(own_apt apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [[ -n $package ]] || die "$suite has no linux-image-amd64"
    version=${package#linux-image-}
    say "fetching $package (about 107 MB)"
    (cd "$work" && own_apt apt-get download -qq "$package")
    dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb | tar -x -C "$work/tree" ./boot ./lib/modules
    depmod -b "$work/tree" "$version"
    keep_modules "$version"
    cp "$work/tree/boot/vmlinuz-$version" "$work/kept/boot/"
    depmod -b "$work/kept" "$version"
    echo "$version" >"$work/kept/version"
    echo "${modules[*]}" >"$work/kept/modules"
    rm -rf "$cache"
    mkdir -p "$(dirname "$cache")"
    mv "$work/kept" "$cache"
    say "the guest's kernel is Linux $version, in $cache"
}

# Copies the modules named above and their dependencies from the unpacked package.
keep_modules() {
    local version=$1 module path
    for module in "${modules[@]}"; do
        modprobe -d "$work/tree" -S "$version" --show-depends "$module" || die "$version has no module $module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r path; do
        path=${path#"$work/tree/"}
        mkdir -p "$work/kept/$(dirname "$path")"
        cp "$work/tree/$path" "$work/kept/$path"
    done
    cp "$work/tree/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$work/kept/lib/modules/$version/"
}

command -v dpkg-query >/dev/null || die "this is not Debian: docs/softroce.md says what is needed"
[[ -x .venv/bin/python ]] || die "run 'make setup' first"
debian_packages
if [[ "${1:-}" == --host ]]; then exit 0; fi
virtme_ng
kernel
