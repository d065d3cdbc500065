# SPDX-License-Identifier: Apache-2.0
"""A page of parts with a heading, a table and a picture each: what `paralet sweep` and `paralet cluster` write."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from testbed.report.html import render


@dataclass(frozen=True, slots=True)
class Table:
    """Cells by row. The first `names` columns are names; the others are numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """What stands under one heading, in this order; what is None or empty is left out."""

    heading: str
    lead: str = ""
    table: Table | None = None
    picture: Markup | None = None
    note: str = ""


def write_sheet(path: Path, title: str, lead: str, parts: Sequence[Part]) -> Path:
    """Write the page to `path` and return it. The program that reads it needs no network."""
    path.write_text(render("sheet.html.j2", title=title, lead=lead, parts=parts))
    return path
