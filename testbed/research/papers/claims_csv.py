# SPDX-License-Identifier: Apache-2.0
"""The CSV file of a paper: all claims, from which its page can be written again without computing them."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from testbed.errors import InputError
from testbed.research.papers.claim import Claim, Relation, Verdict

COLUMNS = ("where", "what", "unit", "relation", "paper", "ours", "ratio", "verdict", "deviates_if", "note", "series")
_RELATIONS: dict[str, Relation] = {name: name for name in get_args(Relation)}
_VERDICTS: dict[str, Verdict] = {name: name for name in get_args(Verdict)}


def table(claims: Sequence[Claim]) -> str:
    """All claims as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for claim in claims:
        printed = "" if claim.printed is None else f"{claim.printed:.{claim.decimals}f}"
        relation = "" if claim.printed is None else claim.relation
        ours = "" if claim.ours is None else f"{claim.ours:.{claim.decimals + 1 if claim.unit else 0}f}"
        numbers = (relation, printed, ours, ratio_of(claim))
        judged = (claim.verdict, claim.deviates_if)
        writer.writerow([claim.where, claim.what, claim.unit, *numbers, *judged, claim.note, claim.series])
    return text.getvalue()


def read(file: Path) -> list[Claim]:
    """The claims of a CSV file, with the verdicts recorded there.

    Raises:
        InputError: The file is not one that `table` has made.
    """
    try:
        return [_claim(row) for row in csv.DictReader(io.StringIO(file.read_text()))]
    except (KeyError, ValueError) as error:
        raise InputError(f"{file} is not a CSV file that `paralet papers` has written: {error!r}") from error


def _claim(row: dict[str, str]) -> Claim:
    printed = row["paper"]
    return Claim(
        row["where"],
        row["what"],
        row["unit"],
        ours=float(row["ours"]) if row["ours"] else None,
        printed=float(printed) if printed else None,
        decimals=len(printed.partition(".")[2]),
        relation=_RELATIONS[row["relation"] or "equals"],
        note=row["note"],
        series=row["series"],
        recorded=_VERDICTS[row["verdict"]],
    )


def ratio_of(claim: Claim) -> str:
    """Our number divided by the paper's; empty if one of them is missing."""
    return "" if claim.ratio is None else f"{claim.ratio:.3f}"
