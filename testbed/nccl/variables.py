# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.nccl.variables`: what paralet does with NCCL's variables, as the table of docs/plugin.md.

`nccl_net_plugin/native/src/nccl_variables.inc` has the variables; the plugin compiles it. With `--source` the command
first adds the variables of a checkout of NCCL that the file lacks: those that NCCL documents, and those that only its
own network transports read. The latter have no effect where another net plugin carries the traffic.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from netmodel.printable import printable
from testbed.errors import InputError

_ROOT = Path(__file__).parents[2]
FILE = _ROOT / "nccl_net_plugin" / "native" / "src" / "nccl_variables.inc"
PAGE = _ROOT / "docs" / "plugin.md"
_BEGIN, _END = "<!-- nccl variables: begin -->\n", "<!-- nccl variables: end -->\n"

EFFECTS = {
    "kTaken": "stands in for",
    "kTakenByVerbs": "stands in for, on `verbs`",
    "kRead": "read",
    "kNone": "no effect",
    "kOwn": "NCCL's own, in effect",
}
"""The names of the enumeration `NcclEffect` of the plugin, as the page words them."""

_ROW = re.compile(r'^NCCL_VARIABLE\((NCCL_\w+), (\w+), "([^"]*)"\)$', re.MULTILINE)
_DOCUMENTED = re.compile(r"^(NCCL_[A-Z0-9_]+)\b.*\n-+$", re.MULTILINE)
_READS = (
    re.compile(r'\bNCCL_PARAM\(\s*\w+,\s*"([A-Z0-9_]+)"'),
    re.compile(r'"NCCL_([A-Z0-9_]+)"'),
    re.compile(r"\bDEFINE_NCCL_PARAM\([^,]+,[^,]+,\s*NCCL_([A-Z0-9_]+)"),
)
_TRANSPORTS = re.compile(r"src/(transport/net_socket\.cc|transport/net_ib/[a-z0-9_]+\.cc|misc/ibv\w+\.cc)$")
_APART = re.compile(r"src/transport/net_ib/gin")  # GPU-initiated networking, which is no part of a net plugin


@dataclass(frozen=True)
class Variable:
    """A variable of NCCL, its effect (a key of EFFECTS) with paralet, and what has its effect here instead, if any."""

    name: str
    effect: str
    here: str = ""


def read(text: str) -> list[Variable]:
    """The variables of nccl_variables.inc. Raises InputError where a row has an unknown effect."""
    rows = [Variable(*row) for row in _ROW.findall(text)]
    for row in rows:
        if row.effect not in EFFECTS:
            raise InputError(
                f"{FILE.name}: {row.name} has the effect {row.effect}, which is none of {', '.join(EFFECTS)}"
            )
    return rows


def merged(text: str, found: Iterable[Variable]) -> str:
    """The text of nccl_variables.inc with the variables that it lacks. Its own rows stay as they are."""
    known = read(text)
    names = {each.name for each in known}
    rows = sorted([*known, *(each for each in found if each.name not in names)], key=lambda each: each.name)
    lines = [f'NCCL_VARIABLE({each.name}, {each.effect}, "{each.here}")\n' for each in rows]
    first = _ROW.search(text)
    return text[: first.start() if first else len(text)] + "".join(lines)


def of_source(source: Path) -> list[Variable]:
    """The variables of a checkout of NCCL. Raises InputError where it has no documentation of variables."""
    page = source / "docs" / "userguide" / "source" / "env.rst"
    if not page.is_file():
        raise InputError(f"--source {source} is no checkout of NCCL with its documentation: there is no {page}")
    documented = set(_DOCUMENTED.findall(page.read_text()))
    readers: dict[str, set[str]] = {}
    for path in sorted((source / "src").rglob("*")):
        if path.suffix in {".cc", ".h"}:
            text = path.read_text()
            for pattern in _READS:
                for name in pattern.findall(text):
                    readers.setdefault(f"NCCL_{name}", set()).add(path.relative_to(source).as_posix())
    of_transports = {
        name
        for name, files in readers.items()
        if all(_TRANSPORTS.search(each) and not _APART.search(each) for each in files)
    }
    gone = documented - readers.keys()
    return [
        Variable(name, "kNone" if name in of_transports | gone else "kOwn")
        for name in sorted(documented | of_transports)
    ]


def table(variables: Sequence[Variable]) -> str:
    """The Markdown table: a row for each effect and what has it here, with the variables."""
    groups: dict[tuple[str, str], list[str]] = {}
    for effect in EFFECTS:
        for each in sorted(variables, key=lambda each: (not each.here, each.here, each.name)):
            if each.effect == effect:
                groups.setdefault((effect, each.here), []).append(f"`{each.name}`")
    lines = ["| effect | here | variables |\n", "|---|---|---|\n"]
    for (effect, here), names in groups.items():
        lines.append(f"| {EFFECTS[effect]} | {f'`{here}`' if here else ''} | {', '.join(names)} |\n")
    return "".join(lines)


def page_with(page: str, rows: str) -> str:
    """The page's text with this table. Raises InputError where it has no place for one."""
    begin, end = page.find(_BEGIN), page.find(_END)
    if begin < 0 or end < begin:
        raise InputError(f"{PAGE.name} has no lines {_BEGIN.strip()} and {_END.strip()}")
    return page[: begin + len(_BEGIN)] + rows + page[end:]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns 0, or 2 for wrong arguments and files."""
    parser = argparse.ArgumentParser(prog="python -m testbed.nccl.variables", description=__doc__)
    parser.add_argument("--source", metavar="FOLDER", type=Path, help="a checkout of NCCL, 2.30 or later")
    options = parser.parse_args(argv)
    try:
        if options.source:
            FILE.write_text(merged(FILE.read_text(), of_source(options.source)))
        PAGE.write_text(page_with(PAGE.read_text(), table(read(FILE.read_text()))))
    except InputError as error:
        print(printable(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
