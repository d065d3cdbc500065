# SPDX-License-Identifier: Apache-2.0
"""Elephants that cannot change their ports keep the paths that they begin with."""

from __future__ import annotations

import random

import pytest

from netmodel import Flow, OvsHash, PortRef, Topology, forwarding, path_of
from sdn.path_service.messages import Announce, Release
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import Hosts, fabric, three_tiers

FABRICS = [fabric(), fabric(parallel=2), three_tiers(aggs=3)]


def ways(service: PathService) -> dict[tuple[str, str], list[str]]:
    return {(flow["device"], flow["peer"]): flow["path"] for flow in service.flows(1000)}


def churned(service: PathService, seed: int, fixed: bool) -> tuple[Hosts, int]:
    """Elephants come and go: the hosts, and how often the path of an open one changed."""
    hosts, draw = Hosts(service), random.Random(seed)
    count = len(service.topology.hosts)
    conns = [hosts.connect(host, fixed=fixed) for host in range(count)]
    open_: dict[tuple[int, ...], int] = {}
    changes = 0
    for number in range(150):
        before = ways(service)
        hosts.now_s += 0.1
        if open_ and draw.random() < 0.4:
            ends = draw.choice(list(open_))
            hosts.release(conns[ends[0]], open_.pop(ends))
        else:
            host, peer = ends = tuple(draw.sample(range(count), 2))
            if ends in open_:
                continue
            open_[ends] = number
            hosts.announce(conns[host], number, peer)
        after = ways(service)
        changes += sum(after[ends] != path for ends, path in before.items() if ends in after)
    return hosts, changes


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
@pytest.mark.parametrize("planner", ["optimal", "ecmp", "greedy", "annealing"])
def test_no_change_moves_an_elephant_that_cannot_move(topology: Topology, planner: str) -> None:
    hosts, changes = churned(PathService(topology, Options(planner)), 1, fixed=True)
    hosts.check()
    assert changes == 0
    assert not hosts.service.counts["moved"]


def test_others_are_moved_by_the_same_changes() -> None:
    assert churned(PathService(fabric(), Options("optimal")), 1, fixed=False)[1] > 0


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
def test_a_dead_link_moves_those_on_it_and_no_others(topology: Topology) -> None:
    service = PathService(topology)
    hosts, _ = churned(service, 2, fixed=True)
    before = ways(service)
    between = [link for link in topology.links if not topology.has_host(link.a.node)]
    link = next(link for link in between if any(str(link.a) in path for path in before.values()))
    hosts.link([link], up=False)
    hosts.check()
    on_it = {ends for ends, path in before.items() if {str(link.a), str(link.b)} & set(path)}
    after = ways(service)
    assert {ends for ends, path in before.items() if after[ends] != path} == on_it != set()


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
def test_hosts_that_ask_for_it_are_told_the_path_of_their_ports(topology: Topology, fixed: bool) -> None:
    service = PathService(topology)
    hosts = Hosts(service)
    told, other = hosts.connect(0, fixed=fixed, paths=True), hosts.connect(0, instance=1, fixed=fixed)
    far = len(topology.hosts) - 1
    answer = hosts.announce(told, 1, far)
    (flow,) = service.flows(10)
    assert answer.paths == [flow["path"]]
    assert not hosts.announce(other, 1, far).paths
    hosts.link([topology.link_at(PortRef.parse(flow["path"][1]))], up=False)
    (moved,) = hosts.answered[told, 1].paths
    assert moved == next(flow["path"] for flow in service.flows(10) if flow["ids"] == [1]) != flow["path"]
    assert not hosts.announce(told, 2, "10.9.9.9").paths


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
def test_a_host_is_told_where_the_port_leads_that_it_has_already(topology: Topology) -> None:
    hosts = Hosts(PathService(topology))
    told = hosts.connect(0, lanes=1, fixed=True, paths=True)
    peer = topology.hosts[-1].nics[0].address
    for number, port in enumerate(range(50_000, 50_032)):
        said = Announce(number, str(peer), 500, port=port)
        hosts.hear(hosts.service.handle(hosts.now_s, told, [said, Release(number)]))
        path = path_of(topology, Flow(topology.hosts[0].nics[0].address, peer, port), OvsHash())
        assert hosts.answered[told, number].paths == [[*map(str, path)]]


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
def test_a_host_is_told_where_its_ports_lead_when_switches_hash_over_other_links(topology: Topology) -> None:
    """Also of connections that were not on the dead link, and keep their ports."""
    hosts = Hosts(PathService(topology))
    (here,), (peer,) = topology.hosts[0].nics, topology.hosts[-1].nics
    ports = range(50_000, 50_032)
    for number, port in enumerate(ports):
        conn = hosts.connect(0, number, lanes=1, fixed=True, paths=True)
        hosts.hear(hosts.service.handle(hosts.now_s, conn, [Announce(number, str(peer.address), 500, port=port)]))
    before = {port: hosts.answered[number + 1, number].paths for number, port in enumerate(ports)}
    hosts.link([topology.link_at(PortRef.parse(before[50_000][0][1]))], up=False)
    routes = forwarding(topology, frozenset(hosts.dead))
    for number, port in enumerate(ports):
        path = path_of(topology, Flow(here.address, peer.address, port), OvsHash(), routes=routes)
        assert hosts.answered[number + 1, number].paths == [[*map(str, path)]]


def test_plans_move_again_when_all_that_cannot_have_ended() -> None:
    service = PathService(fabric(leaves=2, spines=2, hosts=2))
    hosts = Hosts(service)
    fixed, free = hosts.connect(0, fixed=True), [hosts.connect(host, instance=1) for host in range(4)]
    hosts.announce(fixed, 1, 2)
    hosts.announce(free[1], 1, 3)
    before = ways(service)
    hosts.release(fixed, 1)
    hosts.now_s += 1.0
    for number, (host, peer) in enumerate([(0, 3), (2, 0), (3, 1), (0, 2)], start=10):
        hosts.announce(free[host], number, peer)
    hosts.check()
    assert max(link["up"] for link in service.paths()) <= 2
    assert len(before) == 2
