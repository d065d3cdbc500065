# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.nccl.releases`: every installed release of NCCL over the plugin, as the table of docs/nccl.md.

A row counts the cases that were run without a wrong element (collectives x element types x reductions x algorithms x
protocols), or names the collectives that went wrong. Without options it runs all installed releases and writes their
rows; `--check` compares instead. Rows of releases that were not run stay.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from netmodel.printable import printable
from testbed.errors import InputError, TestbedError
from testbed.nccl import devices
from testbed.nccl.collectives import COLLECTIVES
from testbed.nccl.elements import REDUCTIONS, TYPES

PAGE = Path(__file__).parents[2] / "docs" / "nccl.md"
_BEGIN, _END = "<!-- releases: begin -->\n", "<!-- releases: end -->\n"
_TIMEOUT_S = 600.0

OPTIONS = [
    *("--device", "cpu", "--json", "--ranks", "2", "--sizes", "70K", "--repetitions", "1", "--transports", "paralet"),
    *("--types", ",".join(TYPES), "--ops", ",".join(REDUCTIONS)),
    *("--algorithms", "Ring,Tree", "--protocols", "Simple,LL"),
]
"""The arguments of `paralet nccl` for the table."""


def row_of(release: str, found: Mapping[str, Any]) -> str:
    """The row of a release whose results, for all collectives and with OPTIONS, are `found`."""
    return _row(release, found, [_cell(found, name) for name in COLLECTIVES])


def row(release: str) -> str:
    """Run a release and describe it as a row. A collective that cannot be run is `fails`."""
    try:
        return row_of(release, _run(release, tuple(COLLECTIVES)))
    except TestbedError as error:
        print(printable(f"NCCL {release}: {error}; trying each collective by itself"), file=sys.stderr)
    cells = []
    found: Mapping[str, Any] = {}
    for name in COLLECTIVES:
        try:
            found = _run(release, (name,))
            cells.append(_cell(found, name))
        except TestbedError as failure:
            print(printable(f"NCCL {release}, {name}: {failure}"), file=sys.stderr)
            cells.append("fails")
    return _row(release, found, cells)


def _row(release: str, found: Mapping[str, Any], cells: Sequence[str]) -> str:
    interface = found.get("interfaces", {}).get("paralet", "-")
    bad = [f"{name}: {cell}" for name, cell in zip(COLLECTIVES, cells, strict=True) if not cell.isdigit()]
    cases = "; ".join(bad) or str(sum(map(int, cells)))
    return f"| {release} | {interface} | {cases} |"


def table(rows: Sequence[str]) -> str:
    """The Markdown table with these rows."""
    lines = ["| NCCL | interface | cases |", "| --- | --- | ---: |", *rows]
    return "".join(f"{line}\n" for line in lines)


def updated(rows: Sequence[str], fresh: Sequence[str]) -> list[str]:
    """The rows with the fresh ones in place of those of the same releases, newest release first."""
    by_release = {row.split("|")[1].strip(): row for row in [*rows, *fresh]}
    return [by_release[each] for each in sorted(by_release, key=_version, reverse=True)]


def _version(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def written(page: str) -> str:
    """The table in the page's text. Raises InputError where it has none."""
    begin, end = page.find(_BEGIN), page.find(_END)
    if begin < 0 or end < begin:
        raise InputError(f"the page has no lines {_BEGIN.strip()} and {_END.strip()}")
    return page[begin + len(_BEGIN) : end]


def _run(release: str, collectives: Sequence[str]) -> Mapping[str, Any]:
    """The results of a release. Raises TestbedError with the last line that the command has printed."""
    with tempfile.TemporaryDirectory() as out:
        argv = [sys.executable, "-m", "testbed.nccl", *OPTIONS, "--nccl", release, "--out", out]
        done = subprocess.run(
            [*argv, "--collectives", ",".join(collectives)], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    if done.returncode and not done.stdout:
        raise TestbedError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _cell(found: Mapping[str, Any], name: str) -> str:
    rows = [each["out_of_place"] for each in found["results"] if each["collective"] == name]
    wrong = sum(1 for each in rows if each["nwrong"])
    return f"{wrong} of {len(rows)} wrong" if wrong else str(len(rows))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns 0, or 1 where a row differs from the page's or a release fails."""
    parser = argparse.ArgumentParser(prog="python -m testbed.nccl.releases", description=__doc__)
    parser.add_argument("--nccl", metavar="VERSION", nargs="*", help="releases (default: all that are installed)")
    parser.add_argument("--check", action="store_true", help="compare with the page and write nothing")
    options = parser.parse_args(argv)
    releases = options.nccl or list(devices.installed())
    if not releases:
        print("no release of NCCL is installed: run `make nccl`", file=sys.stderr)
        return 2
    page = PAGE.read_text()
    rows = [row(each) for each in releases]
    known = written(page).splitlines()[2:]
    if options.check:
        missing = [each for each in rows if each not in known]
        for each in missing:
            print(printable(f"{PAGE} lacks the row {each}"), file=sys.stderr)
        return 1 if missing else 0
    PAGE.write_text(page.replace(_BEGIN + written(page), _BEGIN + table(updated(known, rows))))
    return 1 if any("fails" in each or "wrong" in each for each in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
