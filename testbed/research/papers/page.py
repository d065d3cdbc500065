# SPDX-License-Identifier: Apache-2.0
"""Writes the documentation of a paper: a Markdown page with the printed numbers, and a CSV file with all claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from testbed.research.papers.claim import CLOSE, Claim, Verdict
from testbed.research.papers.claims_csv import read, table
from testbed.research.papers.findings import Findings, Paper

DPI = 100
HEAD = "| number | paper | ours |\n|---|---|---|"
DEVIATIONS: Sequence[Verdict] = ("differs", "fails")
"""A row of the table has a number with one of these verdicts."""
NOT_COMPARED: Sequence[Verdict] = ("input", "not computed", "not printed")
"""Verdicts on claims that are in the CSV file only."""


def write(page: Path, paper: Paper, findings: Findings) -> None:
    """Write the page, a CSV file with the same stem beside it, and the figures into `images/` beside it."""
    if findings.drawings:
        _draw(findings, page.parent / "images")
    page.write_text(markdown(paper, findings, f"{page.stem}.csv"))
    page.with_suffix(".csv").write_text(table(findings.claims))


def rewrite(page: Path, paper: Paper) -> None:
    """Write the page again from the CSV file beside it, with the figures that it has.

    Raises:
        InputError: The CSV file is not one that `write` has written.
        OSError: The page or its CSV file cannot be read.
    """
    figures = [line for line in page.read_text().splitlines() if line.startswith("![")]
    csv_file = page.with_suffix(".csv")
    page.write_text(_markdown(paper, read(csv_file), figures, csv_file.name))


def _draw(findings: Findings, folder: Path) -> None:
    import matplotlib as mpl

    from testbed.report.plots import STYLE

    folder.mkdir(exist_ok=True)
    with mpl.rc_context(mpl.RcParams(STYLE)):
        for drawing in findings.drawings:
            drawing.draw().savefig(folder / f"{drawing.name}.png", dpi=DPI, metadata={"Software": None})


def markdown(paper: Paper, findings: Findings, csv_name: str) -> str:
    """The page: text, figures, and the numbers that the paper prints, where a series is one row.

    Those that differ are a table with notes, all others a list. What cannot be compared is in the CSV file only.
    """
    figures = [f"![{drawing.alt}](images/{drawing.name}.png)" for drawing in findings.drawings]
    return _markdown(paper, findings.claims, figures, csv_name)


def _markdown(paper: Paper, claims: Sequence[Claim], figures: Sequence[str], csv_name: str) -> str:
    notes = notes_of(_deviating(claims))
    compared = [claim for claim in claims if claim.verdict not in NOT_COMPARED]
    rows = [row for row in _rows(compared) if _deviating(row)]
    others = [row for row in _rows(compared) if not _deviating(row)]
    parts = [
        f"# {paper.title}",
        paper.introduction.read_text("utf-8").strip(),
        *figures,
        "## Printed numbers",
        _of_csv(claims, csv_name),
        "\n".join([HEAD, *(_line(row, notes) for row in rows)]) if rows else "",
        "\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1)),
        f"These hold, or are within {100 * CLOSE:g} % of the paper's number:" if others else "",
        "\n".join(_item(row) for row in others),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _of_csv(claims: Sequence[Claim], csv_name: str) -> str:
    """What the CSV file has, by verdict."""
    found = Counter(claim.verdict for claim in claims)
    counts = ", ".join(f"{verdict} {found[verdict]}" for verdict in get_args(Verdict) if found[verdict])
    return (
        f"[{csv_name}]({csv_name}) has all {len(claims)} numbers and notes ([verdicts](index.md): {counts}). The rows "
        "with a number that differs or fails:"
    )


def _rows(claims: Sequence[Claim]) -> list[list[Claim]]:
    """The claims of each series, and each other claim."""
    rows: dict[tuple[str, str, str], list[Claim]] = {}
    for claim in claims:
        rows.setdefault((claim.where, claim.series or claim.what, claim.unit), []).append(claim)
    return list(rows.values())


def _line(row: Sequence[Claim], notes: list[str]) -> str:
    """A row of the table, with ranges from the least to the greatest number. The unit is in the paper's column."""
    what = f"{row[0].where}: {row[0].series or row[0].what}"
    return f"| {what} | {_printed(row)} | {_ours(row)}{_marks(row, notes)} |"


def _item(row: Sequence[Claim]) -> str:
    """A row of the list. Our number is left out where all of the row agree."""
    what = f"- {row[0].where}: {row[0].series or row[0].what}: {_printed(row)}"
    return what if all(claim.verdict == "agrees" for claim in row) else f"{what}, ours {_ours(row)}"


def _printed(row: Sequence[Claim]) -> str:
    return _range(row, lambda claim: claim.printed or 0.0, printed_of)


def _ours(row: Sequence[Claim]) -> str:
    return _range(row, lambda claim: claim.ours or 0.0, ours_of).removesuffix(row[0].unit).strip()


def _range(claims: Sequence[Claim], number: Callable[[Claim], float], written: Callable[[Claim], str]) -> str:
    """The least and the greatest number as written, with the unit once."""
    least, most = (written(end(claims, key=number)) for end in (min, max))
    unit = claims[0].unit
    return most if least == most else f"{least.removesuffix(unit).strip()} to {most}"


def notes_of(claims: Sequence[Claim]) -> list[str]:
    """Every note once, in the order of first use."""
    return list(dict.fromkeys(claim.note for claim in claims if claim.note))


def printed_of(claim: Claim) -> str:
    """The paper's number with its unit; empty if the paper prints none."""
    if claim.printed is None:
        return ""
    sign = {"equals": "", "more than": "> ", "less than": "< ", "at least": ">= ", "at most": "<= "}[claim.relation]
    return f"{sign}{claim.printed:,.{claim.decimals}f} {claim.unit}".strip()


def ours_of(claim: Claim) -> str:
    """Our number with its unit, with one digit more than the paper's; empty if we have none."""
    if claim.ours is None:
        return ""
    return f"{claim.ours:,.{claim.decimals + 1}f} {claim.unit}" if claim.unit else f"{claim.ours:,.0f}"


def _deviating(claims: Sequence[Claim]) -> list[Claim]:
    """Those whose note the page shows; the others' notes are in the CSV file only."""
    return [claim for claim in claims if claim.verdict in DEVIATIONS]


def _marks(claims: Sequence[Claim], notes: list[str]) -> str:
    numbers = ", ".join(str(notes.index(note) + 1) for note in notes_of(_deviating(claims)))
    return f" [{numbers}]" if numbers else ""
