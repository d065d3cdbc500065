# SPDX-License-Identifier: Apache-2.0
"""ParaLet's formulas compared with independent calculations, and the quick check of the paper."""

from __future__ import annotations

import csv
import json
from itertools import product
from math import factorial
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli import main
from testbed.research.papers.paralet import theory
from testbed.research.papers.paralet.claims import SEEDS, of_packets
from testbed.research.papers.paralet.evaluation import (
    ECMP,
    PACKETS,
    PARALET,
    SMALL,
    SPRAYING,
    Case,
    Scheme,
    measure,
    measured,
)


@given(n_prime=st.floats(0.5, 7))
def test_nodes_and_quantile_are_inverse(n_prime: float) -> None:
    assert theory.quantile(theory.nodes_of(n_prime)) == pytest.approx(n_prime, rel=1e-6)


@given(nodes=st.floats(10, 1e12), m=st.integers(1, 256))
def test_lanes_for_is_the_inverse_of_slowdown(nodes: float, m: int) -> None:
    assert theory.lanes_for(nodes, theory.slowdown(nodes, m)) == pytest.approx(m, rel=1e-6)


@pytest.mark.parametrize("ports", [2, 3, 5])
def test_the_collision_probability_equals_an_enumeration(ports: int) -> None:
    without_collision = sum(len(set(chosen)) == ports for chosen in product(range(ports), repeat=ports))
    assert without_collision == factorial(ports)
    assert theory.collision_probability(ports) == pytest.approx(1 - without_collision / ports**ports)


def test_the_mean_load_of_the_fullest_of_two_ports() -> None:
    """Of two flows on two ports, the fullest port has 2 in half of all cases, else 1."""
    assert theory.fullest_port(2, 1, draws=4000) == pytest.approx(1.5, abs=0.05)


def test_the_last_row_of_table_3_is_a_cancellation_error() -> None:
    assert theory.nodes_of_as_printed(8) / 1e15 == pytest.approx(1.501, abs=0.0005)
    assert theory.nodes_of(8) / 1e15 == pytest.approx(1.607, abs=0.0005)


def test_more_lanes_are_closer_to_the_ideal_but_never_exceed_it() -> None:
    times = [measure(SMALL[0], Scheme("", "ecmp", m), 1) for m in (1, 4, 16)]
    assert times[0].fct_max_s > times[1].fct_max_s > times[2].fct_max_s > times[0].ideal_s
    assert times[0].peak_bps < times[1].peak_bps < times[2].peak_bps <= 128 * 100e9 * (1 + 1e-9)


def test_drill_is_slower_with_go_back_n_than_with_selective_repeat() -> None:
    points = [measure(Case(2, 4, "ring"), scheme, 1) for scheme in PACKETS]
    ratios = {claim.what: claim.ours for claim in of_packets(points)}
    assert len(ratios) == 5 * 3 * 2
    slower = ratios["packets, m = 32 against DRILL: slowest flow, least"]
    assert slower > ratios["packets, m = 32 against DRILL, selective repeat: slowest flow, least"]


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_the_committed_gains_over_ecmp_are_those_of_the_model(case: Case) -> None:
    ecmp, lanes = measured([(case, Scheme(ECMP, "ecmp", 1)), (case, Scheme(PARALET, "ecmp", 32))], SEEDS)
    with (Path(__file__).parents[4] / "docs" / "papers" / "paralet.csv").open() as file:
        ours = {row["what"]: row["ours"] for row in csv.DictReader(file)}
    assert ours[f"{case}: Maximum Total Throughput"] == f"{lanes.peak_bps / ecmp.peak_bps:.2f}"
    assert ours[f"{case}: slowest flow, shorter by"] == f"{ecmp.fct_max_s / lanes.fct_max_s:.2f}"
    assert ours[f"{case}: mean FCT, shorter by"] == f"{ecmp.fct_mean_s / lanes.fct_mean_s:.2f}"


def test_the_command_prints_verdicts() -> None:
    result = CliRunner().invoke(main, ["papers", "004", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    claims = json.loads(result.stdout)["claims"]
    verdicts = {(claim["where"], claim["what"]): claim["verdict"] for claim in claims}
    assert [verdicts["Table 3", f"n for n' = {n}"] for n in range(1, 9)] == [
        "differs",  # 6 is 6.3 without its digits
        *["agrees"] * 6,
        "differs",
    ]
    assert verdicts["5.2", "m for a slowdown of 2, 1e5 nodes"] == "differs"
    assert verdicts["5.2", "m for a slowdown of 2, 1e9 nodes"] == "agrees"
    assert all(verdict == "agrees" for (where, _), verdict in verdicts.items() if where == "Fig. 4")
    slowest = {claim["what"]: claim["ours"] for claim in claims if claim["where"] == "later work"}
    assert min(slowest.values()) > 1
    assert slowest["ring, 128 hosts, 4 slow links: ECMP, slowest flow"] == max(slowest.values())
    assert slowest[f"ring, 128 hosts: {SPRAYING}, slowest flow"] <= min(slowest.values()) * (1 + 1e-9)
