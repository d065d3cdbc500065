# SPDX-License-Identifier: Apache-2.0
"""`paralet papers`: what a paper says beside what we get."""

import json
from collections import Counter

import click

from testbed.papers import PAPERS, Claim


@click.command(epilog="Example: paralet papers 003 --json")
@click.argument("number", metavar="PAPER", type=click.Choice(list(PAPERS)))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def papers(number: str, as_json: bool) -> None:
    """Print the numbers of PAPER beside ours, with their ratio, ours / paper, and a verdict.

    docs/papers.md says what the verdicts mean and what our numbers rest on.
    """
    paper = PAPERS[number]
    claims = paper.claims()
    if as_json:
        listed = {"paper": number, "title": paper.title, "claims": [claim.as_json() for claim in claims]}
        click.echo(json.dumps(listed, indent=2))
    else:
        _print(paper.title, claims)


def _print(title: str, claims: list[Claim]) -> None:
    from rich.markup import escape

    from testbed.cli.tables import console, table

    listing = table(title, ["where", "what"], ["paper", "ours", "ratio", "verdict"])
    notes: list[str] = []
    for claim in claims:
        mark = ""
        if claim.note:
            if claim.note not in notes:
                notes.append(claim.note)
            mark = f" [{notes.index(claim.note) + 1}]"
        ratio = "" if claim.ratio is None else f"{claim.ratio:.3f}"
        ours = f"{claim.ours:,.{claim.decimals + 1}f}" if claim.unit else f"{claim.ours:,.0f}"
        listing.add_row(
            claim.where, escape(claim.what + mark), _printed(claim), f"{ours} {claim.unit}", ratio, claim.verdict
        )
    out = console()
    out.print(listing)
    for number, note in enumerate(notes, start=1):
        out.print(escape(f"[{number}] {note}"))
    verdicts = Counter(claim.verdict for claim in claims)
    out.print(f"{len(claims)} numbers: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))


def _printed(claim: Claim) -> str:
    if claim.printed is None:
        return ""
    sign = {"equals": "", "more than": "> ", "less than": "< "}[claim.relation]
    return f"{sign}{claim.printed:,.{claim.decimals}f} {claim.unit}"
