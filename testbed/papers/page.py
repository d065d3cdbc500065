# SPDX-License-Identifier: Apache-2.0
"""Writes the documentation of a paper: a Markdown page with the numbers compared, and a CSV file with all claims."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from testbed.papers.claim import Claim, Verdict
from testbed.papers.findings import Findings, Paper

DPI = 100
HEAD = "| number | paper | ours | verdict |"
NOT_COMPARED: Sequence[Verdict] = ("input", "not computed", "not printed")
"""Verdicts on claims that are in the CSV file only."""
LISTED = {"agrees": "These agree:", "holds": "These hold:", "close": "These are within 5 %:"}
"""Verdicts of rows that are listed above the table."""

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
    """The page: text, figures, numbers beside those of the paper (a series as one row), and notes on deviations.

    Inputs, and numbers that only the paper or only we have, are in the CSV file only.
    """
    compared = [claim for claim in findings.claims if claim.verdict not in NOT_COMPARED]
    notes = notes_of(_deviating(compared))
    rows = _rows(compared)
    parts = [
        f"# {paper.title}",
        paper.text.strip(),
        *(f"![{drawing.alt}](images/{drawing.name}.png)" for drawing in findings.drawings),
        "## Printed numbers",
        _of_csv(findings.claims, csv_name),
        *_lists(rows),
        "\n".join([HEAD, "|---|---|---|---|", *_table(rows, notes)]),
        "\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _of_csv(claims: Sequence[Claim], csv_name: str) -> str:
    """What the CSV file has, and how many of its numbers the page leaves out, by verdict."""
    counts = Counter(claim.verdict for claim in claims)
    left_out = ", ".join(f"{counts[verdict]} {verdict}" for verdict in NOT_COMPARED if counts[verdict])
    sentence = f"[{csv_name}]({csv_name}) has all {len(claims)} numbers and notes."
    return f"{sentence} The table leaves these out: {left_out}." if left_out else sentence


def _rows(claims: Sequence[Claim]) -> list[list[Claim]]:
    """The claims of each series, and each other claim."""
    rows: dict[tuple[str, str, str], list[Claim]] = {}
    for claim in claims:
        rows.setdefault((claim.where, claim.series or claim.what, claim.unit), []).append(claim)
    return list(rows.values())


def _lists(rows: Sequence[Sequence[Claim]]) -> Iterator[str]:
    """The numbers of rows that need no note, by verdict and place."""
    for verdict, title in LISTED.items():
        places: dict[str, list[str]] = {}
        for row in rows:
            if _verdicts(row) == verdict:
                what = f"{row[0].series or row[0].what}: {_printed(row)}"
                ours = "" if verdict == "agrees" else f", ours {_ours(row)}"
                places.setdefault(row[0].where, []).append(what + ours)
        if places:
            yield "\n".join([f"{title}\n", *(f"- {where}: {'; '.join(found)}" for where, found in places.items())])


def _table(rows: Sequence[Sequence[Claim]], notes: list[str]) -> Iterator[str]:
    """The other rows, with ranges from the least to the greatest number. The unit is in the paper's column."""
    for row in rows:
        if _verdicts(row) not in LISTED:
            what = f"{row[0].where}: {row[0].series or row[0].what}"
            yield f"| {what} | {_printed(row)} | {_ours(row)} | {_verdicts(row)}{_marks(row, notes)} |"


def _printed(row: Sequence[Claim]) -> str:
    return _range(row, lambda claim: claim.printed or 0.0, printed_of)


def _ours(row: Sequence[Claim]) -> str:
    return _range(row, lambda claim: claim.ours or 0.0, ours_of).removesuffix(row[0].unit).strip()


def _range(claims: Sequence[Claim], number: Callable[[Claim], float], written: Callable[[Claim], str]) -> str:
    """The least and the greatest number as written, with the unit once."""
    least, most = (written(end(claims, key=number)) for end in (min, max))
    unit = claims[0].unit
    return most if least == most else f"{least.removesuffix(unit).strip()} to {most}"


def _verdicts(claims: Sequence[Claim]) -> str:
    """The verdict, with counts where there are several."""
    counts = Counter(claim.verdict for claim in claims)
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {verdict}" for verdict, n in counts.items())


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


def _deviating(claims: Sequence[Claim]) -> list[Claim]:
    """Those whose note the page shows; the others' notes are in the CSV file only."""
    return [claim for claim in claims if claim.verdict in ("differs", "fails")]


def _marks(claims: Sequence[Claim], notes: list[str]) -> str:
    numbers = ", ".join(str(notes.index(note) + 1) for note in notes_of(_deviating(claims)))
    return f" [{numbers}]" if numbers else ""
