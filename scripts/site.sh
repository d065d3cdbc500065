#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the documentation site into build/site: pages, search and an API reference made from docstrings. A broken link
# or anchor is an error, and so is a page that asks another host for something or is wider than its window, where
# Chromium is there to see it. It needs `make setup`, since the program prints its own reference, and the network only
# to install the packages of the extra `docs` and to fetch Mermaid.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly venv=build/site-venv stamp=build/site-venv/packages
wanted="$(python3 -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["project"]["optional-dependencies"]["docs"]))')"
if [[ "$(cat $stamp 2>/dev/null)" != "$wanted" ]]; then
    python3 -m venv --clear $venv
    mapfile -t packages <<<"$wanted"
    $venv/bin/python -m pip install --quiet --disable-pip-version-check "${packages[@]}"
    printf '%s' "$wanted" >$stamp
fi

rm -rf build/site
python3 scripts/mermaid.py build/mermaid
$venv/bin/python scripts/stage_site.py build/site-pages build/mermaid
PYTHONPATH=. .venv/bin/python scripts/program_reference.py build/site-pages/api
$venv/bin/zensical build --strict --clean --config-file mkdocs.yml
.venv/bin/python -m tests.docs.site build/site
echo "site: $PWD/build/site/index.html"
