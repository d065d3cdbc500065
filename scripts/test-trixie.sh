#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The emulated fabric and the Debian package on Debian 13: copies this checkout into build/trixie, sets it up there,
# runs the demo, checks its figures, builds the package and installs it in a root of its own. A second run compiles only
# what has changed.
#
# usage: scripts/test-trixie.sh [COMMAND...] (root)
#   COMMAND  runs there in place of all but the set-up, in the folder of the copy
set -euo pipefail
cd "$(dirname "$0")/.."

root=build/trixie
copy=$root/paralet
start=$SECONDS
scripts/debian-root.sh trixie
if [[ ! -d $root ]]; then
    rm -rf "$root.new"
    cp -a build/roots/trixie "$root.new"
    mv "$root.new" "$root"
fi

# Git's folder is copied too, for the version of the package.
mkdir -p "$copy"
find "$copy" -mindepth 1 -maxdepth 1 ! -name .venv ! -name .setup ! -name build -exec rm -rf {} +
git clone --quiet --bare --depth 1 "file://$PWD" "$copy/.git"
git -C "$copy" config core.bare false
git -C "$copy" reset --quiet
git ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from - | tar --extract --directory "$copy"

here() { scripts/in-root.sh "$root" env --chdir=/paralet "$@"; }
here scripts/setup.sh
if (($#)); then
    here "$@"
else
    here make demo
    status=0
    here .venv/bin/python tests/check_demo.py results/demo/summary.json || status=1
    here make deb
    packages=("$copy"/dist/paralet_*.deb)
    scripts/test-deb.sh "${packages[0]}" trixie
    ((status == 0)) || {
        echo "test-trixie: all but the figures of the demo passed; was the machine busy?" >&2
        exit 1
    }
fi
echo "test-trixie: passed in $((SECONDS - start)) s"
