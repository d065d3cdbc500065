# SPDX-License-Identifier: Apache-2.0
"""Verdicts on our numbers compared with those of a paper."""

from __future__ import annotations

import ast
import csv
import operator
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli import main
from testbed.errors import InputError
from testbed.research.papers import PAPERS
from testbed.research.papers.claim import Claim, Relation, Verdict
from testbed.research.papers.claims_csv import read, table
from testbed.research.papers.findings import Findings, Paper
from testbed.research.papers.page import markdown
from testbed.research.papers.paralet.claims import of_theory

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("printed", "decimals", "ours", "verdict"),
    [
        (38.0, 0, 38.3, "agrees"),
        (77.0, 0, 76.6, "agrees"),
        (37.0, 0, 37.5, "agrees"),  # cut off
        (38.0, 0, 37.5, "agrees"),  # rounded
        (3.2, 1, 3.25, "agrees"),
        (3.2, 1, 3.299, "agrees"),  # cut off, 3 % away
        (1.1, 1, 1.18, "differs"),  # cut off, but further away than what is close
        (6.0, 0, 6.56, "differs"),
        (0.4, 1, 0.36, "differs"),  # rounded, but 10 % away
        (3.0, 0, 2.6, "differs"),
        (4.0, 0, 3.81, "agrees"),
        (-43.3, 1, -43.39, "agrees"),  # cut off
        (8.2, 1, 8.33, "close"),
        (8.2, 1, 8.6, "close"),
        (8.2, 1, 8.7, "differs"),
        (0.8, 1, 0.12, "differs"),
        (None, 0, 5.0, "not printed"),
    ],
)
def test_a_number_agrees_to_the_digits_printed(
    printed: float | None, decimals: int, ours: float, verdict: Verdict
) -> None:
    claim = Claim("here", "it", "%", ours, printed, decimals)
    assert claim.verdict == verdict
    assert claim.ratio == (None if printed is None else ours / printed)


def test_an_input_is_no_agreement() -> None:
    assert Claim("here", "it", "W", 18.0, 18.0, given=True).verdict == "input"


def paper_of(claims: Sequence[Claim], folder: Path) -> Paper:
    introduction = folder / "introduction.md"
    introduction.write_text("What was checked.\n")
    return Paper("Title", introduction, lambda quick: Findings(claims))


def test_the_page_has_the_numbers_that_differ(tmp_path: Path) -> None:
    claims = (
        Claim("II", "rate", "Tbit/s", 3.6, 3.6, 1, note="Of a data sheet.", given=True),
        Claim("IV-C", "a dead rail", "s", 0.04, None, 1),
        Claim("V", "accuracy", "%", None, 90.0),
        Claim("V", "share", "%", 12.0, 10.0, note="Counted twice."),
        Claim("V", "cost", "$", 10.3, 10.0, note="Rounded."),
        Claim("V", "power", "W", 104.0, 100.0),
        Claim("V", "time", "s", 3.0, 2.0, 0, "more than"),
    )
    text = markdown(paper_of(claims, tmp_path), Findings(claims), "it.csv")
    assert text.startswith("# Title\n\nWhat was checked.\n\n## Printed numbers\n\n")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[1:] == ["| V: share | 10 % | 12.0 [1] |"]
    verdicts = "agrees 1, close 1, differs 1, holds 1, input 1, not printed 1, not computed 1"
    assert f"[it.csv](it.csv) has all 7 numbers and notes ([verdicts](index.md): {verdicts})." in text
    assert text.endswith(
        "\n1. Counted twice.\n\nThese hold, or are within 5 % of the paper's number:\n\n"
        "- V: cost: 10 $\n- V: power: 100 W, ours 104.0\n- V: time: > 2 s, ours 3.0\n"
    )


def test_a_csv_file_has_everything_that_a_page_needs(tmp_path: Path) -> None:
    claims = [
        Claim("II", "rate", "Tbit/s", 3.6, 3.6, 1, note="Of a data sheet.", given=True),
        Claim("IV-C", "a dead rail", "s", 0.04, None, 1),
        Claim("V", "accuracy", "%", None, 90.0),
        Claim("V", "size, large", "MB", 33.59, 32, note="8 bytes each.", series="size"),  # close, but 33.6 differs
        Claim("V", "size, small", "MB", 3.0, 2, series="size"),
        Claim("V", "time", "s", 3.0, 2.5, 1, "less than"),
    ]
    file = tmp_path / "it.csv"
    file.write_text(table(claims))
    found = read(file)
    assert [claim.verdict for claim in found] == [claim.verdict for claim in claims]
    paper = paper_of(claims, tmp_path)
    assert markdown(paper, Findings(found), "it.csv") == markdown(paper, Findings(claims), "it.csv")


def test_another_csv_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "it.csv"
    file.write_text("where,what\nII,rate\n")
    with pytest.raises(InputError, match=r"it\.csv is not a CSV file that `paralet papers` has written: KeyError"):
        read(file)


@pytest.mark.parametrize("number", PAPERS)
def test_the_committed_pages_follow_from_their_csv_files(number: str, tmp_path: Path) -> None:
    pages = ROOT / "docs" / "papers"
    listed = re.search(rf"^- {number}: .*\((.*)\.md\)$", (pages / "index.md").read_text(), re.MULTILINE)
    assert listed is not None
    for suffix in (".md", ".csv"):
        shutil.copy(pages / f"{listed[1]}{suffix}", tmp_path)
    page = tmp_path / f"{listed[1]}.md"
    done = CliRunner().invoke(main, ["papers", number, "--from-csv", "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text() == (pages / page.name).read_text()


NAMES = {"000": "routing", "001": "vclos", "002": "topoopt", "003": "rail-only", "004": "paralet"}


def committed(number: str) -> list[str]:
    return (ROOT / "docs" / "papers" / f"{NAMES[number]}.csv").read_text().splitlines()


@cache
def exact(number: str) -> list[Claim]:
    """The claims of the quick check, but for those that are means of fewer draws than on the page."""
    if number == "004":
        return list(of_theory())
    drawn = ("Figure", "Theorem 2", "5.1", "5, question 4", "not in paper") if number == "000" else ()
    return [claim for claim in PAPERS[number].find(True).claims if not claim.where.startswith(drawn)]


@pytest.mark.parametrize("number", NAMES)
def test_the_committed_numbers_are_those_of_the_quick_check(number: str) -> None:
    rows = table(exact(number)).splitlines()
    assert len(rows) > 10
    assert set(rows) <= set(committed(number))


@pytest.mark.parametrize("number", NAMES)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_number_that_changes_by_ten_per_cent_is_seen(number: str, factor: float) -> None:
    for claim in exact(number):
        if claim.ours:
            changed = factor * claim.ours if claim.unit else claim.ours + 1  # without a unit it is a count
            (row,) = table([replace(claim, ours=changed)]).splitlines()[1:]
            assert row not in committed(number)


@pytest.mark.parametrize("number", NAMES)
def test_a_committed_verdict_follows_from_the_rule_beside_it(number: str) -> None:
    """As far as the digits of the file decide it."""
    for row in csv.DictReader(committed(number)):
        if not row["deviates_if"]:
            assert row["verdict"] in ("input", "not printed", "not computed")
            continue
        half_a_digit = 0.5 * 10.0 ** -len(row["ours"].partition(".")[2])
        found = {deviates(row, float(row["ours"]) + by) for by in (-half_a_digit, 0.0, half_a_digit)}
        if len(found) == 1:
            assert (row["verdict"] in ("differs", "fails")) is found.pop(), row


@pytest.mark.parametrize("number", NAMES)
def test_a_committed_ratio_is_that_of_the_numbers_beside_it(number: str) -> None:
    """So a number that is changed in the file by ten per cent is seen, also one that takes too long to compute here."""
    compared = [row for row in csv.DictReader(committed(number)) if row["ratio"]]
    assert compared
    for row in compared:
        ours, paper, ratio = (float(row[column]) for column in ("ours", "paper", "ratio"))
        halves = [0.51 * 10.0 ** -len(row[column].partition(".")[2]) for column in ("ours", "paper", "ratio")]
        derived = row["where"] in ("Fig. 7", "Table 7")  # so the paper's number is rounded here
        assert abs(ours - ratio * paper) <= halves[0] + derived * abs(ratio) * halves[1] + abs(paper) * halves[2], row


def deviates(row: dict[str, str], ours: float) -> bool:
    """Whether the rule in a row says that this number differs or fails."""
    left, relation, right = row["deviates_if"].rsplit(" ", 2)
    compare = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "!=": operator.ne}[relation]
    if left == "ours":
        return bool(compare(ours, float(right)))
    assert left == "|ours / paper - 1|"
    return bool(compare(abs(ours / float(row["paper"]) - 1), float(right)))


def test_a_number_says_when_it_would_deviate() -> None:
    assert Claim("here", "it", "%", 76.6, 77.0).deviates_if == "|ours / paper - 1| > 0.05"
    assert Claim("here", "it", "", 1, 0).deviates_if == "ours != 0"
    assert Claim("here", "it", "%", 76.6, 75.0, 0, "more than").deviates_if == "ours <= 75"
    assert Claim("here", "it", "%", 0.03, 0.04, 2, "less than").deviates_if == "ours >= 0.04"
    assert Claim("here", "it", "%", 0.03, 0.04, 2, "at least").deviates_if == "ours < 0.04"
    assert Claim("here", "it", "", 4, 3, 0, "at most").deviates_if == "ours > 3"
    assert Claim("here", "it", "W", 18.0, 18.0, given=True).deviates_if == ""


@pytest.mark.parametrize("arguments", [[], ["--page", "it.md", "--quick"], ["--page", "it.md", "--json"]])
def test_a_page_from_a_csv_file_needs_a_page_and_nothing_else(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the page is tried first
    done = CliRunner().invoke(main, ["papers", "003", "--from-csv", *arguments])
    assert done.exit_code == 2
    assert "--from-csv goes with --page, and with neither --quick nor --json" in done.output


@pytest.mark.parametrize(
    ("relation", "ours", "verdict"),
    [
        ("more than", 76.0, "holds"),
        ("more than", 75.0, "fails"),
        ("less than", 74.0, "holds"),
        ("less than", 76, "fails"),
        ("at least", 75.0, "holds"),
        ("at least", 74.9, "fails"),
        ("at most", 75.0, "holds"),
        ("at most", 75.1, "fails"),
    ],
)
def test_a_bound_holds_or_fails(relation: Relation, ours: float, verdict: Verdict) -> None:
    assert Claim("here", "it", "%", ours, 75.0, 0, relation).verdict == verdict


@pytest.mark.parametrize("number", NAMES)
def test_every_number_that_is_compared_is_computed(number: str) -> None:
    """A literal beside the paper's number agrees whatever our code does."""
    calls = [
        call
        for file in sorted((ROOT / "testbed" / "research" / "papers" / NAMES[number].replace("-", "_")).glob("*.py"))
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Claim"
    ]
    compared = {
        ast.unparse(call): ours
        for call in calls
        if (ours := argument(call, 3, "ours")) and argument(call, 4, "printed") and not argument(call, 9, "given")
    }
    assert compared
    literal = [
        call for call, ours in compared.items() if not any(isinstance(part, ast.Name) for part in ast.walk(ours))
    ]
    assert literal == []


def argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """An argument of a call, given by place or by name; None where it is left out or is the word None."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    found = call.args[place] if place < len(call.args) else named.get(name)
    return None if isinstance(found, ast.Constant) and found.value is None else found
