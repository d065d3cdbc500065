# SPDX-License-Identifier: Apache-2.0
"""Measured paths in service: hosts that probe simulated routers, on a clock of the test, are pinned as planned."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import msgspec
import pytest

from netmodel import (
    CrcHash,
    EcmpHash,
    Forwarding,
    LinuxL4Hash,
    OvsHash,
    Path,
    PortRef,
    Topology,
    clos,
    forwarding,
    leaf_spine,
    paths_of_ports,
)
from netmodel.probing.simulated import Fabric
from sdn.measured.router_names import fabric_with, names_of
from sdn.path_service.messages import (
    Announce,
    Answer,
    Assign,
    CanProbe,
    Hello,
    Moved,
    Pong,
    Probe,
    Probed,
    Release,
    Report,
    Watch,
)
from sdn.path_service.pinning import Sends
from sdn.path_service.port_search import HOLD_S
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import RATE, TOKEN, address

LANES = 4
STEP_S = 0.01
TWO_TIERS = leaf_spine(4, 4, 4, RATE)
THREE_TIERS = clos(4, 2, 2, 2, 2, RATE)
PARALLEL_LEAVES = leaf_spine(4, 2, 4, RATE, parallel_links=2)
PARALLEL_PODS = clos(4, 2, 2, 1, 2, RATE, core_parallel_links=2)
HOSTS = 16


class Probers:
    """Hosts that do as they are told, and routers that answer each host six times at once and then once a second."""

    def __init__(self, service: PathService, ecmp_hash: EcmpHash) -> None:
        self.service = service
        self.topology = service.topology
        self.hash = ecmp_hash
        self.now_s = 0.0
        self.routes: Forwarding | None = None
        self.ports: dict[tuple[int, str], list[int]] = {}
        self.answers: list[tuple[float, int, Assign]] = []
        self.watches: dict[tuple[int, str, int], Watch] = {}  # by connection, peer and time to live
        self.asked: Counter[int] = Counter()  # probes by connection
        self.of_router: Counter[tuple[str, int]] = Counter()  # by router and connection
        self._lanes: dict[int, int] = {}
        self._index = {address(self.topology, host): host for host in range(len(self.topology.hosts))}
        self._due: list[tuple[float, int, Probe | Watch]] = []
        self._left: dict[tuple[str, int], tuple[float, float]] = {}  # tokens of a router for a host, and when
        self._paths: dict[tuple[int, int, int], tuple[tuple[Path, ...], list[int]]] = {}
        self._over_tcp: set[int] = set()
        self._at_hops: set[int] = set()
        self._told: set[tuple[int, str, int, int, str]] = set()

    def connect(
        self,
        host: int,
        probes: bool = True,
        lanes: int = LANES,
        protocol: Literal["udp", "tcp"] = "udp",
        hops: bool = True,
    ) -> None:
        """The number of the connection is that of the host. Without `hops` it watches a port at one hop only."""
        if hops:
            self._at_hops.add(host)
        hello = Hello(2, TOKEN, address(self.topology, host), "0" * 16, lanes, protocol=protocol)
        if protocol == "tcp":
            self._over_tcp.add(host)
        self.hear(self.service.connect(self.now_s, host, hello)[0])
        if probes:
            self.say(host, CanProbe(100.0, hops))

    def say(self, host: int, *messages: Announce | Release | CanProbe | Probed | Moved | Report) -> None:
        self.hear(self.service.handle(self.now_s, host, messages))

    def announce(self, host: int, peer: int, number: int = 1, port: int = 4791) -> None:
        self.say(host, Announce(number, address(self.topology, peer), 1 << 20, peer_port=port))

    def hear(self, sends: Sends) -> None:
        for conn, message in sends:
            match message:
                case Assign():
                    self.ports[conn, message.peer] = message.ports
                    self.answers.append((self.now_s, conn, message))
                case Probe():
                    assert 1 <= len(message.ports) <= 64
                    self._due.append((self.now_s + 0.001, conn, message))
                case Watch():
                    assert len(message.ports) <= 64
                    watch = conn, message.peer, message.ttl
                    if conn not in self._at_hops:
                        assert {ttl for *pair, ttl in self.watches if pair == [*watch[:2]]} <= {message.ttl}
                    self.watches[watch] = message
                    self._told -= {told for told in self._told if told[:3] == watch}
                    self._due = [each for each in self._due if not (
                        isinstance(each[2], Watch) and (each[1], each[2].peer, each[2].ttl) == watch
                    )]  # fmt: skip
                    for place, port in enumerate(message.ports, start=1):
                        at_s = self.now_s + message.period_s * place / len(message.ports)
                        self._due.append((at_s, conn, msgspec.structs.replace(message, ports=[port])))
                case Pong():
                    pass
                case _:
                    raise AssertionError(message)

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += STEP_S
            due = [each for each in self._due if each[0] <= self.now_s]
            self._due = [each for each in self._due if each[0] > self.now_s]
            for at_s, conn, message in due:
                if isinstance(message, Probe):
                    self.probe(conn, message)
                else:
                    self._look(conn, message)
                    self._due.append((at_s + message.period_s, conn, message))
            self.hear(self.service.tick(self.now_s))

    def probe(self, conn: int, ask: Probe) -> None:
        answers: list[Answer] = []
        for port in ask.ports:
            answers.append(self.answer(conn, ask.peer, port, ask.ttl, ask.peer_port))
            if answers[-1].router in ask.until:
                break
        self.say(conn, Probed(ask.ask, tuple(answers)))

    def _look(self, conn: int, watch: Watch) -> None:
        moved = []
        for port, router in watch.ports:
            answer = self.answer(conn, watch.peer, port, watch.ttl, watch.peer_port)
            told = conn, watch.peer, watch.ttl, port, str(answer.router)
            if answer.answer == "hop" and answer.router != router and told not in self._told:
                self._told.add(told)
                moved.append(answer)
        if moved:
            ttl = watch.ttl if conn in self._at_hops else 0
            self.say(conn, Moved(watch.peer, tuple(moved), watch.peer_port, ttl))

    def answer(self, host: int, peer: str, port: int, ttl: int, peer_port: int = 4791) -> Answer:
        if host in self._over_tcp and port in self.ports.get((host, peer), ()):
            return Answer(port, "failed")  # the kernel allows one connection of a port
        self.asked[host] += 1
        router = Fabric(self.topology, self.hash).routers(self.path(host, peer, port, peer_port))[ttl - 1]
        at = names_of(self.topology)[router].partition(":")[0], host
        self.of_router[at] += 1
        left, at_s = self._left.get(at, (6.0, 0.0))
        left = min(6.0, left + self.now_s - at_s)
        if left < 1:
            self._left[at] = left, self.now_s
            return Answer(port, "none")
        self._left[at] = left - 1, self.now_s
        return Answer(port, "hop", router, 0.001)

    def spend(self, host: int, router: str) -> None:
        """A router, by its address, has no answers for a host for now."""
        self._left[names_of(self.topology)[router].partition(":")[0], host] = 0.0, self.now_s

    def path(self, host: int, peer: str, port: int, peer_port: int = 4791) -> Path:
        to = self._index[peer]
        if (host, to, peer_port) not in self._paths:
            ends = self.topology.hosts[host].name, self.topology.hosts[to].name
            ports = range(0xC000, 0x10000)
            found, taken = paths_of_ports(self.topology, *ends, self.hash, ports, peer_port, routes=self.routes)
            self._paths[host, to, peer_port] = found, taken.tolist()
        found, index = self._paths[host, to, peer_port]
        return found[index[port - 0xC000]]

    def change(self, routes: Forwarding | None) -> None:
        self.routes = routes
        self._paths.clear()

    def misplaced(self) -> set[tuple[int, str]]:
        """Hosts and peers whose lanes do not take the paths that the service says."""
        found = set()
        for flow in self.service.flows(1000):
            host, peer, ports = self._index[flow["device"]], flow["peer"], flow["ports"]
            said = flow["lane_paths"] or [flow["path"]] * len(ports)
            assert ports == self.ports[host, peer]
            if said != [[str(port) for port in self.path(host, peer, lane)] for lane in ports]:
                found.add((host, peer))
        return found

    def load(self) -> Counter[PortRef]:
        """Elephants on each link, by what packets with the assigned ports do."""
        load: Counter[PortRef] = Counter()
        for (host, peer), ports in self.ports.items():
            assert len(set(ports)) == len(ports) == LANES
            for port in ports:
                for link in self.path(host, peer, port)[1:-1]:
                    load[link] += 1 / LANES  # type: ignore[assignment]
        return load


def measured(topology: Topology, ecmp_hash: EcmpHash, **options: object) -> Probers:
    service = PathService(topology, Options(**options), routers=names_of(topology))  # type: ignore[arg-type]
    return Probers(service, ecmp_hash)


def permuted(probers: Probers, seed: int = 1) -> None:
    """Every host sends to one at another leaf, by chance."""
    order = list(range(HOSTS))
    random.Random(seed).shuffle(order)
    half = HOSTS // 2
    order.sort(key=lambda host: host >= half)
    for host in range(HOSTS):
        probers.connect(host)
    for first, second in zip(order[:half], order[half:], strict=True):
        probers.announce(first, second)
        probers.announce(second, first)


@pytest.mark.parametrize("topology", [TWO_TIERS, THREE_TIERS], ids=["two", "three"])
@pytest.mark.parametrize("ecmp_hash", [LinuxL4Hash(), CrcHash("crc16")], ids=["linux", "affine"])
def test_hosts_are_pinned_as_planned_although_nobody_knows_the_hash(topology: Topology, ecmp_hash: EcmpHash) -> None:
    probers = measured(topology, ecmp_hash)
    permuted(probers)
    polarised = isinstance(ecmp_hash, CrcHash) and topology is THREE_TIERS
    probers.run(60.0 if polarised else 15.0)
    load = probers.load()
    assert max(load.values()) == pytest.approx(2 if polarised else 1)
    status = probers.service.status()
    assert status["measured"]["pinned"] == status["measured"]["pairs"] == HOSTS
    assert status["measured"]["given_up"].keys() <= ({"probes find nothing new"} if polarised else set())
    assert bool(status["polarised"]) == polarised
    shown = {(link["lower"], link["upper"]): (link["up"], link["down"]) for link in probers.service.paths()}
    for (lower, upper), (up, down) in shown.items():
        assert load[PortRef.parse(lower)] == pytest.approx(up)
        assert load[PortRef.parse(upper)] == pytest.approx(down)
    assert probers.misplaced() == set()


def test_an_announcement_waits_for_its_ports_but_not_for_ever() -> None:
    probers = measured(TWO_TIERS, LinuxL4Hash())
    probers.connect(0)
    probers.announce(0, 8)
    assert probers.answers == []
    probers.run(0.1)
    (first,) = probers.answers
    assert len(first[2].ports) == LANES
    assert first[2].id == 1
    probers.announce(0, 8, number=2)
    assert probers.answers[-1][2].ports == first[2].ports
    probers.answer = lambda *_: Answer(0xC000, "none")  # type: ignore[method-assign]
    probers.announce(0, 12, number=3)
    probers.run(2.0)
    at_s, _, last = probers.answers[-1]
    assert last.ports == []
    assert last.id == 3
    assert at_s < 1.2
    probers.run(60.0)
    assert probers.service.status()["measured"]["given_up"] == {"probes are not answered": 1}


@pytest.mark.parametrize(("lanes", "ports"), [(4, 6), (8, 8)])
def test_a_router_is_asked_for_no_more_first_ports_than_it_answers_at_once(lanes: int, ports: int) -> None:
    """All lanes wait for the last of them. Eight lanes need eight ports, whatever that takes."""
    probers = measured(PARALLEL_LEAVES, LinuxL4Hash())
    probers.connect(0, lanes=lanes)
    probers.announce(0, 8)
    (ask,) = [message for _, _, message in probers._due]
    assert len(ask.ports) == ports
    probers.run(0.1)
    assert max(probers.of_router.values()) <= ports
    assert lanes == 8 or len(probers.ports[0, ask.peer]) == lanes


def test_lanes_take_any_known_port_until_those_of_their_paths_are_known() -> None:
    probers = measured(TWO_TIERS, LinuxL4Hash())
    probers.connect(0, lanes=8)
    probers.announce(0, 8)
    probers.run(0.1)
    peer = address(TWO_TIERS, 8)
    assert len(set(probers.ports[0, peer])) == 8
    assert probers.service.status()["measured"]["measuring"] == 1
    assert probers.misplaced() == set()
    probers.run(30.0)
    assert probers.service.status()["measured"]["measuring"] == 0
    assert Counter(probers.path(0, peer, port) for port in probers.ports[0, peer]).most_common()[0][1] == 2


def test_a_remote_cut_and_its_mend_are_found_by_watching() -> None:
    probers = measured(THREE_TIERS, LinuxL4Hash())
    permuted(probers)
    probers.run(8.0)
    assert len(probers.watches) == HOSTS
    used = next(link for link, _ in probers.load().most_common() if link.node.startswith("core"))
    hit = {key for key, ports in probers.ports.items() if any(used in probers.path(*key, port) for port in ports)}
    began_s = probers.now_s
    probers.change(forwarding(THREE_TIERS, frozenset([THREE_TIERS.link_at(used)])))
    probers.run(2.0)
    events = probers.service.status()["measured"]["events"]
    assert {began_s < event["at_s"] <= began_s + 2.0 for event in events} == {True}
    assert not probers.misplaced() & hit
    probers.run(2.0)
    assert max(probers.load().values()) <= 2
    probers.change(None)
    probers.run(12.0)
    assert probers.misplaced() == set()
    assert max(probers.load().values()) == pytest.approx(1)


def test_a_link_that_loses_packets_is_named_and_avoided_for_some_time() -> None:
    """No probe shows it: it lies behind the router that answers."""
    probers = measured(THREE_TIERS, LinuxL4Hash())
    permuted(probers)
    probers.run(8.0)
    lossy = next(link for link, _ in probers.load().most_common() if link.node.startswith("core"))
    link = f"{lossy} {THREE_TIERS.peer(lossy)}"

    def lose() -> int:
        lost = 0
        for (host, peer), ports in probers.ports.items():
            for lane, port in enumerate(ports):
                if lossy in probers.path(host, peer, port):
                    probers.say(host, Report(1, lane, port, "loss", 1.0))
                    lost += 1
        return lost

    lost = lose()
    assert lost >= 2
    probers.run(0.6)
    status = probers.service.status()["measured"]
    assert [(event["links"], event["lossy"], event["lanes"]) for event in status["lossy"]] == [([link], lost, lost)]
    assert status["avoided"] == [link]
    probers.run(3.0)
    assert lose() == 0
    (repinned,) = probers.service.status()["measured"]["repinned"]
    assert repinned["lanes"] >= lost
    assert repinned["seconds"] < 3.0
    probers.run(12.0)
    assert probers.service.status()["measured"]["avoided"] == []
    assert lose() > 0
    assert probers.misplaced() == set()


def test_lanes_over_tcp_leave_a_cut_path_although_their_ports_cannot_be_probed() -> None:
    """A port of each path that no lane has is watched in their place."""
    probers = measured(THREE_TIERS, LinuxL4Hash())
    for host in range(HOSTS):
        probers.connect(host, protocol="tcp")
    for host in range(HOSTS):
        probers.announce(host, (host + HOSTS // 2) % HOSTS)
    probers.run(20.0)
    assert len(probers.watches) == HOSTS
    for (host, peer, _), watch in probers.watches.items():
        lanes = probers.ports[host, peer]
        watched = [port for port, _ in watch.ports]
        assert not set(watched) & set(lanes)
        assert {probers.path(host, peer, port) for port in watched} == {probers.path(host, peer, at) for at in lanes}
    used = next(link for link, _ in probers.load().most_common() if link.node.startswith("core"))
    hit = {key for key, ports in probers.ports.items() if any(used in probers.path(*key, port) for port in ports)}
    probers.change(forwarding(THREE_TIERS, frozenset([THREE_TIERS.link_at(used)])))
    probers.run(20.0)
    assert hit
    assert not probers.misplaced() & hit
    assert set(probers.service.status()["measured"]["given_up"]) <= {"probes find nothing new"}


def test_watching_leaves_routers_half_of_what_they_answer() -> None:
    probers = measured(TWO_TIERS, LinuxL4Hash())
    for host in range(HOSTS):
        probers.connect(host)
        for number, step in enumerate((4, 8, 12)):
            probers.announce(host, (host + step) % HOSTS, number)
    probers.run(40.0)
    assert len(probers.watches) == 3 * HOSTS
    before = probers.asked.copy()
    probers.run(12.0)
    assert probers.watches
    for host in range(HOSTS):
        assert 0 < (probers.asked[host] - before[host]) / 12.0 / 4 <= 0.6  # a second, of each spine


def test_a_host_that_goes_is_neither_asked_nor_awaited() -> None:
    probers = measured(TWO_TIERS, LinuxL4Hash())
    probers.connect(0)
    probers.announce(0, 8)
    probers.hear(probers.service.disconnect(0.0, 0))
    probers._due.clear()
    probers.now_s = 30.0
    assert probers.service.tick(30.0) == []
    assert probers.service.status()["measured"]["pairs"] == 0
    probers.connect(0)
    probers.announce(0, 8)
    probers.run(6.0)
    assert len(probers.ports[0, address(TWO_TIERS, 8)]) == LANES
    probers.say(0, Release(1))
    probers.run(0.2)
    assert probers.watches[0, address(TWO_TIERS, 8), 2].ports == []


def test_hosts_that_do_not_probe_are_predicted_where_the_hash_is_known() -> None:
    for known, random_pairs in ((OvsHash(), 0), (None, 1)):
        service = PathService(TWO_TIERS, Options(), known, names_of(TWO_TIERS))
        probers = Probers(service, OvsHash())
        probers.connect(0, probes=False)
        probers.connect(4)
        probers.announce(0, 8)
        probers.announce(4, 12)
        probers.run(0.2)
        assert len(probers.ports[4, address(TWO_TIERS, 12)]) == LANES
        assert len(probers.ports[0, address(TWO_TIERS, 8)]) == (LANES if known else 0)
        status = service.status()["measured"]
        assert (status["random"], status["predicted"], status["no_choice"]) == (random_pairs, 1 - random_pairs, 0)
        assert status["probing_hosts"] == 1
        probers.say(0, Release(1))
        assert service.status()["commodities"] == 1


def test_answers_that_nobody_asked_for_change_nothing() -> None:
    probers = measured(TWO_TIERS, LinuxL4Hash())
    for host in (0, 1):
        probers.connect(host)
        probers.announce(host, host + 8)
    probers.run(4.0)
    before, peers = dict(probers.ports), [address(TWO_TIERS, host) for host in (8, 9)]
    (port, router), (_, other), *_ = probers.watches[0, peers[0], 2].ports
    lies = (
        Probed(10**9, (Answer(port, "hop", other),)),
        Moved(peers[1], (Answer(port, "hop", other),)),  # another host's pair
        Moved("nowhere", (Answer(port, "none"),)),
        Moved(peers[0], (Answer(port, "hop", other),), 5000),
        Moved(peers[0], (Answer(1, "hop", other), Answer(2, "none"))),  # ports that are not watched
        Moved(peers[0], (Answer(port, "hop", other),), ttl=3),  # a hop at which nothing is watched
    )
    for _ in range(20):
        probers.say(0, *lies)
    probers.run(1.0)
    assert probers.ports == before
    assert probers.service.status()["measured"]["events"] == []
    assert router != other


def test_more_answers_than_asked_are_left_out() -> None:
    probers = measured(TWO_TIERS, LinuxL4Hash())
    probers.connect(0)
    probers.announce(0, 8)
    asks = [message for _, _, message in probers._due if isinstance(message, Probe)]
    probers._due.clear()
    for ask in asks:
        right = tuple(probers.answer(0, ask.peer, port, ask.ttl) for port in ask.ports)
        more = tuple(Answer(port, "hop", right[0].router) for port in range(1, 50))
        probers.say(0, Probed(ask.ask, (*right, *more)))
    assert set(probers.ports[0, asks[0].peer]) <= {port for ask in asks for port in ask.ports}


@pytest.mark.parametrize("ipv6", [False, True])
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_all_addresses_and_protocols_are_measured_apart(ipv6: bool, protocol: str) -> None:
    topology = leaf_spine(2, 2, 2, RATE, ipv6=ipv6)
    probers = measured(topology, LinuxL4Hash())
    said = Hello(2, TOKEN, address(topology, 0), "0" * 16, 2, 5001, protocol)  # type: ignore[arg-type]
    probers.hear(probers.service.connect(0.0, 0, said)[0])
    probers.say(0, CanProbe(100.0))
    for number, port in enumerate((4791, 5001)):
        probers.announce(0, 2, number, port)
    probers.run(3.0)
    assert {message.peer_port for _, _, message in probers.answers if message.ports} == {4791, 5001}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({}, "no router has an address"),
        ({"spine1": "spine1"}, "'spine1' of router 'spine1' is not an IP address"),
        ({"10.9.0.1": "spine9"}, "'spine9', which has the address 10.9.0.1, is neither a switch nor a port"),
        ({"10.9.0.1": "spine1:77"}, "'spine1:77', which has the address 10.9.0.1, is neither a switch nor a port"),
        ({"10.9.0.1": "spine1"}, "spine2 answers probes between h1 and h5, and has no address"),
    ],
)
def test_missing_addresses_of_routers_are_refused_in_one_sentence(names: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PathService(TWO_TIERS, routers=names)


def test_parallel_links_are_refused_where_routers_answer_by_loopbacks() -> None:
    topology = leaf_spine(2, 2, 2, RATE, parallel_links=2)
    with pytest.raises(ValueError, match="answers that name routers but not their ports do not tell which"):
        fabric_with(topology, names_of(topology, unnumbered=True))


def test_parallel_links_are_pinned_under_the_limits_of_routers() -> None:
    """The far leaf answers for all ports of a pair, once a second. So better ports come slowly."""
    topology = PARALLEL_LEAVES
    probers = measured(topology, LinuxL4Hash())
    permuted(probers)
    probers.run(20.0)
    assert max(probers.load().values()) <= 2
    status = probers.service.status()["measured"]
    assert status["pinned"] == HOSTS
    assert status["first_ports"]["longest_s"] < HOLD_S
    assert probers.misplaced() == set()
    (link,) = [link for link in topology.links if link.a == PortRef("leaf1", 5)]
    probers.change(forwarding(topology, frozenset([link])))
    probers.run(40.0)
    assert probers.misplaced() == set()
    assert not probers.load().keys() & {link.a, link.b}


@pytest.mark.parametrize("topology", [PARALLEL_LEAVES, PARALLEL_PODS], ids=["two", "three"])
def test_a_move_behind_the_topmost_router_is_found_by_watching(topology: Topology) -> None:
    """Topmost routers divide the hash anew, so ports arrive there as before and leave by another link."""
    probers = measured(topology, LinuxL4Hash())
    for host in range(4):
        probers.connect(host)
        probers.announce(host, host + HOSTS // 2)
    probers.run(30.0)
    assert probers.misplaced() == set()
    routes = forwarding(topology)
    groups = {
        switch: {to: ports[::-1] for to, ports in own.items()} if switch.startswith(("spine1", "core1")) else own
        for switch, own in routes.groups.items()
    }
    probers.change(replace(routes, groups=groups, by_address=True))
    assert len(probers.misplaced()) >= 3
    # The far leaf answers for all ports of a host, and is asked for one in two seconds.
    probers.run(2.0 * LANES)
    assert probers.service.status()["measured"]["events"]
    probers.run(30.0)
    assert probers.misplaced() == set()


def test_a_move_that_a_hop_tells_is_not_watched_for_again_before_it_was_checked() -> None:
    """Else the host tells it twice, while the routers that it watches for are still the old ones."""
    probers = measured(PARALLEL_LEAVES, LinuxL4Hash())
    probers.connect(0)
    probers.announce(0, HOSTS // 2)
    probers.run(60.0)
    far = max(probers.watches.values(), key=lambda watch: watch.ttl)
    port, router = far.ports[0]
    other = next(other for _, other in far.ports if other != router)
    moved = Moved(far.peer, (Answer(port, "hop", other, 0.001),), far.peer_port, far.ttl)
    sends = probers.service.handle(probers.now_s + 1.0, 0, [moved])
    sends += probers.service.tick(probers.now_s + 1.1)
    asked = [message for _, message in sends if isinstance(message, Probe)]
    assert [port in ask.ports for ask in asked] == [True]
    assert not [message for _, message in sends if isinstance(message, Watch)]
    probers.now_s += 1.1
    probers.hear(sends)
    probers.run(1.0)  # it was checked: the port takes its path
    probers.say(0, moved)
    assert probers.service.counts["watched ports that moved"] == 2


def test_further_hops_are_watched_within_what_routers_answer() -> None:
    """By hosts that say that they can; others watch the topmost router only."""
    probers = measured(PARALLEL_LEAVES, LinuxL4Hash())
    for host in range(2):
        probers.connect(host, hops=host == 0)
        for number, step in enumerate((4, 8, 12)):
            probers.announce(host, host + step, number)
    probers.run(30.0)
    assert probers.service.status()["measured"]["measuring"] > 0  # ports are watched meanwhile, too
    assert Counter((conn, ttl) for conn, _, ttl in probers.watches) == {(0, 2): 3, (0, 3): 3, (1, 2): 3}
    before = probers.of_router.copy()
    probers.run(30.0)
    # A second, of a router for a host: on which of the spines ports fall is chance.
    assert 0 < max((probers.of_router - before).values()) / 30.0 <= 1.25


def test_generations_grow_and_moves_are_few() -> None:
    probers = measured(TWO_TIERS, LinuxL4Hash())
    permuted(probers)
    probers.run(30.0)
    told: dict[int, list[int]] = {}
    for _, conn, message in probers.answers:
        told.setdefault(conn, []).append(message.generation)
    assert all(first < second for own in told.values() for first, second in pairwise(own))
    moves = sum(len(own) - 1 for own in told.values())
    assert moves <= 3 * HOSTS
