# SPDX-License-Identifier: Apache-2.0
"""`paralet papers`: compares the numbers of a paper with ours."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.cli.extras import require
from testbed.cli.options import FileToWrite, folder_to_write, to_write

if TYPE_CHECKING:
    from testbed.research.papers import Claim, Paper

_NUMBERS = ("000", "001", "002", "003", "004")
"""Those of `testbed.research.papers.PAPERS`, which imports what every paper computes."""


@click.command(epilog="Example: paralet papers 003 --json")
@click.argument("number", metavar="PAPER", type=click.Choice(_NUMBERS))
@click.option("--quick", is_flag=True, help="Check only a small part, in seconds.")
@click.option(
    "--page",
    type=FileToWrite(),
    help="Write the paper's page to this Markdown file, all numbers to a CSV file and figures to images/ beside it.",
)
@click.option("--from-csv", is_flag=True, help="Write --page again from its CSV file, without computing anything.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def papers(number: str, quick: bool, page: Path | None, from_csv: bool, as_json: bool) -> None:
    """Print the numbers of PAPER and ours, with the ratio ours / paper and a verdict.

    docs/papers/index.md explains the verdicts.
    """
    require("models", "paralet papers")
    from testbed.research.papers import PAPERS

    paper = PAPERS[number]
    if from_csv:
        _rewrite(page, paper, quick or as_json)
        return
    if page is not None:
        to_write(page.with_suffix(".csv"))
        folder_to_write(page.parent / "images")
    findings = paper.find(quick)
    if page is not None:
        from testbed.research.papers.page import write

        write(page, paper, findings)
    if as_json:
        listed = {"paper": number, "title": paper.title, "claims": [claim.as_json() for claim in findings.claims]}
        click.echo(json.dumps(listed, indent=2))
    else:
        _print(paper.title, findings.claims)


def _rewrite(page: Path | None, paper: "Paper", others: bool) -> None:
    from testbed.research.papers.page import rewrite

    if page is None or others:
        raise click.UsageError("--from-csv goes with --page, and with neither --quick nor --json")
    rewrite(page, paper)


def _print(title: str, claims: "Sequence[Claim]") -> None:
    from testbed.cli.tables import console, table
    from testbed.research.papers.claims_csv import ratio_of
    from testbed.research.papers.page import notes_of, ours_of, printed_of

    listing = table(title, ["where", "what"], ["paper", "ours", "ratio", "verdict"])
    notes = notes_of(claims)
    for claim in claims:
        mark = f" [{notes.index(claim.note) + 1}]" if claim.note else ""
        what = claim.what + mark
        listing.add_row(claim.where, what, printed_of(claim), ours_of(claim), ratio_of(claim), claim.verdict)
    out = console()
    out.print(listing)
    for number, note in enumerate(notes, start=1):
        out.print(f"[{number}] {note}")
    verdicts = Counter(claim.verdict for claim in claims)
    out.print(f"{len(claims)} numbers: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
