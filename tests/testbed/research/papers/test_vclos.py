# SPDX-License-Identifier: Apache-2.0
"""The vClos paper's numbers: counts against other ways to count, the fit, and the committed page."""

from __future__ import annotations

import csv
import time
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from sdn.isolation import vclos
from sdn.isolation.cluster import Cluster
from sim.cluster import Job, Outcome
from testbed.research.papers import PAPERS, Claim
from testbed.research.papers.page import printed_of
from testbed.research.papers.vclos import claims, hash_modes, printed, simulated, theory, trace

ROOT = Path(__file__).parents[4]


def committed() -> dict[tuple[str, str], dict[str, str]]:
    with (ROOT / "docs" / "papers" / "vclos.csv").open() as file:
        return {(row["where"], row["what"]): row for row in csv.DictReader(file)}


def test_fabrics_have_the_printed_sizes() -> None:
    assert theory.rearrangeable(64) == (2048, 96)
    assert theory.strictly_non_blocking(64) == (1344, 105)


@pytest.mark.parametrize("radix", [4, 6, 8, 32, 64, 128])
def test_a_strictly_non_blocking_leaf_uses_its_ports(radix: int) -> None:
    gpus, switches = theory.strictly_non_blocking(radix)
    down, spines = gpus // radix, switches - radix
    assert spines >= 2 * down - 1
    assert down + spines <= radix < (down + 1) + 2 * (down + 1) - 1


@pytest.mark.parametrize(("flows", "ports"), [(1, 1), (3, 2), (4, 4), (5, 3), (6, 2)])
def test_the_fullest_port_is_counted_as_by_enumeration(flows: int, ports: int) -> None:
    drawn = Counter(max(Counter(choice).values()) for choice in product(range(ports), repeat=flows))
    for most in range(1, flows + 1):
        assert theory.exactly(flows, ports, most) == pytest.approx(drawn[most] / ports**flows, abs=1e-12)


@pytest.mark.parametrize("mode", hash_modes.MODES)
@pytest.mark.parametrize("factor", hash_modes.FACTORS)
def test_flows_meet_as_at_random_by_every_hash_mode(mode: str, factor: str) -> None:
    for ports in (2, 3, 4):
        found = hash_modes.meetings(mode, factor, ports)
        assert found.pairs == pytest.approx(1 / ports, abs=0.025)
        assert found.everything == pytest.approx(1 / ports**3, abs=0.025)
    assert hash_modes.meetings(mode, factor, 3).some == 1.0  # four flows


def test_the_best_hash_mode_is_near_the_papers_numbers_with_three_ports_only() -> None:
    found, rows = hash_modes.best(hash_modes.PORTS), committed()
    assert 100 * found.pairs == pytest.approx(31.5, rel=0.05)
    for what, ours in (("two flows", found.pairs), ("all 4 flows", found.everything)):
        row = rows["3.1", f"{what} on one port, best hash mode"]
        assert float(row["ours"]) == pytest.approx(100 * ours, abs=0.06)
    assert all(abs(100 * hash_modes.best(ports).pairs / 31.5 - 1) > 0.2 for ports in (2, 4))


def test_large_jobs_leave_no_links_without_a_virtual_clos() -> None:
    """Table 7: with jobs of whole leaves vClos is as fast as one large switch, and ECMP is not."""
    gap_s, rows = simulated.large_gap_s(simulated.LARGE_WAITS), committed()
    best, vclos, ecmp = (simulated.table_7(name, gap_s) for name in ("Best", "vClos", "ECMP"))
    assert best.waiting_s / best.running_s == pytest.approx(simulated.LARGE_WAITS, rel=0.1)
    assert (vclos.waiting_s, vclos.running_s) == pytest.approx((best.waiting_s, best.running_s))
    assert (best.instability, vclos.instability) == pytest.approx((0.0, 0.0), abs=1e-9)
    for what, ratio in (("JRT", ecmp.running_s / best.running_s), ("JWT", ecmp.waiting_s / best.waiting_s)):
        ours = rows["Table 7", f"large jobs: {what} over that of Best, ECMP"]["ours"]
        assert float(ours) == pytest.approx(ratio, abs=1e-3)


def test_ecmp_has_a_longer_tail_and_is_less_stable_than_source_routing() -> None:
    """Figure 12."""
    ecmp, sr = (simulated.table_5(name, 120) for name in ("ECMP", "SR"))
    for where, what, ratio in (
        ("Fig. 12a", "99th percentile of JWT", ecmp.late_s / sr.late_s),
        ("Fig. 12d", "deviation of JRT among jobs of one size", ecmp.instability / sr.instability),
    ):
        row = committed()[where, f"{what}, ECMP over SR"]
        assert float(row["ours"]) == pytest.approx(ratio, abs=0.01)
        assert (row["verdict"], row["deviates_if"]) == ("holds", "ours <= 1.0")
    assert {row["verdict"] for (where, _), row in committed().items() if where == "Fig. 10"} == {"holds"}


def test_a_ring_by_source_routing_has_one_flow_on_a_link() -> None:
    assert theory.most_flows([(gpu, (gpu + 1) % 64) for gpu in range(64)], 8) == 1
    assert theory.most_flows([(gpu, gpu % 4) for gpu in range(4, 32)], 4) == 7  # all other leaves send to leaf 0
    assert theory.most_flows([(0, 1)], 4) == 0


@pytest.mark.long
def test_the_fitted_trace_is_the_best_of_its_neighbours() -> None:
    assert trace.fitted(range(trace.FITTED - 1, trace.FITTED + 2)) == trace.FITTED


def test_best_is_fitted_by_the_simulation_of_its_column() -> None:
    assert trace.best_s(130) == simulated.table_5("Best", 130).completion_s


def test_percentages_of_section_9_4_give_one_running_time() -> None:
    """Relative to OCS's own value it is below every printed JCT; relative to SR's it is above Best's at 140 s."""
    assert claims.implied_run_s(5229.9, 6228.6) == pytest.approx(3898, abs=1)
    assert claims.implied_run_s(5229.9, 6228.6) < min(printed.TABLE_5["Best"])
    literal = (5229.9 - (1 - 0.6565) * 6228.6) / ((1 - 0.0318) - (1 - 0.6565)) * (1 - 0.0318)
    assert literal == pytest.approx(4790, abs=5)
    assert literal > printed.TABLE_5["Best"][-1]


def test_a_number_that_cannot_be_computed_has_a_reason() -> None:
    claim = Claim("Table 7", "JWT", "s", None, 8.0, note="Not printed.")
    assert (claim.verdict, claim.ratio) == ("not computed", None)
    lost = [row for row in committed().values() if row["verdict"] == "not computed"]
    assert lost
    assert all(row["note"] and not row["ours"] for row in lost)


def test_the_committed_table_has_a_row_for_every_printed_number() -> None:
    rows = committed()
    where = Counter(row["where"] for row in rows.values() if row["paper"])
    assert where["Table 2"] == 16
    assert where["Table 4"] == 8
    assert where["Table 5"] == 35 + 5  # and the pairs of strategies in its order
    assert where["Table 6"] == 11
    assert where["Table 7"] == 18 + 8  # and the ratios of large jobs of ours
    for claim in PAPERS["001"].find(True).claims:
        row = rows[claim.where, claim.what]
        assert row["verdict"] == claim.verdict
        assert bool(row["paper"]) == bool(printed_of(claim))


@pytest.mark.parametrize("name", ["Best", "SR", "Balanced"])
def test_the_committed_table_is_that_of_the_simulation(name: str) -> None:
    """Without integer programs, whose solutions depend on the solver."""
    ours = simulated.table_5(name, 130).completion_s
    assert float(committed()["Table 5", f"{name}, lambda 130"]["ours"]) == pytest.approx(ours, rel=1e-3)


def test_what_is_set_is_no_result() -> None:
    rows = committed()
    assert {rows["Table 4", f"vClos, mean {time}"]["verdict"] for time in ("JRT", "JWT")} == {"input"}


def test_averages_of_the_paper_are_no_bounds() -> None:
    rows = [row for row in committed().values() if row["what"].startswith("mean time to place a job")]
    assert [(row["relation"], row["paper"]) for row in rows] == [("equals", "1000"), ("equals", "2000")]


def test_the_time_to_place_a_job_leaves_out_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s, place = 0.2, vclos.place

    def late(cluster: Cluster, job: str, gpus: int) -> object:
        time.sleep(waited_s)
        return place(cluster, job, gpus)

    monkeypatch.setattr(vclos, "place", late)
    assert theory.placement_s(False, arrivals=1) < waited_s / 2


def test_double_binary_trees_exceed_three_flows_when_both_directions_send_at_once() -> None:
    trees = "double binary trees, 2,048 GPUs: flows on a link"
    rows = [row for row in PAPERS["001"].find(True).claims if row.what.startswith(trees)]
    assert [(row.ours, row.printed, row.relation, row.verdict) for row in rows] == [
        (2, 3, "at most", "holds"),
        (4, 3, "at most", "fails"),
    ]


def test_ocs_vclos_is_compared_with_best_at_every_load() -> None:
    """Section 9.6: "the performance gap between OCS-vClos and Best remains within 4 %"."""
    rows = committed()
    for gap_s in printed.GAPS_S:
        row = rows["9.6", f"JCT of OCS-vClos, above Best, lambda {gap_s}"]
        best, ocs = (float(rows["Table 5", f"{name}, lambda {gap_s}"]["ours"]) for name in ("Best", "OCS-vClos"))
        assert float(row["ours"]) == pytest.approx(100 * (ocs / best - 1), abs=0.1)
        assert (row["relation"], row["paper"]) == ("at most", "4")


def test_the_longest_time_at_the_head_of_the_queue_is_that_of_a_small_example() -> None:
    """The second job is first from 2 s, when the one before it starts, to 10 s. The third waits behind it from 4 s."""
    jobs = [Job("one", 0.0, 1, 9.0), Job("two", 1.0, 1, 9.0), Job("three", 4.0, 1, 9.0)]
    outcomes = [Outcome(job, "ended", start_s) for job, start_s in zip(jobs, (2.0, 10.0, 11.0), strict=True)]
    assert simulated.longest_at_head(outcomes) == pytest.approx((8.0, 6.0 / 3))


def test_the_fit_is_within_18_per_cent_at_every_lambda() -> None:
    ratios = [float(committed()["Table 5", f"Best, lambda {gap_s}"]["ratio"]) for gap_s in printed.GAPS_S]
    assert all(abs(ratio - 1) < 0.18 for ratio in ratios)


def test_pairs_of_strategies_are_counted_in_the_order_of_table_5() -> None:
    assert claims.same_order((1, 2, 3), (10, 30, 20)) == 2
    assert claims.same_order((1, 2, 3), (3, 2, 1)) == 0
    rows = committed()
    for index, gap_s in enumerate(printed.GAPS_S):
        ours = [float(rows["Table 5", f"{name}, lambda {gap_s}"]["ours"]) for name in printed.TABLE_5]
        theirs = [row[index] for row in printed.TABLE_5.values()]
        count = rows["Table 5", f"lambda {gap_s}: pairs of strategies in the paper's order"]["ours"]
        assert claims.same_order(theirs, ours) == float(count)
        best, ocs, vclos, sr, balanced, ecmp, _ = ours
        assert best < ocs < vclos
        assert max(sr, balanced) < ecmp
