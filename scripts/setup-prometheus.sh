#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts Debian's Prometheus and promtool into build/prometheus, for the tests of dashboards/. Does not install the
# package, because that starts a server which listens on all addresses.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly folder=build/prometheus
[[ ! -x $folder/promtool ]] || exit 0
rm -rf "$folder" "$folder.new"
mkdir -p "$folder.new"
cd "$folder.new"
apt-get download -q -o Acquire::http::Timeout=30 -o APT::Sandbox::User=root prometheus
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/prometheus ./usr/bin/promtool
rm prometheus_*.deb
cd ..
mv prometheus.new prometheus
echo "setup-prometheus: $(prometheus/promtool --version 2>&1 | head -n 1) is in $folder"
