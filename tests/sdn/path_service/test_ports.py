# SPDX-License-Identifier: Apache-2.0
"""Ports for a route are the lowest of those that `netmodel.ports_for_path` finds, also with dead links."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import (
    IPPROTO_TCP,
    IPPROTO_UDP,
    ROCE_PORT,
    CrcHash,
    EcmpHash,
    FlowFields,
    LinuxL4Hash,
    NoRouteError,
    OvsHash,
    Topology,
    XorHash,
    clos,
    equal_cost_paths,
    forwarding,
    leaf_spine,
    paths_of_ports,
    ports_for_path,
    tiers,
)
from netmodel.flow import address_at
from sdn.path_service.as_read import AsRead
from sdn.path_service.ports import PortTables
from sdn.planners import LOCAL, PLANNERS, UNREACHABLE, cabling
from sdn.planners.pods import PodCabling, pod_cabling
from tests.sdn.planners.pods.sample import live_paths

FIRST_PORT = 0xC000


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.data())
def test_ports_are_the_first_ones_for_the_path(data: st.DataObject) -> None:
    ecmp_hash: EcmpHash = data.draw(st.sampled_from([OvsHash(), CrcHash("crc16"), XorHash()]))
    shape = [data.draw(st.integers(1, most)) for most in (3, 4, 2)]
    topology = leaf_spine(*shape, 10**9, parallel_links=data.draw(st.integers(1, 3)), ipv6=data.draw(st.booleans()))
    cables = cabling(topology)
    between = [link for link in topology.links if link.a.node in cables.tors or link.b.node in cables.tors]
    between = [link for link in between if {link.a.node, link.b.node} & set(cables.spines)]
    tables = PortTables(cables, ecmp_hash)
    live = cables
    for _ in range(data.draw(st.integers(0, 2))):
        dead = data.draw(st.lists(st.sampled_from(between), max_size=4, unique=True))
        live = cables.without(dead)
        tables = tables.around(live.fabric)
        routes = forwarding(topology, frozenset(dead))
        for src, dst in data.draw(st.lists(st.tuples(*[st.integers(0, len(cables.nics) - 1)] * 2), max_size=3)):
            if src == dst:
                continue
            rate, tors = live.fabric.link_rate_bps, live.fabric.nic_tor
            ways = [(LOCAL, -1, -1)] if tors[src] == tors[dst] else [
                (spine, up, down)
                for spine, up in zip(*rate[tors[src]].nonzero(), strict=True)
                for (down,) in zip(*rate[tors[dst], spine].nonzero(), strict=True)
            ]  # fmt: skip
            for way in ways:
                path = cables.path_by(src, dst, *way)
                assert path is not None
                hosts = cables.nics[src].node, cables.nics[dst].node
                try:
                    expected = ports_for_path(topology, *hosts, path, ecmp_hash, routes=routes).tolist()
                except NoRouteError:
                    expected = []
                for lanes in (1, 8):
                    found = tables.ports(src, dst, way, lanes)
                    assert found == (expected[:lanes] if len(expected) >= lanes else [])
                    assert tables.ports(src, dst, way, lanes) is found


def ways_of(cables: PodCabling, src: int, dst: int) -> list[tuple[int, ...]]:
    """All ways over live links between two NICs."""
    if cables.fabric.nic_tor[src] == cables.fabric.nic_tor[dst]:
        return [(LOCAL, -1, -1, LOCAL, -1, -1)]
    return live_paths(cables.fabric, src, dst)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.data())
def test_ports_on_three_tiers_are_the_first_ones_for_the_path(data: st.DataObject) -> None:
    """Also where switches were read, whose next hops have another order, one for each address."""
    ecmp_hash: EcmpHash = data.draw(st.sampled_from([OvsHash(), LinuxL4Hash(), CrcHash("crc16")]))
    shape = [data.draw(st.integers(least, most)) for least, most in ((1, 3), (1, 2), (1, 3), (1, 2), (1, 2))]
    parallel = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    topology = clos(*shape, 10**9, parallel_links=parallel[0], core_parallel_links=parallel[1])
    cables, tier = pod_cabling(topology), tiers(topology)
    between = [link for link in topology.links if link.a.node in tier and link.b.node in tier]
    computed, live = PortTables(cables, ecmp_hash), cables
    turn = data.draw(st.randoms(use_true_random=False))
    for _ in range(2):
        dead = data.draw(st.lists(st.sampled_from(between), max_size=4, unique=True))
        live = cables.without(dead)
        computed = computed.around(live.fabric)
        routes = forwarding(topology, frozenset(dead))
        read = replace(routes, groups={
            name: {address: tuple(turn.sample(ports, len(ports))) for address, ports in groups.items()}
            for name, groups in routes.groups.items()
        })  # fmt: skip
        tables = {True: computed, False: PortTables(live, ecmp_hash, AsRead(live, read.groups))}
        for src, dst in data.draw(st.lists(st.tuples(*[st.integers(0, len(cables.nics) - 1)] * 2), max_size=3)):
            if src == dst:
                continue
            hosts, ways = (cables.nics[src].node, cables.nics[dst].node), ways_of(live, src, dst)
            for by_number, known in tables.items() if ways else ():
                order = routes if by_number else read
                paths, taken = paths_of_ports(topology, *hosts, ecmp_hash, routes=order)
                for way in ways:
                    path = cables.path_by(src, dst, *way)
                    assert path is not None
                    expected = (FIRST_PORT + np.flatnonzero(taken == paths.index(path))).tolist()
                    found = known.ports(src, dst, way, 4)
                    assert found == (expected[:4] if len(expected) >= 4 else [])
                    assert (way in known.ways(src, dst)) == bool(expected) or way[0] == LOCAL
                    assert way[0] == LOCAL or all(known.way(src, dst, port) == way for port in found)


def test_a_dead_route_has_no_ports_and_others_keep_theirs() -> None:
    topology = leaf_spine(3, 2, 1, 10**9)
    cables = cabling(topology)
    tables = PortTables(cables, OvsHash())
    before = tables.ports(0, 1, (1, 0, 0), 8), tables.ports(1, 2, (1, 0, 0), 8)
    after = tables.around(cables.fabric.without(links=[(0, 1, 0)]))
    assert after.ports(0, 1, (1, 0, 0), 8) == []
    assert after.ports(0, 1, (0, 0, 0), 8) == list(range(0xC000, 0xC008))  # the only way left
    assert after.ports(1, 2, (1, 0, 0), 8) is before[1]
    assert tables.ports(0, 1, (1, 0, 0), 8) is before[0]
    assert tables.ports(0, 1, (UNREACHABLE, -1, -1), 8) == []


def test_the_destination_port_counts() -> None:
    tables = PortTables(cabling(leaf_spine(2, 4, 1, 10**9)), OvsHash())
    assert tables.ports(0, 1, (2, 0, 0), 8, 4791) != tables.ports(0, 1, (2, 0, 0), 8, 40_000)


def test_the_protocol_counts() -> None:
    topology = leaf_spine(2, 4, 1, 10**9)
    tables = PortTables(cabling(topology), OvsHash())
    path = equal_cost_paths(topology, "h1", "h2")[2]
    for protocol in (IPPROTO_UDP, IPPROTO_TCP):
        expected = ports_for_path(topology, "h1", "h2", path, OvsHash(), protocol=protocol)[:8]
        assert tables.ports(0, 1, (2, 0, 0), 8, ROCE_PORT, protocol) == expected.tolist()


def returning(tables: PortTables, ports: list[int], spine: int, peer_port: int) -> list[int]:
    """Those of these ports of NIC 0 that answers of NIC 1 come back to over this spine."""
    own, peer = (address_at(tables._addresses, nic) for nic in (0, 1))
    there = FlowFields.over_ports(own, peer, np.array(ports, dtype=np.uint16), peer_port, IPPROTO_TCP)
    leaf = tables._choices.between(1, 0)
    taken = OvsHash().select(there.reversed(), leaf.seed, len(leaf.up)).tolist()
    return [port for port, member in zip(ports, taken, strict=True) if leaf.up[member] == (spine, 0)]


@pytest.mark.parametrize(
    ("spines", "peers"), [(1, 4), (2, 4), (8, 10), (16, 40), (45, 40), (64, 4), (128, 10), (512, 4)]
)
def test_the_ports_of_fewer_connections_are_the_first_ones_of_more(spines: int, peers: int) -> None:
    """Slot k of a host takes the last of k + 1 ports. First are those that answers come back to over the same links."""
    tables = PortTables(cabling(leaf_spine(2, spines, 1, 10**9)), OvsHash())
    to = 0, 1, (spines // 2, 0, 0)
    for peer_port in range(5_000, 5_000 + peers):
        answers = [tables.ports_both_ways(*to, count, peer_port, IPPROTO_TCP) for count in range(17)]
        slots = [answer[-1] for answer in answers[1:]]
        assert len({*slots}) == 16
        assert answers == [slots[:count] for count in range(17)]
        first = tables.ports(*to, max(16, 4096 // spines), peer_port, IPPROTO_TCP)
        searched = first[: 4096 // spines] if spines <= 64 else []
        both = returning(tables, searched, spines // 2, peer_port)
        others = [port for port in first if port not in both]
        assert slots == [*both, *others][:16]


@pytest.mark.parametrize("spines", [8, 128])
def test_connections_beyond_those_that_come_back_over_the_same_links_have_ports_of_their_own(spines: int) -> None:
    tables = PortTables(cabling(leaf_spine(2, spines, 1, 10**9)), OvsHash())
    to = 0, 1, (5, 0, 0)
    most = 8192 // spines
    every = tables.ports_both_ways(*to, most, 80, IPPROTO_TCP)
    assert sorted(every) == tables.ports(*to, most, 80, IPPROTO_TCP)
    for count in (1, 31, most // 2, most // 2 + 1):
        assert tables.ports_both_ways(*to, count, 80, IPPROTO_TCP) == every[:count]
    assert tables.ports_both_ways(*to, most + 1, 80, IPPROTO_TCP) == []


def test_a_way_that_few_ports_take_has_them_in_the_same_order_for_every_count() -> None:
    class Uneven(OvsHash):
        """Of 256 ports, one takes another member than the first."""

        def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
            chosen = super().select(fields, seed, 128 * members)
            return np.where(chosen < members, chosen, 0)

    tables = PortTables(cabling(leaf_spine(2, 2, 1, 10**9)), Uneven())
    to = 0, 1, (1, 0, 0)
    for peer_port in range(5_000, 5_003):
        answers = [tables.ports_both_ways(*to, count, peer_port, IPPROTO_TCP) for count in range(1, 129)]
        found = [answer for answer in answers if answer]
        assert 16 < len(found) < 128
        assert [len(answer) for answer in answers] == [*range(1, len(found) + 1), *[0] * (128 - len(found))]
        assert all(answer == found[-1][: len(answer)] for answer in found)
        assert sorted(found[-1]) == tables.ports(*to, len(found), peer_port, IPPROTO_TCP)


def test_too_many_ports_give_none() -> None:
    tables = PortTables(cabling(leaf_spine(2, 4, 1, 10**9)), OvsHash())
    assert len(tables.ports(0, 1, (2, 0, 0), 2_000)) == 2_000
    assert tables.ports(0, 1, (2, 0, 0), 16_000) == []


def test_a_search_that_may_fail_for_lack_of_ports_is_not_begun() -> None:
    hashed: list[int] = []

    class Counting(OvsHash):
        def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
            hashed.append(len(fields))
            return super().select(fields, seed, members)

    tables = PortTables(cabling(leaf_spine(2, 32, 1, 10**9)), Counting())
    assert tables.ports(0, 1, (2, 0, 0), 257) == []
    assert hashed == []
    assert len(tables.ports(0, 1, (2, 0, 0), 256)) == 256
    assert 256 * 32 <= sum(hashed) <= 1.25 * 256 * 32


def test_the_cache_is_bounded() -> None:
    tables = PortTables(cabling(leaf_spine(2, 4, 1, 10**9)), OvsHash(), most_bytes=100_000)
    fresh = PortTables(cabling(leaf_spine(2, 4, 1, 10**9)), OvsHash())
    for port in (*range(1, 200), *range(1, 200)):
        assert tables.ports(0, 1, (port % 4, 0, 0), 64, port) == fresh.ports(0, 1, (port % 4, 0, 0), 64, port)
        assert tables._tables._bytes == sum(table.bytes for table in tables._tables._tables.values()) <= 100_000
    again = tables.ports(0, 1, (3, 0, 0), 64, 199)
    assert tables.ports(0, 1, (3, 0, 0), 64, 199) is again


@pytest.mark.parametrize("spines", [1, 64])
def test_any_number_of_spines(spines: int) -> None:
    tables = PortTables(cabling(leaf_spine(2, spines, 1, 10**9)), OvsHash())
    every = [port for spine in range(spines) for port in tables.ports(0, 1, (spine, 0, 0), 128)]
    assert len(set(every)) == 128 * spines


@pytest.mark.parametrize("topology", [leaf_spine(3, 3, 2, 10**9, parallel_links=2), clos(2, 2, 2, 2, 2, 10**9)])
def test_without_a_hash_ports_may_take_every_way_and_none_is_known(topology: Topology) -> None:
    cables = PLANNERS["optimal"].cabling(topology)
    unknown, known = PortTables(cables, None), PortTables(cables, LinuxL4Hash())
    tors = cables.fabric.nic_tor
    for src, dst in permutations(range(len(cables.nics)), 2):
        if tors[src] == tors[dst]:
            continue
        ways = unknown.ways(src, dst)
        assert set(ways) == set(known.ways(src, dst))
        assert len(set(ways)) == len(ways)
        assert all(unknown.ports(src, dst, way, 1) == [] for way in ways)
