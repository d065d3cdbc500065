# SPDX-License-Identifier: Apache-2.0
"""Connections that cannot move, by measured paths: programs under `paralet pin` on simulated routers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from netmodel import LinuxL4Hash, Path, PortRef, Topology, leaf_spine
from sdn.measured.router_names import names_of
from sdn.path_service.messages import Announce, Answer, Assign, CanProbe, Hello, Release
from sdn.path_service.parties import Pair
from sdn.path_service.pinning import Sends
from sdn.path_service.places import SENT
from sdn.path_service.port_search import LATEST_S, PortSearch
from sdn.path_service.resting_ports import REST_S
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import RATE, TOKEN, address
from tests.sdn.path_service.test_measured import HOSTS, STEP_S, THREE_TIERS, TWO_TIERS, Probers

SLOTS = 16
FREE = 1000  # connections of clients that can move are numbered from here on


@dataclass
class Connection:
    number: int
    host: int
    peer: int
    peer_port: int
    slot: int
    port: int = 0
    waited_s: float | None = None
    is_told: bool = False
    """Whether its host was told its path."""

    @property
    def conn(self) -> int:
        return self.host * SLOTS + self.slot


@dataclass
class Ring:
    """The connections of NCCL's start that stay open: those of the set-up, and those for data."""

    setup: list[Connection] = field(default_factory=list)
    data: list[Connection] = field(default_factory=list)


class Programs(Probers):
    """Hosts whose agent has a client for each connection of a host to one port of a peer, as `paralet pin` has."""

    def __init__(self, topology: Topology, options: Options | None = None) -> None:
        super().__init__(PathService(topology, options, routers=names_of(topology)), LinuxL4Hash())
        self.open: dict[int, Connection] = {}
        self.deaf = False
        self.searches = True
        """Whether agents know `Probe.once` and `Probe.until`."""
        self._clients: set[int] = set()
        self._count = 0

    def begin(self, host: int, peer: int, peer_port: int, resting: Sequence[int] = ()) -> Connection:
        """Clients whose slots are `resting` have ports that the kernel does not give out yet."""
        ends = host, peer, peer_port
        taken = {each.slot for each in self.open.values() if (each.host, each.peer, each.peer_port) == ends}
        taken.update(resting)
        self._count += 1
        made = Connection(self._count, *ends, next(slot for slot in range(SLOTS) if slot not in taken))
        self.open[made.number] = made
        if made.conn not in self._clients:
            self._clients.add(made.conn)
            own = address(self.topology, host)
            hello = Hello(2, TOKEN, own, f"{made.slot:016x}", made.slot + 1, 1, "tcp", fixed=True, paths=True)
            self.hear(self.service.connect(self.now_s, made.conn, hello)[0])
            if made.slot == 0:
                self.say(made.conn, CanProbe(100.0, until=self.searches))
        self.sent(made, 0)
        return made

    def connected(self, wanted: list[tuple[int, int, int]]) -> list[Connection]:
        """Opens these connections at the same time, and waits until all are answered."""
        made, began_s = [self.begin(*each) for each in wanted], self.now_s
        while self.now_s < began_s + LATEST_S + 10 * STEP_S and any(each.waited_s is None for each in made):
            self.run(STEP_S)
            for each in made:
                if each.waited_s == 0.0:
                    each.waited_s = self.now_s - began_s
        return made

    def sent(self, connection: Connection, count: int) -> None:
        peer = address(self.topology, connection.peer)
        self.say(connection.conn, Announce(connection.number, peer, count, peer_port=connection.peer_port))

    def end(self, connections: list[Connection]) -> None:
        for each in connections:
            del self.open[each.number]
            self.say(each.conn, Release(each.number))

    def hear(self, sends: Sends) -> None:
        for conn, message in sends:
            if isinstance(message, Assign) and message.id in self.open:
                connection = self.open[message.id]
                if connection.conn != conn:
                    continue
                if connection.waited_s is None:
                    connection.waited_s = 0.0
                    connection.port = message.ports[connection.slot] if message.ports else 0
                    taken = [[*map(str, self.taken(connection))]] if connection.port else []
                    assert message.paths in ([], taken)
                    connection.is_told = bool(message.paths)
                else:
                    assert not message.ports or message.ports[connection.slot] == connection.port, "it cannot move"
        moving = [each for each in sends if each[0] >= FREE or not isinstance(each[1], Assign)]
        super().hear(moving)

    def answer(self, host: int, peer: str, port: int, ttl: int, peer_port: int = 4791) -> Answer:
        if self.deaf:
            return Answer(port, "none")
        if host >= FREE:
            return super().answer(host - FREE, peer, port, ttl, peer_port)
        own = host // SLOTS
        for each in self.open.values():
            if (each.host, address(self.topology, each.peer), each.peer_port, each.port) == (
                own,
                peer,
                peer_port,
                port,
            ):
                return Answer(port, "failed")
        return super().answer(own, peer, port, ttl, peer_port)

    def taken(self, connection: Connection) -> Path:
        peer = address(self.topology, connection.peer)
        return self.path(connection.host, peer, connection.port, connection.peer_port)

    def load_of(self, connections: list[Connection]) -> Counter[PortRef]:
        """These connections on each link between switches, by what their packets do."""
        return Counter(link for each in connections if each.port for link in self.taken(each)[1:-1])

    def said(self, connection: Connection) -> list[str]:
        """The path of a connection, by what the service says."""
        return next(flow["path"] for flow in self.service.flows(1000) if connection.number in flow["ids"])

    def leaf(self, host: int) -> str:
        return self.topology.peer(PortRef(self.topology.hosts[host].name, 1)).node


def ring(programs: Programs, seed: int, pause_s: float = 3.0) -> Ring:
    """NCCL's start: short connections to and from the root, a ring that stays, and, later, two of each edge for data.

    Before these there are short ones to both neighbours. Those at one leaf are left out: they have no choice. The agent
    sees what was sent over the ring after a second, at the earliest.
    """
    order = list(range(HOSTS))
    random.Random(seed).shuffle(order)

    def between(edges: list[tuple[int, int]], first_port: int) -> list[Connection]:
        apart = [(host, peer) for host, peer in edges if programs.leaf(host) != programs.leaf(peer)]
        return programs.connected([(host, peer, first_port + peer) for host, peer in apart])

    edges = list(zip(order, order[1:] + order[:1], strict=True))
    back = [(peer, host) for host, peer in edges]
    for some in ([(host, order[0]) for host in order[1:]], [(order[0], host) for host in order[1:]]):
        programs.end(between(some, 2000))
    made = Ring(between(edges, 3000))
    seen_s, untold = programs.now_s + 1.25, list(made.setup)

    def pause(seconds: float) -> None:
        programs.run(seconds)
        while untold and programs.now_s >= seen_s:
            programs.sent(untold.pop(0), 500)

    for some in (edges, back):
        pause(pause_s)
        programs.end(between(some, 3500))
    for channel in (4000, 5000):
        pause(pause_s)
        made.data += between(edges, channel)
    pause(1.25)
    return made


@pytest.mark.parametrize("topology", [TWO_TIERS, THREE_TIERS], ids=["two", "three"])
def test_connections_for_data_take_the_paths_that_were_planned_when_their_hosts_met(topology: Topology) -> None:
    programs = Programs(topology)
    made = ring(programs, 1)
    assert all(each.port for each in (*made.setup, *made.data))
    for each in made.data:
        programs.sent(each, SENT)
    assert max(programs.load_of(made.data).values()) == 2  # as many as there are of each edge
    for each in made.data:
        assert programs.said(each) == [str(port) for port in programs.taken(each)]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_data_of_a_program_that_starts_fast_share_links_hardly_more(seed: int) -> None:
    """Their connections begin before the plan has made room, so the first ones between two hosts decide."""
    programs = Programs(THREE_TIERS)
    made = ring(programs, seed, pause_s=0.05)
    for each in made.data:
        programs.sent(each, SENT)
    loads = Counter(programs.load_of(made.data).values())
    assert max(loads) <= 3
    assert loads[2] > 10 * (loads[1] + loads[3])


def test_a_connection_that_sends_nothing_takes_no_room_and_stops_no_move() -> None:
    """It may have failed to bind its port, and nobody ever says so."""
    programs = Programs(leaf_spine(2, 2, 3, RATE))
    (silent,) = programs.connected([(0, 3, 4000)])
    assert silent.port
    assert all(link["up"] == link["down"] == 0 for link in programs.service.paths())
    for host in range(3):
        hello = Hello(2, TOKEN, address(programs.topology, host), "f" * 16, 1)
        programs.hear(programs.service.connect(programs.now_s, FREE + host, hello)[0])
        programs.say(FREE + host, CanProbe(100.0, until=True))
        programs.announce(FREE + host, host + 3)
        programs.run(5.0)
    paths = {flow["device"]: flow["path"] for flow in programs.service.flows(9) if flow["ids"] == [1] and flow["bytes"]}
    used = Counter(path[1] for path in paths.values())
    alone = next(host for host in range(3) if used[paths[address(programs.topology, host)][1]] == 1)
    programs.say(FREE + alone, Release(1))
    programs.run(5.0)
    assert max(link["up"] for link in programs.service.paths()) == 1


def test_a_connection_counts_where_its_port_leads_also_after_a_pause() -> None:
    programs = Programs(TWO_TIERS)
    (setup,) = programs.connected([(0, 4, 3000)])
    programs.sent(setup, 500)
    programs.deaf = True  # no port can be found for the next one along the planned path
    (known,) = [each for each in programs.connected([(0, 4, 3000)]) if each.port]
    assert setup.is_told
    assert known.is_told
    for count in (SENT, 2 * SENT, 1, 3 * SENT):
        programs.sent(known, count)
        programs.run(1.0)
        assert programs.said(known) == [str(port) for port in programs.taken(known)]
    programs.end([setup])
    programs.run(0.1)
    (uplink,) = [str(link) for link in programs.taken(known) if link.node == programs.leaf(0) and link.port > 4]
    assert [link["lower"] for link in programs.service.paths() if link["up"]] == [uplink]


def test_a_connection_without_any_answer_is_told_so_in_time() -> None:
    programs = Programs(TWO_TIERS)
    programs.deaf = True
    (made,) = programs.connected([(0, 4, 3000)])
    assert made.port == 0
    assert made.waited_s is not None
    assert made.waited_s <= LATEST_S + 3 * STEP_S
    assert programs.service.status()["measured"]["connections_with_port"] == 0
    programs.deaf = False
    again = Connection(99, 0, 4, 3000, 0)
    programs.open = {99: again}
    programs.say(0, Release(made.number), Announce(99, address(TWO_TIERS, 4), 0, peer_port=3000))
    programs.run(0.5)
    assert again.port


def test_several_connections_to_one_port_get_ports_and_paths_of_their_own() -> None:
    """Each has a client of its own, of which the first one says that the host can probe."""
    programs = Programs(TWO_TIERS)
    made = [each for _ in range(9) for each in programs.connected([(0, 4, 5201)])]
    assert len({each.port for each in made}) == len(made)
    data = made[1:]  # of `iperf3 -P 8`
    for each in data:
        programs.sent(each, SENT)
    assert max(programs.load_of(data).values()) == 2
    programs.end(made)
    assert programs.service.status()["measured"]["connections"] == 0
    assert not programs.service.commodities


def test_a_port_that_the_kernel_does_not_give_out_yet_is_not_given_to_the_next_client() -> None:
    """NCCL connects to one port several times, shortly after each other."""
    programs = Programs(TWO_TIERS)
    (first,) = programs.connected([(0, 4, 3000)])
    assert first.port
    programs.end([first])
    given = {first.port}
    for slot in range(3):  # the agent finds that the ports before are in `TIME_WAIT`
        made = programs.begin(0, 4, 3000, range(slot + 1))
        programs.run(LATEST_S)
        assert made.slot == slot + 1
        assert made.port not in {0, *given}
        given.add(made.port)
        programs.end([made])
    programs.run(REST_S)
    (again,) = programs.connected([(0, 4, 3000)])
    assert again.port in given
    programs.end([again])
    (again,) = programs.connected([(0, 4, 3000)])  # its client is free, and so is its port
    assert again.port in given


def test_connections_that_end_before_their_ports_are_asked_for_harm_no_other() -> None:
    """A host is asked for so many ports at a time that others wait."""
    programs = Programs(TWO_TIERS, Options(router_answers=0))
    programs.end([programs.begin(0, 4, 3000 + number) for number in range(100)])
    programs.run(0.05)
    (made,) = programs.connected([(0, 4, 4000)])
    assert made.port
    assert programs.service.status()["measured"]["connections"] == 1


def test_connections_that_wait_are_not_looked_at_for_each_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a host that opens many would take all the time of the service."""
    programs = Programs(TWO_TIERS)
    programs.deaf = True
    looks = Counter[Pair]()
    settle = PortSearch._settle

    def counted(self: PortSearch, now_s: float, pair: Pair) -> None:
        looks[pair] += 1
        settle(self, now_s, pair)

    monkeypatch.setattr(PortSearch, "_settle", counted)
    made = [programs.begin(0, 4, 3000 + number) for number in range(400)]
    for each in made:
        programs.sent(each, 500)
    assert looks.total() == len(made)
    for _ in range(20):  # bytes come all the time
        programs.sent(made[0], 500)
        programs.run(STEP_S)
    assert looks.total() < 4 * len(made)
    programs.run(LATEST_S)
    assert looks.total() < 9 * len(made)
    assert all(each.waited_s is not None for each in made)


def test_a_connection_that_tells_its_port_keeps_it_and_counts_where_it_leads() -> None:
    """Its agent has lost its connection to the service, which knows the ports; or another service has taken over."""
    programs = Programs(TWO_TIERS)
    (setup,) = programs.connected([(0, 4, 3000)])
    programs.sent(setup, 500)
    programs.deaf = True  # no port can be found for the next one along the planned path
    (known,) = [each for each in programs.connected([(0, 4, 3000)]) if each.port]
    programs.deaf = False
    hello = Hello(
        2, TOKEN, address(TWO_TIERS, 0), f"{known.slot:016x}", known.slot + 1, 1, "tcp", fixed=True, paths=True
    )
    programs.service.disconnect(programs.now_s, known.conn)
    programs.run(0.1)
    programs.hear(programs.service.connect(programs.now_s, known.conn, hello)[0])
    peer = address(TWO_TIERS, 4)
    programs.say(known.conn, Announce(known.number, peer, SENT, peer_port=3000, port=known.port))
    assert programs.said(known) == [str(port) for port in programs.taken(known)]
    assert [flow["ports"] for flow in programs.service.flows(9) if known.number in flow["ids"]] == [
        [known.port] * (known.slot + 1)
    ]
    other = Programs(TWO_TIERS)  # which knows no ports
    moved = other.begin(0, 4, 3000)
    other.say(0, Announce(1, peer, SENT, peer_port=3000, port=known.port))
    other.run(LATEST_S)
    assert [flow["ports"] for flow in other.service.flows(9)] == [[known.port]]
    assert not moved.is_told


@pytest.mark.parametrize("offers_first", [True, False], ids=["now", "earlier"])
def test_connections_that_another_service_takes_over_count_on_the_paths_of_its_plan(offers_first: bool) -> None:
    """Clients of agents offer probes, and then tell what has sent how much from which port. Earlier ones told first."""
    programs = Programs(TWO_TIERS)
    for slot in range(2):
        hello = Hello(2, TOKEN, address(TWO_TIERS, 0), f"{slot:016x}", slot + 1, 1, "tcp", fixed=True)
        programs.hear(programs.service.connect(programs.now_s, slot, hello)[0])
        told = Announce(slot + 1, address(TWO_TIERS, 4), SENT, peer_port=3000, port=50000 + slot)
        offer = CanProbe(100.0, hops=True, until=True)
        for message in (offer, told) if offers_first else (told, offer):
            programs.say(slot, message)
    programs.run(LATEST_S)
    flows = {flow["ids"][0]: flow for flow in programs.service.flows(9)}
    assert {number: flow["ports"][-1] for number, flow in flows.items()} == {1: 50000, 2: 50001}
    assert len({tuple(flow["path"]) for flow in flows.values()}) == 2
    status = programs.service.status()["measured"]
    assert (status["connections_with_port"], status["random"], status["no_choice"]) == (2, 0, 0)
    programs.say(0, Release(1))
    assert [flow["ids"] for flow in programs.service.flows(9)] == [[2]]
