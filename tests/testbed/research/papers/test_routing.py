# SPDX-License-Identifier: Apache-2.0
"""The check of "Routing for Large ML Models": its theorems, a small part of its evaluation, and its page."""

from __future__ import annotations

import csv
import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from sdn.planners import Clos, Commodities, Plan, greedy
from testbed.cli import main
from testbed.research.papers import PAPERS, Claim, Findings
from testbed.research.papers.ahead import Case as Ahead
from testbed.research.papers.page import markdown, write
from testbed.research.papers.routing import circuits, claims, evaluation, find, plots, theory
from testbed.research.papers.routing.claims import of_oversubscribed
from testbed.research.papers.routing.evaluation import (
    BLOOM,
    GPT3,
    LLAMA2,
    PLANNERS,
    RATE_BPS,
    SPINES,
    TORS,
    CachedPlanner,
    Case,
    Planned,
    Point,
    cases,
    failure_cases,
    measure,
    mixed_cases,
    oversubscribed_cases,
    together,
)

ROOT = Path(__file__).parents[4]


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


def test_four_jobs_with_rings_of_8_are_left_out() -> None:
    every = cases(quick=False)
    assert len(every) == 3 * (5 + 5 + 3)
    assert not any(case.ring == 8 and case.jobs > 3 for case in every)
    assert Case(LLAMA2, 4, 5).models == [(model, 4) for model in (LLAMA2, BLOOM, GPT3, LLAMA2, BLOOM)]


def test_colouring_reaches_the_ideal_and_no_planner_exceeds_it() -> None:
    planners = ("ecmp", "greedy", "optimal")
    points, planned = measure(Case(BLOOM, 4, 2), planners, 2, 1)
    by = {point.planner: point for point in points}
    assert all(point.slowdown >= 1 - 1e-9 for point in points)
    assert by["optimal"].slowdown == pytest.approx(1)
    assert by["optimal"].proved
    assert by["optimal"].throughput_bps == pytest.approx(100e9)
    assert by["ecmp"].slowdown > 1.5
    assert {case.planner for case in planned} == set(planners)


def planned_s(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> float:
    """The seconds of a plan that is `greedy` after this."""

    def plan(fabric: Clos, commodities: Commodities) -> Plan:
        before()
        return greedy(fabric, commodities)

    monkeypatch.setattr(evaluation, "_planner", lambda *_: plan)
    planner = CachedPlanner("greedy", 1)
    planner(Clos.of(2, 2, 2, RATE_BPS), Commodities.of([0], [2]))
    return planner.planned[0].seconds


def test_the_time_for_a_plan_leaves_out_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s = 0.3
    assert planned_s(monkeypatch, lambda: time.sleep(waited_s)) < waited_s / 2


def test_the_time_for_a_plan_has_that_of_all_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_s = 0.05

    def compute() -> None:
        while time.thread_time() < busy_s:
            pass

    def in_a_thread() -> None:
        thread = Thread(target=compute)
        thread.start()
        thread.join()

    assert planned_s(monkeypatch, in_a_thread) >= busy_s


def test_no_integer_program_depends_on_its_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_found", {})
    monkeypatch.setattr(evaluation, "ILP_LIMIT_S", 0.0)
    every = [*cases(quick=True), *failure_cases(quick=True), *mixed_cases(quick=True)]
    assert all(measure(case, ("ilp",), 1, 1)[0][0].proved for case in every)


def test_every_case_is_simulated_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError(f"{args} is not among the cases")

    def alike(asked: Sequence[Ahead]) -> None:
        for function, (case, planners, *rest) in asked:
            points = [Point(case, name, 1.0, 1.0, 1.0, 1.0, proved=True) for name in planners]
            function.remember((points, [Planned(name, 2, 1.0) for name in planners]), case, planners, *rest)

    few = theory.trials(10)
    monkeypatch.setattr(theory, "trials", lambda _: few)
    monkeypatch.setattr(theory, "permutations", lambda *_: (1.0, 1.0))
    monkeypatch.setattr(measure, "_found", {})
    monkeypatch.setattr(measure, "_function", refuse)
    monkeypatch.setattr(claims, "ahead", alike)
    found = [claim for claim in find(quick=False).claims if claim.where.startswith("Figure") and claim.unit == "x"]
    assert len(found) > 30
    assert {claim.ours for claim in found} == {1.0}


def test_figures_are_drawn_from_results_of_other_processes() -> None:
    """Such results are equal to those of this process, but are not the same objects."""

    def points(some: Sequence[Case]) -> list[Point]:
        found = [Point(case, name, 2.0, 1.0, 1.0, 1.0, proved=True) for case in some for name in PLANNERS]
        copied: list[Point] = pickle.loads(pickle.dumps(found))
        return copied

    for figure in (plots.failures(points(failure_cases(quick=True))), plots.allreduce(points(cases(quick=True)))):
        assert [len(axes.patches) for axes in figure.axes] == [2 * len(PLANNERS)] * 3


def test_the_placement_does_not_depend_on_failures() -> None:
    whole, failed = (measure(Case(BLOOM, 4, 1, spines), ("optimal",), 1, 1)[0] for spines in (0, 31))
    # One spine of 32 is left: the 32 flows that leave a ToR side by side share a link.
    assert failed[0].slowdown == pytest.approx(32 * whole[0].slowdown)


def test_claims_other_than_run_times_agree_with_the_paper(quick: Findings) -> None:
    claims = [claim for claim in quick.claims if claim.where != "Figure 7"]
    assert {claim.verdict for claim in claims} == {"agrees", "holds", "input", "not printed"}
    assert sum(claim.verdict == "agrees" for claim in claims) >= 5


def test_a_page_has_the_printed_claims_and_its_figures(quick: Findings, tmp_path: Path) -> None:
    page = tmp_path / "routing.md"
    write(page, PAPERS["000"], quick)
    text = page.read_text()
    assert text.startswith("# Routing for Large ML Models")
    table = [line for line in text.splitlines() if line.startswith("| ")][1:]
    listed = text[text.index("These hold, or are within 5 % of the paper's number:") :].split("\n- ")[1:]
    printed = [claim for claim in quick.claims if claim.printed is not None and not claim.given]
    series = {(claim.where, claim.series or claim.what) for claim in printed}
    assert len(table) + len(listed) == len(series) < len(printed)
    assert quick.drawings
    for drawing in quick.drawings:
        assert f"(images/{drawing.name}.png)" in text
        assert 5_000 < (tmp_path / "images" / f"{drawing.name}.png").stat().st_size < 200_000


def test_the_csv_file_has_all_claims(quick: Findings, tmp_path: Path) -> None:
    write(tmp_path / "routing.md", PAPERS["000"], Findings(quick.claims))
    with (tmp_path / "routing.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["what"] for row in rows] == [claim.what for claim in quick.claims]
    assert [row["verdict"] for row in rows] == [claim.verdict for claim in quick.claims]


def test_a_series_shares_a_row() -> None:
    claims = [
        Claim("Fig. 5", "MTT, ring", "x", 1.64, 1.6, 1, note="Mean.", series="MTT"),
        Claim("Fig. 5", "other", "x", 1.0, 1.0, 1),
        Claim("Fig. 5", "MTT, tree", "x", 1.19, 1.4, 1, note="One draw.", series="MTT"),
    ]
    lines = markdown(PAPERS["000"], Findings(claims), "routing.csv").splitlines()
    assert [line for line in lines if "Fig. " in line] == [
        "| Fig. 5: MTT | 1.4 to 1.6 x | 1.19 to 1.64 [1] |",
        "- Fig. 5: other: 1.0 x",
    ]


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "rail-only.md"
    done = CliRunner().invoke(main, ["papers", "003", "--json", "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["paper"] == "003"
    assert page.read_text() == (ROOT / "docs" / "papers" / "rail-only.md").read_text()
    assert page.with_suffix(".csv").read_text() == (ROOT / "docs" / "papers" / "rail-only.csv").read_text()


def test_two_flows_collide_on_the_circuit_of_figure_9() -> None:
    assert circuits.figure_9() == pytest.approx(2)


@pytest.mark.parametrize("by_tor", [True, False])
def test_circuits_between_tors_are_counted_by_the_flows_of_rings(by_tor: bool) -> None:
    case = Case(BLOOM, 4, 2, by_tor=by_tor)
    fabric = Clos.of(TORS, SPINES, SPINES, RATE_BPS)
    pairs, ends = Counter[tuple[int, int]](), Counter[tuple[str, int]]()
    for job in case.placed(fabric, 1):
        for ring in job.nics.tolist():
            for src, dst in zip(ring, [*ring[1:], ring[0]], strict=True):
                near, far = int(fabric.nic_tor[src]), int(fabric.nic_tor[dst])
                if near != far:
                    pairs[near, far] += 1
                    ends["out", near] += 1
                    ends["in", far] += 1
    assert circuits.between_tors(case, 1) == (max(pairs.values()), max(ends.values()))


def test_greedy_stays_within_twice_the_optimum_where_uplinks_are_few(quick: Findings) -> None:
    asked = [claim for claim in quick.claims if claim.where == "5, question 4"]
    greedy = [claim for claim in asked if "greedy" in claim.what]
    assert len(asked) == 2 * 2 * 4
    assert len(greedy) == 4
    assert all(claim.ours is not None and 1 - 1e-9 <= claim.ours <= 2 for claim in greedy)
    idle = [claim.ours for claim in asked if "whole ToRs" in claim.what and "idle fabric" in claim.what]
    assert idle == pytest.approx([2, 4])  # 32 flows that leave a ToR side by side share 16 and 8 uplinks


def test_a_planner_no_better_than_ecmp_differs_with_both_placements_where_uplinks_are_few() -> None:
    points = []
    for case in oversubscribed_cases(quick=True):
        measured = together(measure(case, ("ecmp", "optimal"), 1, 1)[0])
        hashed = [point for point in measured if point.planner == "ecmp"]
        points += [*measured, *(replace(point, planner=name) for name in ("annealing", "greedy") for point in hashed)]
    greedy = [claim for claim in of_oversubscribed(points) if "greedy" in claim.what]
    assert [claim.verdict for claim in greedy] == ["differs"] * 4
