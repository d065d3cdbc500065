# SPDX-License-Identifier: Apache-2.0
"""Writes the documentation of a paper: a Markdown page with its printed claims, and a CSV file with all claims."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.papers.claim import Claim
from testbed.papers.findings import Findings, Paper

DPI = 100

_LEAST, _MOST = "least", "most"
"""Suffixes of the names of the two claims that form a range."""

COLUMNS = ("where", "what", "unit", "relation", "paper", "ours", "ratio", "verdict", "note")


def write(page: Path, paper: Paper, findings: Findings) -> None:
    """Write the page, a CSV file with the same stem beside it, and the figures into `images/` beside it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    if findings.drawings:
        _draw(findings, page.parent / "images")
    page.write_text(markdown(paper, findings, f"{page.stem}.csv"))
    page.with_suffix(".csv").write_text(table(findings.claims))


def _draw(findings: Findings, folder: Path) -> None:
    import matplotlib as mpl

    from testbed.report.plots import STYLE

    folder.mkdir(exist_ok=True)
    with mpl.rc_context(mpl.RcParams(STYLE)):
        for drawing in findings.drawings:
            drawing.draw().savefig(folder / f"{drawing.name}.png", dpi=DPI, metadata={"Software": None})


def markdown(paper: Paper, findings: Findings, csv_name: str) -> str:
    """The page: text, figures, the claims with a printed number (a range as "least, most"), and their notes."""
    printed = [claim for claim in findings.claims if claim.printed is not None]
    notes = notes_of(printed)
    parts = [
        f"# {paper.title}",
        paper.text.strip(),
        *(f"![{drawing.alt}](images/{drawing.name}.png)" for drawing in findings.drawings),
        "## Printed numbers",
        f"[{csv_name}]({csv_name}) has all {len(findings.claims)} numbers, also those that the paper does not print.",
        "\n".join(["| where | what | paper | ours | verdict |", "|---|---|---|---|---|", *_rows(printed, notes)]),
        "\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(claims: Sequence[Claim], notes: list[str]) -> Iterator[str]:
    """One row per claim. The two ends of a range are consecutive and share one row."""
    rest = list(claims)
    while rest:
        claim = rest.pop(0)
        cells = [claim.what, printed_of(claim), ours_of(claim), claim.verdict]
        if rest and claim.what.endswith(_LEAST) and rest[0].what == claim.what.removesuffix(_LEAST) + _MOST:
            most = rest.pop(0)
            cells[0] = claim.what.removesuffix(_LEAST).rstrip(",: ")
            ends = [printed_of(most), ours_of(most), most.verdict]
            cells[1:] = [one if one == other else f"{one}, {other}" for one, other in zip(cells[1:], ends, strict=True)]
        yield f"| {claim.where} | {' | '.join(cells)}{_mark(claim, notes)} |"


def table(claims: Sequence[Claim]) -> str:
    """All claims as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for claim in claims:
        printed = "" if claim.printed is None else f"{claim.printed:.{claim.decimals}f}"
        relation = "" if claim.printed is None else claim.relation
        ours = "" if claim.ours is None else f"{claim.ours:.{claim.decimals + 1 if claim.unit else 0}f}"
        writer.writerow(
            [claim.where, claim.what, claim.unit, relation, printed, ours, ratio_of(claim), claim.verdict, claim.note]
        )
    return text.getvalue()


def notes_of(claims: Sequence[Claim]) -> list[str]:
    """Every note once, in the order of first use."""
    return list(dict.fromkeys(claim.note for claim in claims if claim.note))


def printed_of(claim: Claim) -> str:
    """The paper's number with its unit; empty if the paper prints none."""
    if claim.printed is None:
        return ""
    sign = {"equals": "", "more than": "> ", "less than": "< "}[claim.relation]
    return f"{sign}{claim.printed:,.{claim.decimals}f} {claim.unit}".strip()


def ours_of(claim: Claim) -> str:
    """Our number with its unit, with one digit more than the paper's; empty if we have none."""
    if claim.ours is None:
        return ""
    return f"{claim.ours:,.{claim.decimals + 1}f} {claim.unit}" if claim.unit else f"{claim.ours:,.0f}"


def ratio_of(claim: Claim) -> str:
    """Our number divided by the paper's; empty if one of them is missing."""
    return "" if claim.ratio is None else f"{claim.ratio:.3f}"


def _mark(claim: Claim, notes: list[str]) -> str:
    return f" [{notes.index(claim.note) + 1}]" if claim.note else ""
