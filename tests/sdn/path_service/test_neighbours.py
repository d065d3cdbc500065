# SPDX-License-Identifier: Apache-2.0
"""Programs whose ranks are all connected before any sends data, such as Gloo: their ring has links of its own."""

from __future__ import annotations

import random
from collections import Counter
from ipaddress import IPv4Address
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from netmodel import Flow, PortRef, Topology, path_of
from sdn.measured.router_names import names_of
from sdn.path_service.journal import Journal
from sdn.path_service.log_file import LogFile
from sdn.path_service.replay import replay
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import Hosts, address, fabric, hello
from tests.sdn.path_service.test_constraints import ways
from tests.sdn.path_service.test_places import FABRICS, MEBIBYTES, Programs
from tests.sdn.path_service.test_succession import follow

SEEDS = range(3)


class Mesh(Programs):
    """As Gloo does: each two ranks have one connection, which either of them opens. All have one to rank 0 before."""

    def __init__(self, topology: Topology, seed: int, *, tell: bool = True) -> None:
        draw = random.Random(seed)
        self.order = draw.sample(range(len(topology.hosts)), len(topology.hosts))  # the host of each rank
        ranks = [self.order.index(host) for host in range(len(self.order))]
        super().__init__(PathService(topology), ranks if tell else ())
        while self.service.busy:
            self.tick()
        pairs = [draw.sample(ends, 2) for ends in combinations(range(len(self.order)), 2)]
        draw.shuffle(pairs)
        for connection in [self.begin(host, self.order[0]) for host in self.order[1:]]:  # to the store
            self.sent(connection, 1000)
        self.opened_by: dict[tuple[int, ...], tuple[int, int]] = {}
        for own, peer in pairs:
            self.opened_by[own, peer] = self.begin(own, peer)
            self.sent(self.opened_by[own, peer], 8)  # those that begin later come after it

    def loads(self, step: int) -> Counter[str]:
        """By link and direction: the ranks that send to the one that is `step` further in the ring over it."""
        taken: Counter[str] = Counter()
        for rank, own in enumerate(self.order):
            peer = self.order[(rank + step) % len(self.order)]
            taken.update(str(port) for port in self.path(own, peer)[1:-1])
        return taken

    def path(self, own: int, peer: int) -> tuple[object, ...]:  # type: ignore[override]
        """That of what one host sends to another, by the hash of switches."""
        back = (own, peer) not in self.opened_by
        connection = self.opened_by[(peer, own) if back else (own, peer)]
        ends = [
            (IPv4Address(address(self.topology, own)), self.answered[connection].ports[-1]),
            (IPv4Address(address(self.topology, peer)), self.peers[connection][1]),
        ]
        ports = [port for _, port in (reversed(ends) if back else ends)]
        return path_of(self.topology, Flow(ends[0][0], ends[1][0], *ports), self.hash)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
def test_a_ring_of_ranks_has_links_of_its_own_in_both_directions(topology: Topology, seed: int) -> None:
    """Whichever rank has opened the connection, and whatever others were opened before."""
    mesh = Mesh(topology, seed)
    for step in (1, -1):
        assert max(mesh.loads(step).values()) == 1


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("takes_over", [False, True])
def test_rings_of_two_have_links_of_their_own_in_both_directions(turn: int, takes_over: bool) -> None:
    """Each rank sends to the other over one connection, which either of them has opened."""
    topology = fabric(leaves=2, spines=2, hosts=2)
    programs = Programs(PathService(topology))
    for job, ends in (("first", (0, 2)), ("second", (3, 1))):
        for rank, host in enumerate(ends):
            programs.connect(host, instance=1, lanes=1, fixed=True, job=job, rank=rank, ranks=2)
    if takes_over:
        follow(programs, topology)
    opened = [programs.begin(*ends[::-1] if turn else ends) for ends in ((0, 2), (3, 1))]
    for connection in opened:
        programs.sent(connection, MEBIBYTES)
    first, second = ({port.split(":")[0] for port in programs.loads([connection])} for connection in opened)
    assert {node for node in first & second if node.startswith("spine")} == set()
    assert max(max(link["up"], link["down"]) for link in programs.service.paths()) == 1


@pytest.mark.parametrize("seed", [3, 8])
def test_rings_of_two_keep_the_same_links_both_ways_when_links_die(seed: int) -> None:
    topology, draw = fabric(leaves=3, spines=4, hosts=4), random.Random(seed)
    programs = Programs(PathService(topology))
    order = draw.sample(range(12), 12)
    for place, host in enumerate(order):
        job = f"job{place // 2}"
        programs.connect(host, instance=1, lanes=1, fixed=True, job=job, rank=place % 2, ranks=2)
    for link in draw.sample([link for link in topology.links if "spine" in str(link)], 2):
        programs.link([link], up=False)
        spines = {
            (flow["device"], flow["peer"]): [port.split(":")[0] for port in flow["path"] if port.startswith("spine")]
            for flow in programs.service.flows(100)
        }
        assert all(spines[peer, own] == spine for (own, peer), spine in spines.items())


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
def test_connections_from_either_end_leave_a_link_that_dies(topology: Topology) -> None:
    mesh = Mesh(topology, 1)
    ends = [tuple(map(mesh.order.__getitem__, (rank, (rank + 1) % len(mesh.order)))) for rank in range(len(mesh.order))]
    for end in ends:
        mesh.sent(mesh.opened_by[end if end in mesh.opened_by else end[::-1]], MEBIBYTES)
    loads = mesh.loads(1)
    link = topology.link_at(PortRef.parse(max(loads, key=loads.__getitem__)))
    mesh.link([link], up=False)
    paths = {number: flow["path"] for flow in mesh.service.flows(10_000) for number in flow["ids"]}
    assert all(str(link.a) not in path and str(link.b) not in path for path in paths.values())


def test_the_room_of_a_ring_ends_with_its_ranks_and_comes_back_with_them() -> None:
    programs = Programs(PathService(fabric(leaves=2, spines=2, hosts=2)), [0, 2, 1, 3])
    service = programs.service
    assert service.commodities == 4  # each rank is behind another leaf than the one before it
    programs.disconnect(programs.conns[1])
    assert service.commodities == 2
    programs.connect(1, lanes=1, fixed=True, job="train", rank=2, ranks=4)
    assert service.commodities == 4
    for conn in (programs.conns[0], *programs.conns[2:], programs.connections):
        programs.disconnect(conn)
    while service.busy:
        programs.tick()
    assert not service.commodities
    assert not any(link["up"] or link["down"] for link in service.paths())


@pytest.mark.parametrize("host", [1, 4], ids=["same host", "another host"])
def test_a_rank_that_comes_back_before_its_end_is_noticed_has_room(host: int) -> None:
    """Its old connection to the service may last, such as that of a host that has failed."""
    hosts = Hosts(PathService(fabric(leaves=3, spines=2, hosts=2)))
    said: dict[str, Any] = {"lanes": 1, "fixed": True, "job": "train", "ranks": 4}
    conns = [hosts.connect(each, rank=rank, **said) for rank, each in enumerate([0, 2, 1, 3])]
    hosts.connect(host, instance=1, rank=2, **said)
    hosts.disconnect(conns[2])
    rooms = {(flow["device"], flow["peer"]) for flow in hosts.service.flows(10)}
    ring = [address(hosts.topology, each) for each in (0, 2, host, 3)]
    assert rooms == set(zip(ring, [*ring[1:], ring[0]], strict=True))


def test_with_measured_paths_a_ring_has_paths_before_any_ports() -> None:
    """No packet is on random ports yet: a drain would say that it does not know where these are."""
    topology = fabric(leaves=2, spines=2, hosts=2)
    service = Programs(PathService(topology, routers=names_of(topology)), [0, 2, 1, 3]).service
    assert [len(flow["path"]) for flow in service.flows(10)] == [4] * 4
    assert service.load_of([topology.link_at(PortRef.parse("leaf1:3"))])[1] == 0


def test_no_room_is_made_towards_a_rank_that_has_left_before_its_turn() -> None:
    topology = fabric(leaves=6, spines=3, hosts=4)
    count = len(topology.hosts)  # more than are planned at once
    order = [each * 4 % count + each // 6 for each in range(count)]  # each behind another leaf than the one before it
    hosts = Hosts(PathService(topology))
    said: dict[str, Any] = {"lanes": 1, "fixed": True, "job": "train", "ranks": count}
    conns = [hosts.connect(host, rank=rank, **said) for rank, host in enumerate(order)]
    hosts.disconnect(conns[-2])
    while hosts.service.busy:
        hosts.tick()
    assert hosts.service.commodities == count - 2


@pytest.mark.parametrize(
    "topology", [FABRICS[0], fabric(leaves=6, spines=4, hosts=4)], ids=lambda topology: topology.name
)
def test_a_service_that_takes_over_has_the_room_of_rings(topology: Topology) -> None:
    """Also of one that is too large to be planned at once."""
    mesh = Mesh(topology, 2)
    before, commodities = ways(mesh.service), mesh.service.commodities
    assert follow(mesh, topology) == 0
    assert ways(mesh.service) == before
    assert mesh.service.commodities == commodities > len(mesh.opened_by)


def test_the_log_has_ranks(tmp_path: Path) -> None:
    topology, path = fabric(), tmp_path / "log"
    with LogFile(path) as lines:
        journal = Journal(lines)
        journal.head(topology, Options())
        for host in range(6):
            said = hello(topology, host, fixed=True, job="train", rank=host, ranks=6)
            journal.hello(1.0, host, said, "10.0.0.1:7")
    *_, last = replay([path])
    assert last.service.commodities == 6


@pytest.mark.parametrize(
    "said",
    [
        {"job": "", "rank": 1, "ranks": 2},
        {"job": "other", "rank": 1, "ranks": 2},
        {"job": "train", "rank": 0, "ranks": 2},
        {"job": "train", "rank": 1, "ranks": 3},
        {"job": "train"},
        {"job": "train", "rank": 0},
        {"job": "train", "rank": 2, "ranks": 2},
        {"job": "train", "rank": 1, "ranks": 2, "fixed": False},
    ],
)
def test_no_room_is_made_before_all_ranks_of_a_job_are_there(said: dict[str, Any]) -> None:
    hosts = Hosts(PathService(fabric()))
    hosts.connect(0, fixed=True, job="train", rank=0, ranks=2)
    hosts.connect(2, **{"fixed": True, **said})
    assert not hosts.service.commodities
    hosts.connect(4, fixed=True, job="train", rank=1, ranks=2)
    assert bool(hosts.service.commodities) == (said.get("rank") != 0 or "ranks" not in said)


def test_without_ranks_nobody_knows_which_connections_will_carry_data() -> None:
    assert any(max(Mesh(FABRICS[1], seed, tell=False).loads(1).values()) > 1 for seed in SEEDS)
