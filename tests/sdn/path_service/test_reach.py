# SPDX-License-Identifier: Apache-2.0
"""Fabrics whose hash polarises: plans over the ways that ports reach, and the sentence that says so."""

from __future__ import annotations

from collections import Counter

import pytest

from netmodel import CrcHash, EcmpHash, OvsHash, XorHash, equal_cost_paths, leaf_spine, paths_of_ports
from sdn.path_service.ports import PortTables
from sdn.path_service.reach import WithinReach, polarised
from sdn.path_service.service import Options, PathService
from sdn.planners import LOCAL, Cabling, cabling
from tests.sdn.path_service.sample import RATE, Hosts, address

HASHES: list[EcmpHash] = [CrcHash("crc32"), CrcHash("crc16"), XorHash()]


def cables_of(leaves: int = 2, spines: int = 2, hosts: int = 4, parallel: int = 2) -> Cabling:
    return cabling(leaf_spine(leaves, spines, hosts, RATE, parallel_links=parallel))


@pytest.mark.parametrize("ecmp_hash", [*HASHES, OvsHash()])
def test_ways_are_the_paths_that_some_port_takes(ecmp_hash: EcmpHash) -> None:
    cables = cables_of()
    tables = PortTables(cables, ecmp_hash)
    for src, dst in ((0, 4), (7, 1)):
        ways = tables.ways(src, dst)
        paths, index = paths_of_ports(cables.topology, cables.nics[src].node, cables.nics[dst].node, ecmp_hash)
        taken = {paths[number] for number in set(index.tolist())}
        assert {cables.path_by(src, dst, *way) for way in ways} == taken
        assert tables.count(src, dst) == len(paths)
        assert all(tables.ports(src, dst, way, 4) for way in ways)


@pytest.mark.parametrize("ecmp_hash", HASHES)
def test_every_announcement_gets_ports_and_an_uplink_of_its_own(ecmp_hash: EcmpHash) -> None:
    """Four hosts send to the four of the other leaf, over two spines with two links each: one link for each."""
    topology = leaf_spine(2, 2, 4, RATE, parallel_links=2)
    service = PathService(topology, Options(), ecmp_hash)
    hosts = Hosts(service, ecmp_hash)
    conns = [hosts.connect(host, lanes=2) for host in range(8)]
    for host in range(4):
        hosts.announce(conns[host], 1, host + 4)
    used: Counter[object] = Counter()
    for host in range(4):
        ports = hosts.ports[conns[host], address(topology, host + 4)]
        assert len(ports) == 2
        paths, index = paths_of_ports(topology, f"h{host + 1}", f"h{host + 5}", ecmp_hash, ports)
        (path,) = {paths[number] for number in index.tolist()}  # both lanes take the planned path
        assert path in equal_cost_paths(topology, f"h{host + 1}", f"h{host + 5}")
        used.update(path[1:3])
    assert max(used.values()) == 1
    assert service.status()["gap"] == 0


def test_the_status_says_what_is_wrong_and_what_mends_it() -> None:
    topology = leaf_spine(2, 2, 4, RATE, parallel_links=2)
    assert PathService(topology, Options(), CrcHash("crc32")).status()["polarised"] == (
        "the switches' hash is polarised: from leaf1 to leaf2 ports reach 4 of 8 paths; give leaves and spines "
        "different hash functions, or one of them an offset of its hash bits"
    )
    for sound in (PathService(topology), PathService(leaf_spine(2, 4, 4, RATE), Options(), CrcHash("crc32"))):
        assert sound.status()["polarised"] is None


def test_a_dead_link_moves_what_it_carried_and_its_return_is_used() -> None:
    cables = cables_of()
    tables = PortTables(cables, HASHES[0])
    live = WithinReach(cables.fabric, lambda src, dst: tables.ways(src, dst))
    numbers = [live.arrive(nic, nic + 4)[0].commodity for nic in range(4)]
    assert live.plan().loads.max() == 1
    dead = cables.fabric.without(links=[(0, 0, 0)])
    tables = tables.around(dead)
    moved = live.refit(dead)
    assert all((route.spine, route.up) != (0, 0) for route in map(live.route, numbers))
    assert live.plan().congestion * RATE == 2
    assert {route.commodity for route in moved} <= set(numbers)
    tables = tables.around(cables.fabric)
    live.refit(cables.fabric)
    assert live.plan().loads.max() == 1


def test_departures_make_room_and_limits_hold() -> None:
    cables = cables_of(leaves=3)
    tables = PortTables(cables, HASHES[0])
    live = WithinReach(cables.fabric, tables.ways)
    live.max_reroutes = 0
    first, moved = live.arrive(0, 4)
    assert moved == ()
    local, _ = live.arrive(0, 1)
    assert local.spine == LOCAL
    for limit in (2, 3, 4, 6):
        live.max_reroutes = limit
        _, moved = live.arrive(limit % 4, 8 + limit % 4)
        assert len(moved) <= limit
    assert live.depart(local.commodity) == ()
    live.max_reroutes = None
    live.depart(first.commodity)
    assert live.plan().proved
    with pytest.raises(KeyError):
        live.depart(first.commodity)


def test_other_hashes_and_single_links_are_not_polarised() -> None:
    cables = cables_of()
    assert polarised(cables, PortTables(cables, OvsHash())) is None
    single = cables_of(parallel=1)
    assert polarised(single, PortTables(single, HASHES[0])) is None
    found = polarised(cables, PortTables(cables, HASHES[0]))
    assert found is not None
    assert (found.reached, found.ways) == (4, 8)
