# SPDX-License-Identifier: Apache-2.0
"""Sections 5.2 and 5.3 of ParaLet: the size of flowlets, and lanes of a host beside lanes for each peer."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from testbed.research.papers.paralet import tuning
from testbed.research.papers.paralet.evaluation import Case, Point, Scheme, measure

CSV = Path(__file__).parents[4] / "docs" / "papers" / "paralet.csv"


def point(case: Case, scheme: Scheme, fct_s: float) -> Point:
    return Point(case, scheme, ideal_s=1.0, fct_mean_s=fct_s, fct_max_s=fct_s, peak_bps=1.0, throughput=())


def test_a_size_that_beats_the_rule_by_a_tenth_differs() -> None:
    case = tuning.CONDITIONS[0]
    for fastest, verdict in ((1.0, "agrees"), (0.9, "differs")):
        took = {None: 1.0, 4096: fastest, 32 << 10: 1.1, 64 << 10: 1.2, 256 << 10: 1.3}
        found = list(tuning.claims([point(case, tuning.of_size(size), took[size]) for size in tuning.SIZES]))
        verdicts = {claim.series: claim.verdict for claim in found if claim.series}
        assert verdicts == {
            "mean FCT, S = 4 BDP / m over the best S": verdict,
            "mean FCT, largest S over 4 BDP / m": "holds",
        }


def test_lanes_of_a_host_that_take_a_tenth_longer_differ() -> None:
    case, m = tuning.SHARED[0]
    for host_s, verdict in ((1.0, "agrees"), (1.1, "differs")):
        both = [point(case, tuning.of_lanes(m, per), took) for per, took in (("peer", 1.0), ("host", host_s))]
        assert {claim.verdict for claim in tuning.claims(both)} == {verdict}


@pytest.mark.parametrize("collective", ["tree", "alltoall"])
def test_lanes_of_a_host_send_everything_and_never_beat_the_ideal(collective: str) -> None:
    peer, host = (measure(Case(2, 4, collective), tuning.of_lanes(4, per), 1) for per in ("peer", "host"))
    assert peer.ideal_s < peer.fct_max_s
    assert host.ideal_s < host.fct_max_s
    assert host.fct_max_s == pytest.approx(peer.fct_max_s, rel=0.5)
    assert host.fct_mean_s != peer.fct_mean_s


def test_flowlets_of_a_message_s_part_wait_for_the_slowest_link() -> None:
    rule, whole = (
        measure(Case(2, 4, "ring", degraded=1), Scheme("", "ecmp", 4, fabric="packet", flowlet_bytes=size), 1)
        for size in (None, 2 << 20)
    )
    assert whole.fct_max_s > 1.5 * rule.fct_max_s


def test_the_committed_effect_of_the_largest_size_is_that_of_the_model() -> None:
    case, largest = tuning.CONDITIONS[1], tuning.SIZES[-1]
    rule, whole = (measure(case, tuning.of_size(size), 1).fct_mean_s for size in (None, largest))
    with CSV.open() as file:
        ours = {row["what"]: row["ours"] for row in csv.DictReader(file)}
    assert ours[f"{case}: mean FCT, S = 256 KiB over 4 BDP / m"] == f"{whole / rule:.3f}"
