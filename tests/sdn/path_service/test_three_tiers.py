# SPDX-License-Identifier: Apache-2.0
"""`PathService` on fabrics of three tiers, and of planes."""

from __future__ import annotations

import pytest

from netmodel import CrcHash, in_planes
from sdn.path_service import routing
from sdn.path_service.links import links_named
from sdn.path_service.messages import Hello
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import LANES, RATE, TOKEN, Hosts, three_tiers


def all_hosts(service: PathService, shift: int) -> Hosts:
    """Every host announces an elephant to the one `shift` after it."""
    hosts = Hosts(service)
    count = len(service.topology.hosts)
    conns = [hosts.connect(host) for host in range(count)]
    for host, conn in enumerate(conns):
        hosts.announce(conn, 1, (host + shift) % count)
    return hosts


def test_on_three_tiers_every_link_carries_one_elephant() -> None:
    hosts = all_hosts(PathService(three_tiers(4), Options(rates=True)), 4)
    hosts.tick()
    hosts.check()
    assert {(link["up"], link["down"]) for link in hosts.service.paths()} == {(1, 1)}
    assert {len(flow["path"]) for flow in hosts.service.flows(99)} == {6}
    assert {answer.rate_bps for answer in hosts.answered.values()} == {RATE}
    status = hosts.service.status()
    assert (status["gap"], status["unreachable"], status["polarised"]) == (0, 0, None)


@pytest.mark.parametrize("name", ["leaf1:3", "agg2:4", "core1-agg3", "agg1", "core2"])
@pytest.mark.parametrize("prepared", [True, False])
def test_a_failure_on_three_tiers_is_planned_ahead_and_others_keep_their_paths(name: str, prepared: bool) -> None:
    hosts = all_hosts(PathService(three_tiers()), 4)
    while prepared and hosts.service.prepare():
        pass
    before = {flow["device"]: flow["path"] for flow in hosts.service.flows(99)}
    dead = links_named(hosts.topology, name)
    hosts.link(list(dead), up=False)
    ends = {str(end) for link in dead for end in (link.a, link.b)}
    cut = [device for device, path in before.items() if ends.intersection(path)]
    assert hosts.service.counts["prepared plans used"] == prepared
    assert hosts.service.status()["failover"]["cut"] == len(cut) > 0
    hosts.check()
    assert not ends.intersection(port for flow in hosts.service.flows(99) for port in flow["path"])
    hosts.link(list(dead), up=True)
    hosts.check()
    assert hosts.service.status()["gap"] == 0


def test_reroutes_on_three_tiers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "REROUTES_PER_S", 2.0)
    hosts = all_hosts(PathService(three_tiers(4)), 4)
    for turn in range(4):  # nobody's time passes
        for host in range(16):
            hosts.release(host + 1, turn + 1)
            hosts.announce(host + 1, turn + 2, (host + 5 + 3 * turn) % 16)
    assert hosts.service.counts["moved"] <= 2
    hosts.check()


def test_planes_are_planned_like_fabrics_of_their_own() -> None:
    topology = in_planes(three_tiers(2), 2)
    hosts = Hosts(PathService(topology))
    second = [str(host.nics[1].address) for host in topology.hosts]
    for number, device in enumerate(second, start=1):
        hosts.service.connect(0.0, number, Hello(1, TOKEN, device, f"{number:016x}", LANES))
        hosts.device[number], hosts.generation[number] = device, 0
    for number in range(1, 9):
        assert len(hosts.announce(number, 1, second[(number + 3) % 8]).ports) == LANES
    assert {port[:2] for flow in hosts.service.flows(99) for port in flow["path"][1:]} == {"p2"}
    assert max(max(link["up"], link["down"]) for link in hosts.service.paths()) == 1
    other = str(topology.hosts[4].nics[0].address)  # in the other plane
    assert hosts.announce(1, 2, other).ports == []
    assert hosts.service.status()["polarised"] is None


@pytest.mark.parametrize("planner", ["greedy", "annealing", "ilp", "ecmp"])
def test_every_planner_serves_three_tiers(planner: str) -> None:
    hosts = all_hosts(PathService(three_tiers(), Options(planner)), 4)
    hosts.check()
    hosts.link(list(links_named(hosts.topology, "core1")), up=False)
    hosts.check()
    assert hosts.service.status()["unreachable"] == 0


def test_three_tiers_with_one_affine_hash_are_polarised_and_planned_within_reach() -> None:
    """Leaf and agg choose alike, so that ports reach half of the paths, and each elephant gets one of these."""
    service = PathService(three_tiers(), ecmp_hash=CrcHash("crc32"))
    assert "give leaves, aggs and cores different hash functions" in service.status()["polarised"]
    hosts = Hosts(service, CrcHash("crc32"))
    conns = [hosts.connect(host) for host in range(8)]
    for host in range(4):
        assert len(hosts.announce(conns[host], 1, host + 4).ports) == LANES
    for _ in ("with all links", "without one"):
        for flow, (conn, peer) in zip(service.flows(9), [key for key in hosts.ports if key[0] <= 4], strict=True):
            (path,) = hosts.path(conn, peer)
            assert [str(port) for port in path] == flow["path"]
        hosts.link(list(links_named(hosts.topology, "agg1:3")), up=False)
    assert service.status()["unreachable"] == 0
