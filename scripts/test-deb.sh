#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks the Debian package in dist/: lintian, if it is here; and its files, mounted over this machine's in a namespace of
# their own, run without a compiler, without this checkout and as another user than root.
#
# usage: scripts/test-deb.sh (root)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(dist/paralet_*.deb)
deb=$PWD/${packages[0]} # `make deb` leaves one
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$deb"
    echo "test-deb: lintian has nothing against it"
else
    echo "test-deb: lintian is not here: apt install lintian"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"; rmdir /usr/lib/paralet 2>/dev/null || true' EXIT
chmod 755 "$work"
dpkg-deb -x "$deb" "$work/root"
dpkg-deb -e "$deb" "$work/control"
for script in postinst prerm postrm; do sh -n "$work/control/$script"; done
mkdir "$work/state"
chown nobody "$work/state"
cat >"$work/fabric.yaml" <<'EOF'
leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 20 Mbit/s}
EOF
cat >"$work/inside" <<'EOF'
set -euo pipefail
# What is compiled or fetched where it is installed would need one of these.
for program in gcc g++ cc c++ cmake pip; do ! command -v $program || exit 1; done
paralet --version
paralet doctor --for plugin | tail -n 1
paralet doctor --for service | tail -n 1
paralet plugin | sed -n 1,2p
cd "$1/state"
paralet path-service run --topology ../fabric.yaml --token-file token --listen 127.0.0.1:0 --metrics 127.0.0.1:0 --json >ready 2>log &
service=$!
for _ in $(seq 200); do [[ -s ready ]] && break; sleep 0.1; done
[[ -s ready ]] || { tail -n 5 log; exit 1; }
url=$(sed 's/.*"metrics": "\([^"]*\)".*/\1/' ready)
/usr/lib/paralet/bin/python3 -I -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())' "$url" | grep paralet_path_service_info
paralet path-service status --token-file token | sed -n 1p
kill $service
wait $service
EOF
cat >"$work/mounted" <<'EOF'
set -euo pipefail
mkdir -p "$1/bin" /usr/lib/paralet
mount --bind "$1/root/usr/lib/paralet" /usr/lib/paralet
ln -s /usr/lib/paralet/bin/paralet "$1/bin/paralet"
for program in bash sed grep tail seq sleep; do ln -s "$(type -P $program)" "$1/bin/$program"; done
setpriv --reuid=nobody --regid=nogroup --clear-groups env -i PATH="$1/bin" HOME=/ bash "$1/inside" "$1"
EOF
# The mount is seen in this namespace alone. The path has a shell's programs and the package's.
unshare --mount bash "$work/mounted" "$work"
echo "test-deb: the plugin is there, and the path service runs"
