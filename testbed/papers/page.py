# SPDX-License-Identifier: Apache-2.0
"""The documentation's page on papers, a section for each: `paralet papers NUMBER --page FILE` writes that paper's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from testbed.papers.claim import Claim
from testbed.papers.findings import Findings, Paper

DPI = 100


def write(page: Path, number: str, paper: Paper, findings: Findings) -> None:
    """Put the paper's section into the page, instead of an older one, and its drawings into `images/` beside it."""
    if findings.drawings:
        _draw(findings, page.parent / "images")
    page.write_text(with_section(page.read_text(), number, section(number, paper, findings)))


def _draw(findings: Findings, folder: Path) -> None:
    import matplotlib as mpl

    from testbed.report.plots import STYLE

    folder.mkdir(exist_ok=True)
    with mpl.rc_context(mpl.RcParams(STYLE)):
        for drawing in findings.drawings:
            drawing.draw().savefig(folder / f"{drawing.name}.png", dpi=DPI, metadata={"Software": None})


def section(number: str, paper: Paper, findings: Findings) -> str:
    """The paper's section, in Markdown."""
    notes = notes_of(findings.claims)
    rows = [
        f"| {claim.where} | {claim.what}{_mark(claim, notes)} | {printed_of(claim)} | {ours_of(claim)} "
        f"| {ratio_of(claim)} | {claim.verdict} |"
        for claim in findings.claims
    ]
    parts = [
        f"## {number}, {paper.title}",
        paper.text.strip(),
        *(f"![{drawing.alt}](images/{drawing.name}.png)" for drawing in findings.drawings),
        "\n".join(["| where | what | paper | ours | ratio | verdict |", "|---|---|---|---|---|---|", *rows]),
        "\n".join(f"{place}. {note}" for place, note in enumerate(notes, start=1)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def with_section(page: str, number: str, text: str) -> str:
    """The page with this section instead of that paper's, or where its number belongs."""
    head, *sections = re.split(r"(?m)^(?=## )", page)
    kept = {_number(old): old for old in sections}
    kept[number] = text
    return "\n\n".join(part.strip() for part in [head, *(kept[key] for key in sorted(kept))]) + "\n"


def notes_of(claims: Sequence[Claim]) -> list[str]:
    """Every note once, in the order of first use."""
    return list(dict.fromkeys(claim.note for claim in claims if claim.note))


def printed_of(claim: Claim) -> str:
    """The paper's number, for people; empty where it has none."""
    if claim.printed is None:
        return ""
    sign = {"equals": "", "more than": "> ", "less than": "< "}[claim.relation]
    return f"{sign}{claim.printed:,.{claim.decimals}f} {claim.unit}".strip()


def ours_of(claim: Claim) -> str:
    """Our number, with one digit more than the paper's."""
    return f"{claim.ours:,.{claim.decimals + 1}f} {claim.unit}" if claim.unit else f"{claim.ours:,.0f}"


def ratio_of(claim: Claim) -> str:
    """Ours over the paper's; empty where there is none."""
    return "" if claim.ratio is None else f"{claim.ratio:.3f}"


def _mark(claim: Claim, notes: list[str]) -> str:
    return f" [{notes.index(claim.note) + 1}]" if claim.note else ""


def _number(text: str) -> str:
    return text.removeprefix("## ").split(",", 1)[0]
