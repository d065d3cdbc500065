#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds an OCI archive with the Debian package of dist/ on a minimal Debian, with buildah and without a registry:
# dist/paralet-image.tar, without what only the path service needs. Fails if it is larger than its limit.
#
# usage: scripts/image.sh [--service] [--test] (root)
#   --service  build dist/paralet-service-image.tar, with all of the package
#   --test     also run what the image has, from the archive
set -euo pipefail
cd "$(dirname "$0")/.."

name=paralet uses=(plugin) limit_mb=200 with_test=
for word in "$@"; do
    case $word in
    --service) name=paralet-service uses+=(service) limit_mb=300 ;;
    --test) with_test=1 ;;
    *)
        echo "usage: scripts/image.sh [--service] [--test]" >&2
        exit 2
        ;;
    esac
done
readonly archive=dist/$name-image.tar state=$PWD/build/image
command -v buildah >/dev/null || {
    echo "image: buildah is not here: apt install --no-install-recommends buildah" >&2
    exit 1
}
build() { buildah --storage-driver vfs --root "$state/storage" --runroot "$state/run" "$@"; }

suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
packages=(dist/paralet_*.deb) # `make deb` leaves one
scripts/debian-root.sh "$suite"
trap 'rm -rf "$state"' EXIT
rm -rf "$state" "$archive"
mkdir -p "$state"

container=$(build from scratch)
root=$(build mount "$container")
cp -a "build/roots/$suite/." "$root"
cp "${packages[0]}" "$root/paralet.deb"
if [[ $name == paralet ]]; then cp build/deb/extra "$root/without"; else touch "$root/without"; fi
cat >"$root/install" <<'SH'
set -euo pipefail
# As in Debian's own slim images. Licences stay.
printf '%s\n' path-exclude=/usr/share/{man,info,locale,doc}/\* path-include=/usr/share/doc/\*/copyright \
    >/etc/dpkg/dpkg.cfg.d/slim
{
    apt-get update -q
    apt-get install -q -y --no-install-recommends /paralet.deb
} >/log 2>&1 || { tail -n 20 /log; exit 1; }
xargs --delimiter '\n' rm -rf </without
rm -rf /usr/share/{man,info,locale} /var/lib/apt/lists/* /var/cache/* /var/log/*
find /usr/share/doc ! -type d ! -name copyright -delete
rm /paralet.deb /log /without /install /usr/sbin/policy-rc.d
SH
scripts/in-root.sh "$root" bash /install
version=$(dpkg-deb -f "${packages[0]}" Version)
build config --cmd '["paralet", "--help"]' --label "org.opencontainers.image.version=$version" \
    --label org.opencontainers.image.licenses=Apache-2.0 "$container"
size_mb=$(du -s --apparent-size --block-size=MB "$root" | sed 's/MB.*//')
build commit --quiet --disable-compression=false "$container" "oci-archive:$archive:$name:${version%%[+~]*}" >/dev/null
build rm "$container" >/dev/null
echo "image: $archive, $(du --apparent-size --block-size=MB "$archive" | sed 's/MB.*/ MB/'), unpacked $size_mb MB"
((size_mb < limit_mb)) || {
    echo "image: it must be smaller than $limit_mb MB" >&2
    exit 1
}
[[ $with_test ]] || exit 0

container=$(build from --quiet "oci-archive:$archive")
inside() { build run --isolation chroot --user 65534:65534 "$container" -- "$@"; }
inside bash -c "$(<scripts/check-installed.sh)" check "${uses[@]}"
# What the init containers of deploy/jobs/kubernetes do.
inside sh -ec 'cp -L /usr/lib/*-linux-gnu/libnccl-net-paralet.so /usr/lib/*-linux-gnu/libisal.so.2 /tmp'
echo "image: runs"
