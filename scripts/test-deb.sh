#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks the Debian package in dist/: lintian, if it is here; and a minimal Debian in a folder of its own, where apt
# installs it and the package runs without a compiler, without this checkout and as another user than root.
#
# usage: scripts/test-deb.sh [DEB SUITE] (root)
#   DEB, SUITE  another package, and the Debian that it is for, such as `trixie`
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(dist/paralet_*.deb) # `make deb` leaves one
deb=${1:-${packages[0]}}
suite=${2:-$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)}
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$deb"
    echo "test-deb: lintian has nothing against it"
else
    echo "test-deb: lintian is not here: apt install lintian"
fi

scripts/debian-root.sh "$suite"
root=build/roots/$suite.deb
trap 'rm -rf "$root"' EXIT
rm -rf "$root"
cp -a "build/roots/$suite" "$root"
cp "$deb" "$root/paralet.deb"
install='apt-get update -q && apt-get install -q -y --no-install-recommends /paralet.deb'
scripts/in-root.sh "$root" sh -ec "$install" >"$root/log" 2>&1 || {
    tail -n 20 "$root/log"
    exit 1
}
scripts/in-root.sh "$root" setpriv --reuid=65534 --regid=65534 --clear-groups \
    bash -c "$(<scripts/check-installed.sh)" check plugin service
scripts/in-root.sh "$root" apt-get remove -q -y paralet >>"$root/log" 2>&1
left=$(find "$root/usr/lib/paralet" "$root/usr/bin/paralet" 2>/dev/null || true)
[[ -z $left ]] || {
    printf 'test-deb: removing the package leaves\n%s\n' "$left"
    exit 1
}
echo "test-deb: $(basename "$deb") installs on Debian $suite; the plugin is there, and the path service runs"
