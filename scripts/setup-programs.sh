#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# setup-programs.sh PACKAGE PROGRAM...: puts programs of a Debian package into build/PACKAGE, for tests. Does not install
# the package: Debian's prometheus and etcd-server start a server.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly package=$1 folder=build/$1
shift
programs=("${@/#/.\/usr\/bin\/}")
[[ ! -x $folder/${!#} ]] || exit 0
rm -rf "$folder" "$folder.new"
mkdir -p "$folder.new"
cd "$folder.new"
apt-get download -q -o Acquire::http::Timeout=30 -o APT::Sandbox::User=root "$package"
dpkg-deb --fsys-tarfile "${package}"_*.deb | tar -x --strip-components=3 "${programs[@]}"
rm "${package}"_*.deb
cd ..
mv "$package.new" "$package"
echo "setup-programs: $("$package/${!#}" --version 2>&1 | head -n 1) is in $folder"
