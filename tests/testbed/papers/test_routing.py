# SPDX-License-Identifier: Apache-2.0
"""The check of "Routing for Large ML Models": its theorems, its evaluation in small, and the page made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli import main
from testbed.papers import PAPERS, Findings
from testbed.papers.page import with_section, write
from testbed.papers.routing import find, theory
from testbed.papers.routing.evaluation import Case, cases, measure
from testbed.workloads.training_models import BLOOM, GPT3, LLAMA2

PAGE = "# Papers\n\nWords.\n\n## 002, Before\n\nold\n\n## 004, After\n\nstays\n"


@pytest.fixture(scope="module")
def quick() -> Findings:
    return find(True)


def test_greedy_reaches_twice_the_optimum_and_half_its_rate() -> None:
    greedy, best = theory.tight_case()
    assert greedy.congestion == pytest.approx(2 * best.congestion)
    assert greedy.fairness.minimum == pytest.approx(best.fairness.minimum / 2)
    assert best.proved


def test_the_bounds_hold_in_trials() -> None:
    tried = theory.trials(300, seed=5)
    assert (tried.beyond_twice, tried.colouring_beyond) == (0, 0)
    assert 1 <= tried.mean <= 2


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_greedy_stays_within_twice_the_optimum_of_permutations(size: int) -> None:
    greedy, best = theory.permutations(3, 4 * size, size)
    assert best == pytest.approx(1)
    assert 1 - 1e-9 <= greedy <= 2 + 1e-9


def test_rings_of_8_leave_no_room_for_4_jobs() -> None:
    every = cases(quick=False)
    assert len(every) == 3 * (5 + 5 + 3)
    assert not any(case.ring == 8 and case.jobs > 3 for case in every)
    assert Case(LLAMA2, 4, 5).models == [(model, 4) for model in (LLAMA2, BLOOM, GPT3, LLAMA2, BLOOM)]


def test_nothing_beats_the_ideal_and_colouring_reaches_it() -> None:
    planners = ("ecmp", "greedy", "optimal")
    points, planned = measure(Case(BLOOM, 4, 2), planners, 2, 1, lambda _: None)
    by = {point.planner: point for point in points}
    assert all(point.slowdown >= 1 - 1e-9 for point in points)
    assert by["optimal"].slowdown == pytest.approx(1)
    assert by["optimal"].proved
    assert by["optimal"].throughput_bps == pytest.approx(100e9)
    assert by["ecmp"].slowdown > 1.5
    assert {one.planner for one in planned} == set(planners)


def test_jobs_lie_alike_whatever_has_failed() -> None:
    whole, failed = (measure(Case(BLOOM, 4, 1, spines), ("optimal",), 1, 1, lambda _: None)[0] for spines in (0, 31))
    # One spine of 32 is left: the 32 flows that leave a ToR side by side share a link.
    assert failed[0].slowdown == pytest.approx(32 * whole[0].slowdown)


def test_what_does_not_depend_on_speed_is_as_the_paper_says(quick: Findings) -> None:
    claims = [claim for claim in quick.claims if claim.where != "Figure 7"]
    assert {claim.verdict for claim in claims} == {"agrees", "holds", "not printed"}
    assert sum(claim.verdict == "agrees" for claim in claims) >= 8


def test_a_page_gets_the_section_and_its_figures(quick: Findings, tmp_path: Path) -> None:
    page = tmp_path / "papers.md"
    page.write_text(PAGE)
    write(page, "000", PAPERS["000"], quick)
    text = page.read_text()
    assert text.index("## 000, Routing for Large ML Models") < text.index("## 002") < text.index("## 004")
    for drawing in quick.drawings:
        assert f"(images/{drawing.name}.png)" in text
        assert 5_000 < (tmp_path / "images" / f"{drawing.name}.png").stat().st_size < 200_000
    write(page, "000", PAPERS["000"], quick)
    assert page.read_text() == text


def test_a_section_takes_the_place_of_its_older_one() -> None:
    changed = with_section(PAGE, "002", "## 002, Before\n\nnew\n")
    assert changed == PAGE.replace("old", "new")


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "papers.md"
    page.write_text(PAGE)
    done = CliRunner().invoke(main, ["papers", "003", "--quick", "--json", "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["paper"] == "003"
    assert page.read_text().count("## 003, ") == 1
