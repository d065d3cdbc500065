# SPDX-License-Identifier: Apache-2.0
"""TopoOpt's costs and forwarding: hand-computed costs, exhaustive path lengths, and the committed page."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import get_args

import networkx as nx
import numpy as np
import pytest

from testbed.research.papers import PAPERS
from testbed.research.papers.topoopt import claims, cost, discussion, iterations, prototype, reconfiguration, sharing
from testbed.research.papers.topoopt.forwarding import RATIOS, SERVERS, Forwarding, best_one_way, both_ways, one_way
from testbed.research.topoopt.estimates import Estimator
from testbed.research.topoopt.fabrics import direct, direct_rings
from testbed.research.topoopt.search import BUDGET


def test_costs_are_sums_of_table_2() -> None:
    assert cost.patch_panels(4, 100) == 4 * (339 + 99 + 200 + 25 + 150)
    assert cost.circuit_switches(4, 100) == 4 * (339 + 99 + 520 + 150)
    assert cost.ideal_switch(8, 200) == 8 * (407.5 + 198 + 5 * (374 + 198) + 450)
    assert cost.expander(1, 10) == 92.5 + 20 + 75
    assert cost.oversubscribed(4, 100) == 4 * (339 + 99 + 3 * (187 + 99) + 300)
    assert cost.fat_tree(4, 100) == cost.ideal_switch(4, 100) / 3.2


@pytest.mark.parametrize("topology", [both_ways(4), both_ways(8), one_way(4)], ids=["4", "8", "4 one-way"])
def test_path_lengths_are_those_of_the_graph(topology: Forwarding) -> None:
    graph = nx.DiGraph((at, (at + step) % SERVERS) for at, step in product(range(SERVERS), topology.strides))
    hops = nx.single_source_shortest_path_length(graph, 0)
    assert topology.mean_hops == pytest.approx(sum(hops.values()) / (SERVERS - 1))
    assert topology.diameter == max(hops.values())


@pytest.mark.parametrize("degree", [4, 8])
def test_circuits_both_ways_have_shortest_routes_and_a_ring_for_each_port(degree: int) -> None:
    topology = both_ways(degree)
    fabric = direct_rings(SERVERS, topology.strides, 1.0)
    hops = (fabric.paths >= 0).sum(axis=1)
    assert sorted(hops[hops > 0].tolist()) == sorted(SERVERS * topology.hops)
    (orders,) = fabric.rings.values()
    one_each = np.zeros((SERVERS, SERVERS))
    for order in orders:
        one_each[order, np.roll(order, -1)] += 1.0
    assert len(orders) == degree
    assert fabric.load(one_each.ravel()).tolist() == [1.0] * (degree * SERVERS)


def test_a_tax_is_the_bytes_on_circuits_over_the_bytes_sent() -> None:
    """All-reduce of 1 byte and all-to-all of `ratio` bytes, of which a server keeps one part in 128."""
    topology, ratio = both_ways(4), 0.8
    block = ratio / SERVERS
    assert topology.tax(ratio) == pytest.approx((1 + block * 127 * topology.mean_hops) / (1 + ratio))
    assert topology.tax(0.0) == 1.0


def test_the_best_strides_beat_those_of_algorithm_3() -> None:
    best = best_one_way(3)
    assert best.mean_hops <= one_way(3).mean_hops < both_ways(4).mean_hops * 2
    assert best.strides[0] == 1


def test_printed_path_lengths_and_taxes_agree() -> None:
    claims = [claim for claim in PAPERS["002"].find(True).claims if claim.printed is not None]
    assert Counter(claim.where for claim in claims if claim.verdict == "not computed") == {
        "Fig. 2": 4,
        "Fig. 3": 1,
        "Table 1": 20,
        "App. C": 2,
        "5.2": 2,
        "Table 2": 18,
        "Fig. 20": 1,
    }
    assert all(claim.note for claim in claims if claim.verdict in ("not computed", "differs", "close"))
    by_what = {claim.what: claim.verdict for claim in claims if claim.verdict != "not computed"}
    assert by_what.pop("cost of Ideal Switch over that of TopoOpt, mean") == "differs"
    assert by_what.pop("cost of Fat-tree over that of TopoOpt, mean") == "differs"
    assert by_what.pop("greatest transfer with data parallelism") == "differs"
    assert by_what.pop("greatest transfer with hybrid parallelism") == "differs"
    assert by_what.pop("ports of a patch panel over those of an OCS") == "differs"
    assert by_what.pop("embedding tables of the example") == "differs"
    assert by_what.pop("DLRM, batch 512: Switch 25 Gbit/s over TopoOpt") == "differs"
    parts = [by_what.pop(f"DLRM, 12 servers, batch {32 * 2**k}: all-to-all over all-reduce") for k in range(5)]
    assert set(parts) == {"differs"}
    ratios = [by_what.pop(f"DLRM, batch {64 * 2**k}: all-to-all over all-reduce") for k in range(6)]
    assert set(ratios) == {"differs"}
    loads = {what: by_what.pop(what) for what in list(by_what) if what.startswith("least loaded")}
    assert set(loads.values()) == {"differs"}
    assert {what for what, verdict in by_what.items() if verdict == "close"} - {
        "VGG: iteration time, Fat-tree over TopoOpt"
    } == {
        "mean path length, d = 4",
        "least overhead over Ideal Switch, d = 4",
        "model-parallel transfer",
        "cost of Ideal Switch over that of TopoOpt, 4,394 servers",
    }
    assert set(by_what.values()) <= {"agrees", "close", "holds"}
    assert len(by_what) == 42


def test_what_section_7_says_of_failures_tenants_and_fat_trees_has_numbers() -> None:
    found = [claim.ours for claim in claims._of_discussion()]
    assert found == pytest.approx([100.0, 2.0, 1.0, 1.0, 3.0, 1.83, 0.537], rel=0.05)


def test_a_ring_that_a_fibre_parts_is_not_joined_by_others_of_its_kind() -> None:
    """Without other circuits a server that has lost its only NIC reaches nobody, and nobody passes it."""
    assert discussion.pairs_left(8, 1) == pytest.approx(sum(range(1, 7)) / (8 * 7))


def test_a_step_on_a_fat_tree_lasts_as_long_as_on_an_ideal_switch_where_no_link_is_shared() -> None:
    assert discussion.tree_step(1, 1, shuffled=False) >= 1.0
    assert discussion.tree_step(4, 1, shuffled=True) < discussion.tree_step(1, 1, shuffled=True)


def test_the_ratios_of_figure_12_are_below_those_that_figure_13_takes() -> None:
    ours = [iterations.all_to_all_ratio(iterations.of_batch(64 * 2**k)) for k in range(6)]
    assert [round(100 * ratio, 2) for ratio in (ours[0], ours[-1])] == [1.16, 37.2]
    assert all(ratio < taken / 2 for ratio, taken in zip(ours, RATIOS, strict=True))


def test_all_slow_results_are_computed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError(f"{args} is not among the cases")

    assert {model for _, (model, *_) in reconfiguration.cases()} == set(iterations.MODELS)
    for slow in (reconfiguration.seconds, sharing.times):
        monkeypatch.setattr(slow, "_found", {})
        monkeypatch.setattr(slow, "_function", refuse)
    for function, args in reconfiguration.cases():
        function.remember(1.0, *args)
    for function, args in sharing.cases():
        function.remember(sharing.Times(1.0, 1.0, 1.0), *args)
    found = [*claims._of_reconfiguration(), *claims._of_sharing()]
    assert {claim.ours for claim in found if claim.unit == "x"} == {1.0}


def test_topoopt_is_near_the_ideal_switch_and_the_fat_tree_takes_longer() -> None:
    of = iterations.job(iterations.MODELS["DLRM"](), 16)
    topoopt, ideal, tree, _, expander = (iterations.seconds(of, name, 4, 25) for name in iterations.FABRICS[:5])
    assert ideal <= topoopt < 1.1 * ideal
    assert topoopt < tree < expander


def test_percentiles_of_iterations_have_the_weight_of_their_jobs() -> None:
    """A job makes six short iterations while another makes two."""
    values = np.array([1.0, 3.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0])
    assert [sharing.percentile(values, np.ones(8), percent) for percent in (75, 76, 99)] == [1.0, 2.0, 3.0]
    alike = np.where(values > 1, 1 / 2, 1 / 6)
    assert [sharing.percentile(values, alike, percent) for percent in (50, 51, 75, 76)] == [1.0, 2.0, 2.0, 3.0]


def test_the_search_never_loses_to_the_strategies_that_the_paper_names() -> None:
    plain, found = iterations.alternated("DLRM", servers=8)
    assert found <= plain
    assert (plain, found) == pytest.approx((0.04815, 0.007722), rel=0.02)


def test_neither_search_loses_to_its_start_and_descent_estimates_less() -> None:
    of = iterations.job(iterations.MODELS["VGG"](), 4)
    (start,) = iterations.fitting(of)
    start_s = Estimator(of, direct(of.demand(start), 4, 100e9))(start).seconds
    found = iterations.compare_searches("VGG", servers=4)
    assert max(found.chain_s, found.descent_s) <= start_s
    assert found.descent_estimated < found.chain_estimated <= 1 + BUDGET
    assert (found.chain_s, found.descent_s) == pytest.approx((0.02472, 0.02472), rel=0.02)


def test_the_prototype_is_as_fast_as_a_switch_of_four_times_the_rate_without_all_to_all() -> None:
    candle = prototype.MODELS["CANDLE"]
    topoopt, fast, slow = (prototype.seconds(candle, name) for name in get_args(prototype.Name))
    assert topoopt == pytest.approx(fast, rel=1e-6)
    assert 3 < slow / topoopt <= 4
