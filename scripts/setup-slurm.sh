#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# setup-slurm.sh: puts Debian's Slurm into build/slurm, for tests. Does not install the packages, which start daemons.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly folder=build/slurm packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins)
[[ ! -x $folder/usr/sbin/slurmctld-wlm ]] || exit 0
rm -rf "$folder" "$folder.new"
mkdir -p "$folder.new"
cd "$folder.new"
apt-get download -q -o Acquire::http::Timeout=30 -o APT::Sandbox::User=root "${packages[@]}"
for package in *.deb; do dpkg-deb --extract "$package" .; done
rm ./*.deb
cd ..
mv slurm.new slurm
echo "setup-slurm: $(LD_LIBRARY_PATH=$(echo slurm/usr/lib/*/slurm-wlm) slurm/usr/sbin/slurmctld-wlm -V) is in $folder"
