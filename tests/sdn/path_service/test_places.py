# SPDX-License-Identifier: Apache-2.0
"""Connections that cannot move: those that carry data find room, whatever a program has opened before them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address
from itertools import islice, permutations

import pytest

from netmodel import Flow, Topology, forwarding, path_of
from sdn.path_service.constraints import Constraints, PinnedPair, Via
from sdn.path_service.messages import Announce, Release
from sdn.path_service.places import SENT
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import Hosts, address, fabric, three_tiers

MEBIBYTES = 8 * SENT


class Programs(Hosts):
    """Programs whose connections cannot move, one on each host: each connection to a port of its own.

    `ranks` are those of the hosts, if they tell them.
    """

    def __init__(self, service: PathService, ranks: Sequence[int] = ()) -> None:
        super().__init__(service)
        hosts = range(len(self.topology.hosts))
        said = [{"job": "train", "rank": rank, "ranks": len(ranks)} for rank in ranks] or [{} for _ in hosts]
        self.conns = [self.connect(host, lanes=1, fixed=True, **said[host]) for host in hosts]
        self.peers: dict[tuple[int, int], tuple[str, int]] = {}
        self.opened = 0

    def begin(self, host: int, peer: int) -> tuple[int, int]:
        """A connection, which has sent nothing yet."""
        self.opened += 1
        connection = self.conns[host], self.opened
        self.peers[connection] = address(self.topology, peer), 30_000 + self.opened
        self.sent(connection, 0)
        return connection

    def sent(self, connection: tuple[int, int], size: int, port: int | None = None) -> None:
        conn, number = connection
        peer, peer_port = self.peers[connection]
        said = Announce(number, peer, size, peer_port=peer_port, port=port)
        self.hear(self.service.handle(self.now_s, conn, [said]))

    def close(self, connection: tuple[int, int]) -> None:
        self.hear(self.service.handle(self.now_s, connection[0], [Release(connection[1])]))

    def loads(self, connections: list[tuple[int, int]]) -> Counter[str]:
        """By link and direction: how many of these connections the service says go over it."""
        paths = {number: flow["path"] for flow in self.service.flows(10_000) for number in flow["ids"]}
        return Counter(port for _, number in connections for port in paths[number][1:-1])


def ring(hosts: int, seed: int) -> list[tuple[int, int]]:
    order = list(range(hosts))
    random.Random(seed).shuffle(order)
    return [(order[place], order[(place + 1) % hosts]) for place in range(hosts)]


FABRICS = [fabric(leaves=4, spines=2), three_tiers(in_pods=4)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
def test_the_data_of_a_ring_have_links_of_their_own(topology: Topology, seed: int) -> None:
    """As NCCL does: all meet at one rank, each connects to the next one, and, later, again for the data.

    Beside these, ranks open and close connections to the previous one and to any other.
    """
    programs = Programs(PathService(topology))
    hosts = len(topology.hosts)
    draw = random.Random(seed)
    edges = ring(hosts, seed)
    root = edges[0][0]
    meetings = [programs.begin(host, root) for host in range(hosts) if host != root]
    meetings += [programs.begin(root, host) for host in range(hosts) if host != root]
    idle = [programs.begin(*ends) for ends in draw.sample(edges, hosts)]
    for connection in meetings:
        programs.close(connection)
    programs.now_s += 1.0
    for connection in idle:
        programs.sent(connection, 100)
    data = []
    for own, peer in draw.sample(edges, hosts):
        other = draw.choice([host for host in range(hosts) if host not in (own, peer)])
        short = [programs.begin(peer, own), programs.begin(own, other)]
        data += [programs.begin(own, peer), programs.begin(own, peer)]  # of two channels
        if draw.random() < 0.8:
            programs.close(short[0])
    for connection in draw.sample(data, len(data)):
        programs.sent(connection, MEBIBYTES)
    loads = programs.loads(data)
    assert set(loads.values()) == {2}
    assert not programs.service.counts["moved"]


def test_a_connection_of_the_set_up_takes_no_room() -> None:
    """Two spines: the data of two hosts of a leaf take one each, although others have gone there before."""
    programs = Programs(PathService(fabric(leaves=2, spines=2, hosts=4)))
    for _ in range(3):
        programs.begin(0, 4)
    first, second = programs.begin(1, 5), programs.begin(2, 6)
    for connection in (first, second):
        programs.sent(connection, MEBIBYTES)
    assert max(programs.loads([first, second]).values()) == 1
    assert sum(link["up"] + link["down"] for link in programs.service.paths()) == 4


def test_a_place_goes_on_when_the_connection_that_it_was_for_ends() -> None:
    programs = Programs(PathService(fabric(leaves=2, spines=2, hosts=4)))
    idle, data = programs.begin(0, 4), programs.begin(0, 4)
    programs.sent(idle, 1)
    programs.sent(data, MEBIBYTES)
    programs.close(idle)
    taken = programs.loads([data])
    others = [programs.begin(host, host + 4) for host in (1, 2, 3)]
    for connection in others:
        programs.sent(connection, MEBIBYTES)
    assert programs.loads([data]) == taken
    assert max(programs.loads([data, *others]).values()) == 2
    for connection in (data, *others):
        programs.close(connection)
    assert sum(link["up"] + link["down"] for link in programs.service.paths()) == 0


@pytest.mark.parametrize("planner", ["optimal", "ecmp", "greedy"])
def test_the_plan_counts_a_connection_with_data_where_it_is(planner: str) -> None:
    """The plan may have moved its place before it has sent anything."""
    programs = Programs(PathService(three_tiers(), Options(planner)))
    opened = [programs.begin(own, peer) for own, peer in [(0, 4), (1, 5), (2, 6), (3, 7), (4, 0), (5, 2)]]
    began = {connection: programs.loads([connection]) for connection in opened}
    for connection in opened:
        programs.sent(connection, 1)
    for connection in opened:
        programs.sent(connection, MEBIBYTES)
    assert {connection: programs.loads([connection]) for connection in opened} == began
    planned = {f"{link[end]} {way}": link[way] for link in programs.service.paths() for end, way in ENDS}
    for port, count in programs.loads(opened).items():
        assert count in (planned.get(f"{port} up"), planned.get(f"{port} down"))


ENDS = (("lower", "up"), ("upper", "down"))


def test_a_dead_link_gives_the_next_connection_another_way() -> None:
    topology = fabric(leaves=2, spines=2, hosts=2)
    programs = Programs(PathService(topology))
    begun, idle = programs.begin(0, 2), programs.begin(1, 3)
    programs.sent(idle, 1)
    dead = [link for link in topology.links if {link.a.node, link.b.node} == {"leaf1", "spine1"}]
    programs.link(dead, up=False)
    after = [programs.begin(0, 2), programs.begin(1, 3)]
    for connection in (begun, idle, *after):
        assert "spine1" not in {port.split(":")[0] for port in programs.loads([connection])}
        assert programs.loads([connection])


def test_elephants_that_can_move_make_room_beside_connections_that_cannot() -> None:
    topology = three_tiers(in_pods=4)
    programs = Programs(PathService(topology))
    free = [programs.connect(host, instance=1) for host in range(len(topology.hosts))]
    data = [programs.begin(host, host + 8) for host in range(0, 8, 4)]
    for connection in data:
        programs.sent(connection, MEBIBYTES)
    began = programs.loads(data)
    draw = random.Random(1)
    running: list[tuple[int, int]] = []
    for number in range(100, 180):
        own, peer = draw.sample(range(len(topology.hosts)), 2)
        programs.now_s += 0.1
        programs.announce(free[own], number, peer)
        running.append((free[own], number))
        if len(running) > 12:
            programs.release(*running.pop(draw.randrange(12)))
    assert programs.loads(data) == began
    assert programs.service.counts["moved"] > 5
    assert programs.service.fixed_elephants == len(data) < programs.service.elephants


def test_what_has_ended_or_left_a_dead_link_takes_no_room_of_the_next_ones() -> None:
    topology = fabric(leaves=2, spines=2, hosts=6)
    programs = Programs(PathService(topology))
    dead = [link for link in topology.links if {link.a.node, link.b.node} == {"leaf1", "spine1"}]
    ended = [programs.begin(host, host + 6) for host in range(5)]
    programs.link(dead, up=False)  # all of them now go over the other spine
    programs.sent(ended[0], 1)
    programs.sent(ended[1], MEBIBYTES)
    programs.link(dead, up=True)
    for connection in ended:
        programs.close(connection)
    begun = [programs.begin(host, host + 6) for host in range(6)]
    assert set(programs.loads(begun).values()) == {3}


def test_a_connection_is_on_its_own_way_again_when_a_dead_link_of_it_is_back() -> None:
    topology = fabric(leaves=2, spines=2, hosts=2)
    programs = Programs(PathService(topology))
    data = programs.begin(0, 2)
    programs.sent(data, MEBIBYTES)
    began = programs.loads([data])
    dead = [link for link in topology.links if began.keys() & {str(link.a), str(link.b)}]
    programs.link(dead, up=False)
    assert not programs.loads([data]).keys() & began.keys()
    programs.link(dead, up=True)
    assert programs.loads([data]) == began
    other = programs.begin(1, 3)
    programs.sent(other, MEBIBYTES)
    assert max(programs.loads([data, other]).values()) == 1


def test_a_drained_link_is_not_free_before_connections_with_data_on_it_end() -> None:
    topology = fabric(leaves=2, spines=2, hosts=2)
    programs = Programs(PathService(topology))
    data, idle = programs.begin(0, 2), programs.begin(1, 3)
    programs.sent(data, MEBIBYTES)
    programs.sent(idle, 1)
    spines = [link for link in topology.links if not {link.a.node, link.b.node}.isdisjoint({"spine1", "spine2"})]
    (drained,) = [link for link in spines if str(link.a) in programs.loads([data])]
    programs.hear(programs.service.constrain(1.0, Constraints(drained=frozenset([drained]))))
    assert programs.service.load_of([drained]) == (1.0, 0)
    programs.close(data)
    assert programs.service.load_of([drained]) == (0.0, 0)


def test_a_pin_by_hand_is_for_the_next_connections() -> None:
    topology = fabric(leaves=2, spines=2, hosts=2)
    programs = Programs(PathService(topology))
    data = programs.begin(0, 2)
    programs.sent(data, MEBIBYTES)
    began = programs.loads([data])
    other = frozenset(
        link
        for link in topology.links
        if "leaf1" in (link.a.node, link.b.node) and not topology.has_host(link.a.node) and str(link.a) not in began
    )
    pins: dict[PinnedPair, Via] = {(address(topology, 0), address(topology, 2)): (other,)}
    programs.hear(programs.service.constrain(1.0, Constraints(pins=pins)))
    after = programs.begin(0, 2)
    programs.sent(after, 1)
    assert programs.loads([data]) == began
    assert not programs.loads([after]).keys() & began.keys()
    programs.close(data)
    programs.sent(after, MEBIBYTES)
    planned = {link["lower"] for link in programs.service.paths() if link["up"]}
    assert planned == {port for port in programs.loads([after]) if port.startswith("leaf")}


@pytest.mark.parametrize("topology", FABRICS, ids=lambda topology: topology.name)
def test_connections_that_tell_their_ports_are_counted_where_they_are_by_another_service(topology: Topology) -> None:
    """The agent has lost its connection to the path service, or another one has taken over."""
    before = Programs(PathService(topology))
    draw = random.Random(1)
    ends = draw.sample([*permutations(range(len(topology.hosts)), 2)], 12)
    data = [before.begin(own, peer) for own, peer in ends]
    for connection in data:
        before.sent(connection, MEBIBYTES)
    began = {connection: before.loads([connection]) for connection in data}
    ports = {connection: before.answered[connection].ports[-1] for connection in data}
    after = Programs(PathService(topology))
    for connection in reversed(data):
        size = draw.choice([0, 1, MEBIBYTES])
        peer, port = before.peers[connection]
        told = Announce(connection[1], peer, size, peer_port=port, port=ports[connection])
        after.hear(after.service.handle(after.now_s, connection[0], [told]))
        assert after.answered[connection].ports == [ports[connection]]
        after.peers[connection] = peer, port
    assert {connection: after.loads([connection]) for connection in data} == began
    for connection in data:
        after.sent(connection, 2 * MEBIBYTES)
    assert {connection: after.loads([connection]) for connection in data} == began
    planned = {f"{link[end]} {way}": link[way] for link in after.service.paths() for end, way in ENDS}
    for port, count in after.loads(data).items():
        assert count in (planned.get(f"{port} up"), planned.get(f"{port} down"))


def spine_of(programs: Programs, connection: tuple[int, int], port: int) -> str:
    """The spine that packets of a connection with this port go over."""
    peer, peer_port = programs.peers[connection]
    src, dst = IPv4Address(programs.device[connection[0]]), IPv4Address(peer)
    routes = forwarding(programs.topology, frozenset(programs.dead))
    path = path_of(programs.topology, Flow(src, dst, port, peer_port), programs.hash, routes=routes)
    (spine,) = {end.node for end in path if end.node.startswith("spine")}
    return spine


def counted_on(programs: Programs, connection: tuple[int, int]) -> str:
    (spine,) = {port.split(":")[0] for port in programs.loads([connection]) if port.startswith("spine")}
    return spine


def ports_elsewhere(programs: Programs, connection: tuple[int, int]) -> Iterator[int]:
    """Ports that lead over another spine than the one where a connection is counted."""
    began = counted_on(programs, connection)
    return (port for port in range(50_000, 51_000) if spine_of(programs, connection, port) != began)


def test_a_port_that_was_told_is_not_given_to_the_next_connection() -> None:
    """Before, one to the same peer and port was given it, though it was planned on another way."""
    programs = Programs(PathService(fabric(leaves=2, spines=2, hosts=2)))
    first = programs.begin(0, 2)
    told = next(ports_elsewhere(programs, first))
    programs.sent(first, 0, told)
    assert programs.answered[first].ports == [told]
    programs.close(first)
    again = first[0], 99
    programs.peers[again] = programs.peers[first]
    programs.sent(again, 0)
    assert counted_on(programs, again) == spine_of(programs, again, programs.answered[again].ports[0])


def test_a_told_port_is_followed_when_a_link_of_its_way_has_died() -> None:
    """Before, a connection that told it again was counted where its place is, and not where its port leads now."""
    topology, differed = fabric(leaves=2, spines=3, hosts=2), 0
    for number in range(8):
        programs = Programs(PathService(topology))
        data = programs.begin(0, 2)
        told = [*islice(ports_elsewhere(programs, data), number + 1)][-1]
        programs.sent(data, MEBIBYTES, told)
        ends = {"leaf1", counted_on(programs, data)}
        dead = [link for link in topology.links if {link.a.node, link.b.node} == ends]
        programs.link(dead, up=False)
        differed += counted_on(programs, data) != spine_of(programs, data, told)
        programs.sent(data, 2 * MEBIBYTES, told)
        assert counted_on(programs, data) == spine_of(programs, data, told)
        programs.link(dead, up=True)
        assert counted_on(programs, data) == spine_of(programs, data, told)
    assert differed


@pytest.mark.parametrize("topology", [*FABRICS, fabric(parallel=2)], ids=lambda topology: topology.name)
def test_what_a_peer_sends_back_goes_over_the_same_links(topology: Topology) -> None:
    """As in `iperf3 -R`, and with Gloo, whose ranks send both ways over one connection."""
    programs = Programs(PathService(topology))
    hosts = len(topology.hosts)
    for own, peer in ring(hosts, 1):
        connection = programs.begin(own, peer)
        at, peer_port = programs.peers[connection]
        flow = Flow(
            IPv4Address(address(topology, own)),
            IPv4Address(at),
            programs.answered[connection].ports[-1],
            peer_port,
        )
        back = Flow(flow.dst, flow.src, flow.dst_port, flow.src_port)
        there, again = (path_of(topology, each, programs.hash) for each in (flow, back))
        assert [topology.link_at(port) for port in there] == [topology.link_at(port) for port in reversed(again)]
