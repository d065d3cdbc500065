# SPDX-License-Identifier: Apache-2.0
"""TopologyFinder on data-parallel and DLRM-like jobs: degrees, layers, rings, routes."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn._native import heaviest_matching
from sdn.topoopt import (
    AllReduceGroup,
    BalancedRoutes,
    Demand,
    DirectTopology,
    Layer,
    Unreachable,
    bandwidth_tax,
    coin_change,
    coin_route,
    data_parallel,
    dlrm,
    find_topology,
    split_degree,
)
from tests.sdn.topoopt.graphs import digraph

DLRM = dlrm(16, tables=[0, 3, 8, 13], dense_bytes=2e9, batch=8192)  # figure 1b and 9


def check_layers(layers: tuple[Layer, ...], degree: int) -> None:
    assert len(layers) <= degree
    for layer in layers:
        for end in (0, 1):
            assert len({circuit[end] for circuit in layer}) == len(layer), "an optical port is used twice"
        assert all(a != b for a, b in layer)


def check_routes(found: DirectTopology) -> None:
    circuits = set(found.circuits)
    for (source, destination), ways in found.routes.items():
        for way in ways:
            assert (way[0], way[-1]) == (source, destination)
            assert len(set(way)) == len(way)
            assert circuits.issuperset(pairwise(way))


def test_sizes_of_the_papers_dlrm() -> None:
    assert DLRM.mp[0, 1] == 8192 * 512 * 8  # 32 MiB: appendix D
    everything = data_parallel(16, 20e9)
    each = everything.groups[0].sent_bytes / 16
    assert each == 37.5e9
    assert each * 8 / 100e9 == 3.0  # seconds at 100 Gbit/s


def test_the_papers_dlrm_on_16_servers_of_degree_3() -> None:
    found = find_topology(DLRM, 3)
    assert [r.stride for r in found.rings] == [1, 3, 7]  # figure 9
    check_layers(found.layers, 3)
    check_routes(found)
    assert len(found.routes) == 16 * 15


def test_degree_follows_the_shares_and_all_reduce_has_one_at_least() -> None:
    assert split_degree(4, data_parallel(8, 1e6)) == (4, 0)
    quarter = Demand(4, (AllReduceGroup((0, 1, 2, 3), 1.0),), np.where(np.eye(4), 0.0, 1.5))
    assert quarter.groups[0].sent_bytes / (quarter.groups[0].sent_bytes + quarter.mp.sum()) == 0.25
    assert split_degree(4, quarter) == (1, 3)
    only_mp = Demand(4, (), np.where(np.eye(4), 0.0, 1.0))
    assert split_degree(3, only_mp) == (1, 2)


def test_matchings_join_pairs_by_demand_which_halves_each_time() -> None:
    mp = np.zeros((4, 4))
    mp[0, 1] = mp[2, 3] = 8.0
    mp[0, 2] = mp[1, 3] = 5.0
    found = find_topology(Demand(4, (), mp), 3)
    ring_of_all, first, second = found.layers
    assert ring_of_all == ((0, 1), (1, 2), (2, 3), (3, 0))
    assert first == ((0, 1), (1, 0), (2, 3), (3, 2))
    assert second == ((0, 2), (1, 3), (2, 0), (3, 1))  # 8 / 2 < 5


def test_disjoint_groups_share_interfaces() -> None:
    halves = (AllReduceGroup((0, 2, 4, 6), 1e6), AllReduceGroup((1, 3, 5, 7), 1e6))
    found = find_topology(Demand(8, halves, np.zeros((8, 8))), 2)
    check_layers(found.layers, 2)
    check_routes(found)
    assert {len(layer) for layer in found.layers} == {8}
    assert len([r for r in found.rings if r.interface == 1]) == 2


def test_impossible_degrees_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="one interface or more, not 0"):
        find_topology(data_parallel(4, 1.0), 0)


@pytest.mark.parametrize(("servers", "degree"), [(2, 2), (2, 5), (4, 3), (4, 4), (6, 4)])
def test_rings_are_repeated_where_there_are_fewer_than_interfaces(servers: int, degree: int) -> None:
    found = find_topology(data_parallel(servers, 1e6), degree)
    check_layers(found.layers, degree)
    check_routes(found)
    assert len(found.circuits) == servers * degree


@pytest.mark.parametrize("degree", [3, 6])
def test_matchings_leave_no_server_dark(degree: int) -> None:
    """Four servers exchange with all others, so that a matching by traffic joins eight of sixteen."""
    found = find_topology(dlrm(16, tables=[0, 3, 8, 13], dense_bytes=1e8, batch=8192), degree)
    check_layers(found.layers, degree)
    assert len(found.rings) < degree
    assert len(found.circuits) == 16 * degree


@pytest.mark.parametrize(("servers", "degree"), [(5, 4), (7, 4), (7, 6)])
def test_matchings_of_an_odd_number_leave_another_server_dark_each_time(servers: int, degree: int) -> None:
    found = find_topology(dlrm(servers, tables=[0], dense_bytes=1.0, batch=8192), degree)
    dark = [set(range(servers)).difference(*layer) for layer in found.layers[len(found.rings) :]]
    assert [len(dark_servers) for dark_servers in dark] == [1] * (degree - 1)
    assert len(set.union(*dark)) == degree - 1


def test_groups_use_their_own_rings_even_where_a_ring_joins_all() -> None:
    halves = (AllReduceGroup((0, 2, 4, 6), 1e6), AllReduceGroup((1, 3, 5, 7), 1e6))
    found = find_topology(Demand(8, halves, np.zeros((8, 8))), 3)
    own = {
        (group.members[at], group.members[(at + ring.stride) % 4])
        for ring in found.rings
        for group in halves
        if ring.interface
        for at in range(4)
    }
    assert (0, 6) in own
    for pair in own:
        assert found.routes[pair] == (pair,)
    check_routes(found)
    assert len(found.routes) == 8 * 7


def test_model_parallel_routes_are_not_longer_than_the_shortest() -> None:
    everybody = Demand(128, data_parallel(128, 1e12).groups, 1.0 - np.eye(128))
    found = find_topology(everybody, 4, primes_only=True)
    assert all(len({len(way) for way in ways}) == 1 for ways in found.routes.values())
    assert round(bandwidth_tax(everybody.mp, found.routes), 2) == 4.52


def test_the_tax_of_figure_13_counts_the_all_reduce() -> None:
    mp = 1.0 - np.eye(8)
    found = find_topology(data_parallel(8, 1e6), 1)
    hops = bandwidth_tax(mp, found.routes)
    assert hops == 4.0  # a ring of eight
    for ratio in (0.025, 0.8):
        tax = bandwidth_tax(mp, found.routes, direct=mp.sum() / ratio)
        assert tax == pytest.approx((1 + hops * ratio) / (1 + ratio))


def test_bad_demands_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="square matrix"):
        Demand(3, (), np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"not in 0\.\.1"):
        Demand(2, (AllReduceGroup((0, 2), 1.0),), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="each once"):
        Demand(2, (AllReduceGroup((1, 1), 1.0),), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="server 5"):
        dlrm(4, [5], 1.0, 1)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_job_gets_one_use_of_each_port_and_a_route_for_every_pair(data: st.DataObject) -> None:
    servers = data.draw(st.integers(3, 10))
    degree = data.draw(st.integers(1, servers + 2))
    members = st.lists(st.integers(0, servers - 1), min_size=2, max_size=servers, unique=True)
    groups = data.draw(st.lists(st.builds(AllReduceGroup, members.map(tuple), st.floats(0, 1e9)), max_size=3))
    mp = np.array(
        [
            [0.0 if i == j else data.draw(st.sampled_from([0.0, 1e5, 1e9])) for j in range(servers)]
            for i in range(servers)
        ]
    )
    demand = Demand(servers, tuple(groups), mp)
    found = find_topology(demand, degree)
    check_layers(found.layers, degree)
    check_routes(found)
    assert nx.is_strongly_connected(digraph(servers, found.circuits))
    assert all((int(a), int(b)) in found.routes for a, b in zip(*mp.nonzero(), strict=True))
    assert bandwidth_tax(mp, found.routes) >= 1.0


@given(st.integers(2, 60), st.data())
def test_coin_change_is_the_shortest_way(size: int, data: st.DataObject) -> None:
    coins = data.draw(st.lists(st.integers(1, size - 1), min_size=1, max_size=4, unique=True))
    graph = digraph(size, [(i, (i + c) % size) for i in range(size) for c in coins])
    lengths = nx.single_source_shortest_path_length(graph, 0)
    if len(lengths) < size:
        with pytest.raises(Unreachable, match="not a sum of the strides"):
            coin_change(size, coins)
        return
    sums = coin_change(size, coins)
    for distance, used in enumerate(sums):
        assert sum(used) % size == distance
        assert len(used) == lengths[distance]
    route = coin_route(range(size), sums, size - 1, size // 2)
    assert len(route) - 1 == lengths[(size // 2 + 1) % size]


def test_bandwidth_tax_is_the_mean_of_hops() -> None:
    mp = np.zeros((4, 4))
    mp[0, 1], mp[0, 2], mp[3, 1] = 1.0, 2.0, 1.0
    found = find_topology(data_parallel(4, 1.0), 1)
    assert found.routes[0, 2] == ((0, 1, 2),)
    assert bandwidth_tax(mp, found.routes) == (1 * 1 + 2 * 2 + 1 * 2) / 4


@given(st.integers(2, 12), st.data())
def test_balanced_routes_are_the_shortest(servers: int, data: st.DataObject) -> None:
    server = st.integers(0, servers - 1)
    circuits = data.draw(st.lists(st.tuples(server, server).filter(lambda ends: ends[0] != ends[1]), max_size=40))
    lengths = dict(nx.all_pairs_shortest_path_length(digraph(servers, circuits)))
    balanced = BalancedRoutes(servers, circuits)
    for source in range(servers):
        for destination in range(servers):
            if destination not in lengths[source]:
                with pytest.raises(Unreachable, match=f"from server {source} to server {destination}"):
                    balanced.add(source, destination, 1.0, 2)
                continue
            found = balanced.add(source, destination, 1.0, 2)
            assert 1 <= len(found) == len(set(found)) <= 2
            for route in found:
                assert (route[0], route[-1]) == (source, destination)
                assert len(route) - 1 == lengths[source][destination]
                assert set(circuits).issuperset(pairwise(route))


@given(st.integers(0, 14), st.sampled_from([1, 3, 100, 2**53]), st.data())
def test_a_matching_has_the_greatest_weight(vertices: int, most: int, data: st.DataObject) -> None:
    pairs = list(combinations(range(vertices), 2))
    weights = data.draw(st.lists(st.integers(0, most), min_size=len(pairs), max_size=len(pairs)))
    weight = np.zeros((vertices, vertices), dtype=np.int64)
    graph: nx.Graph[int] = nx.Graph()
    for (a, b), size in zip(pairs, weights, strict=True):
        weight[a, b] = weight[b, a] = size
        graph.add_edge(a, b, weight=size)
    partners = heaviest_matching(weight).tolist()
    matched = [(a, b) for a, b in enumerate(partners) if b >= 0]
    assert all(partners[b] == a and weight[a, b] > 0 for a, b in matched)
    greatest = sum(int(weight[pair]) for pair in nx.max_weight_matching(graph))
    assert sum(int(weight[pair]) for pair in matched) == 2 * greatest


def test_balanced_routes_take_what_is_least_loaded() -> None:
    """From 0 to 3 by way of 1, which has two parallel circuits on either side, or of 2."""
    circuits = [(0, 1), (0, 1), (1, 3), (1, 3), (0, 2), (2, 3)]
    balanced = BalancedRoutes(4, circuits)
    taken = [balanced.add(0, 3, 1.0, 1)[0][1] for _ in range(9)]
    assert (taken.count(1), taken.count(2)) == (6, 3)
    assert BalancedRoutes(4, circuits).add(0, 3, 1.0, 2) == ((0, 1, 3), (0, 2, 3))


def test_routes_that_were_found_more_often_carry_no_more() -> None:
    """From 0 to 3 by way of 1, with two parallel circuits on either side, or of 2: two routes, found twice and once."""
    circuits = [(0, 1), (0, 1), (1, 3), (1, 3), (0, 2), (2, 3)]
    balanced = BalancedRoutes(4, circuits)
    assert len(balanced.add(0, 3, 6.0, 3)) == 2
    # Each route carries 3: each circuit by way of 1 has 1.5, that by way of 2 has 3.
    taken = [balanced.add(0, 3, 0.9, 1)[0][1] for _ in range(4)]
    assert taken == [1, 1, 1, 1]


def test_routes_of_a_recommender_load_circuits_evenly() -> None:
    """Taking the lowest-numbered relay always would load a circuit with three times the mean."""
    found = find_topology(dlrm(16, [0, 3, 8, 13], 2e9, 512), 4)
    mp = dlrm(16, [0, 3, 8, 13], 2e9, 512).mp
    load: Counter[tuple[int, int]] = Counter()
    for pair, ways in found.routes.items():
        for way in ways:
            load.update(dict.fromkeys(pairwise(way), mp[pair] / len(ways)))
    parallel = Counter(found.circuits)
    worst = max(load[circuit] / parallel[circuit] for circuit in load)
    assert worst < 2 * sum(load.values()) / len(found.circuits)
