#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs what an installed package has: in a minimal system without a compiler, without a checkout and as another user
# than root. The tests of packages and of images call it there: `bash -c "$(<scripts/check-installed.sh)" check USE...`.
#
# usage: scripts/check-installed.sh USE...
#   USE  `plugin` or `service`, as of `paralet doctor --for`
set -euo pipefail

# What is compiled or fetched where it is installed would need one of these.
for program in gcc g++ cc c++ cmake pip; do
    ! command -v $program || exit 1
done
((EUID != 0)) || exit 1
cd "$(mktemp -d)"
paralet --version
for use in "$@"; do paralet doctor --for "$use" | grep "^ready for $use"; done
paralet plugin | sed -n 1,2p
[[ " $* " == *" service "* ]] || exit 0

echo 'leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 20 Mbit/s}' >fabric.yaml
here=(--listen 127.0.0.1:0 --metrics 127.0.0.1:0)
paralet path-service run --topology fabric.yaml --token-file token "${here[@]}" --json >ready 2>log &
service=$!
trap 'kill $service' EXIT
for _ in $(seq 300); do
    [[ ! -s ready ]] || break
    sleep 0.1
done
[[ -s ready ]] || {
    tail -n 5 log
    exit 1
}
url=$(sed 's/.*"metrics": "\([^"]*\)".*/\1/' ready)
read_url='import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())'
/usr/lib/paralet/bin/python3 -I -c "$read_url" "$url" | grep paralet_path_service_info
paralet path-service status --token-file token | sed -n 1p
kill $service
trap - EXIT
wait $service
