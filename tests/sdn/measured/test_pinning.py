# SPDX-License-Identifier: Apache-2.0
"""Discovery and plan together, on simulated routers: what is planned is what packets do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from itertools import permutations

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
    in_planes,
    leaf_spine,
    paths_of_ports,
    rail_optimised,
    router_addresses,
)
from netmodel.flow import Address
from netmodel.probing.inference import infer
from netmodel.probing.observations import ProbeFile
from netmodel.probing.simulated import Fabric, Naming
from sdn.measured.discovery import Ask, PairKey
from sdn.measured.fabric import MeasuredFabric
from sdn.measured.pace import Pace
from sdn.measured.pinning import Lanes, MeasuredPinning

FAST = Pace(router_per_s=1e6, host_router_per_s=1e6, host_router_burst=1e6, host_per_s=1e6)
TWO_TIERS = leaf_spine(4, 4, 4, 10**9)
THREE_TIERS = clos(2, 2, 2, 2, 2, 10**9)
PARALLEL = leaf_spine(4, 2, 4, 10**9, parallel_links=2)
PARALLEL_CORES = clos(2, 2, 2, 1, 2, 10**9, core_parallel_links=2)
PARALLEL_EVERYWHERE = clos(2, 2, 2, 1, 2, 10**9, parallel_links=2)


class Routers:
    """A fabric that forwards and answers."""

    def __init__(self, topology: Topology, ecmp_hash: EcmpHash, naming: Naming = "interface") -> None:
        self.topology = topology
        self.hosts = [host.name for host in topology.hosts]
        self.naming: Naming = naming
        self._hash = ecmp_hash
        self._routes: Forwarding | None = None
        self._known: dict[PairKey, tuple[tuple[Path, ...], list[int]]] = {}

    def change(self, routes: Forwarding | None) -> None:
        self._routes = routes
        self._known.clear()

    def path(self, pair: PairKey, port: int) -> Path:
        if pair not in self._known:
            ends = self.hosts[pair.src], self.hosts[pair.dst]
            paths, taken = paths_of_ports(self.topology, *ends, self._hash, routes=self._routes)
            self._known[pair] = paths, taken.tolist()
        paths, index = self._known[pair]
        return paths[index[port - 0xC000]]

    def answer(self, pair: PairKey, port: int, ttl: int) -> Address:
        fabric = Fabric(self.topology, self._hash, self.naming)
        return ip_address(fabric.routers(self.path(pair, port))[ttl - 1])

    def measured(self) -> MeasuredFabric:
        """As given by an operator: the addresses of a topology that is known."""
        addresses = router_addresses(self.topology)
        routers: Mapping[Address, str] = {one: name for name, one in addresses.loopback.items()}
        if self.naming == "router":
            return MeasuredFabric(self.topology, routers, {})
        ports = {one: port for port, one in addresses.port.items()}
        return MeasuredFabric(self.topology, {**routers, **{one: port.node for one, port in ports.items()}}, ports)


def settle(pinning: MeasuredPinning, routers: Routers, now_s: float = 0.0) -> int:
    """Answers all probes until none are due; their number."""
    probes = 0
    for _ in range(2_000):
        due = pinning.due(now_s)
        if not due:
            return probes
        for ask in due:
            probes += len(ask.ports)
            pinning.probed(now_s, ask, {port: routers.answer(ask.pair, port, ask.ttl) for port in ask.ports})
    raise AssertionError("probing does not end")


def announced(topology: Topology, lanes: int) -> tuple[Routers, MeasuredPinning, list[PairKey]]:
    """Sixteen hosts, each of which sends over so many lanes to the one eight further on; their paths are known."""
    routers = Routers(topology, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pairs = [PairKey(host, (host + 8) % 16, 4791) for host in range(16)]
    for pair in pairs:
        pinning.announce(0.0, pair, lanes)
    settle(pinning, routers)
    return routers, pinning, pairs


def assert_pinned(pinning: MeasuredPinning, routers: Routers, pairs: list[PairKey], lanes: int) -> float:
    """Every lane takes its planned path by a port of its own. Returns the most pairs on a link."""
    load: Counter[PortRef] = Counter()
    for pair in pairs:
        ports, paths = pinning.ports(pair), pinning.paths(pair)
        assert len(set(ports)) == len(ports) == lanes
        assert [routers.path(pair, port)[1:-1] for port in ports] == paths
        assert pinning.ports(pair) is ports
        for path in paths:
            load.update(path)
    return max(load.values()) / lanes


@pytest.mark.parametrize("naming", ["interface", "router"])
@pytest.mark.parametrize("ecmp_hash", [LinuxL4Hash(), CrcHash("crc32")], ids=["linux", "affine"])
@pytest.mark.parametrize("topology", [TWO_TIERS, THREE_TIERS], ids=["two", "three"])
@pytest.mark.parametrize("lanes", ["distinct", "together"])
def test_pairs_are_pinned_whatever_the_hash(
    topology: Topology, ecmp_hash: EcmpHash, naming: Naming, lanes: Lanes
) -> None:
    routers = Routers(topology, ecmp_hash, naming)
    pinning = MeasuredPinning(routers.measured(), lanes=lanes, pace=FAST)
    count = len(routers.hosts)
    pairs = [PairKey(host, (host + count // 2) % count, 4791) for host in range(count)]
    assert all(pinning.announce(0.0, pair, 2) is not None for pair in pairs)
    assert all(pinning.ports(pair) == [] for pair in pairs)
    settle(pinning, routers)
    worst = assert_pinned(pinning, routers, pairs, 2)
    # Leaves and aggs with one affine hash polarise: half of the cores are out of reach for a leaf.
    polarised = isinstance(ecmp_hash, CrcHash) and topology is THREE_TIERS
    assert worst == (2 if polarised else 1)
    assert pinning.congestion == pytest.approx(worst / 10**9)


@pytest.mark.parametrize("ecmp_hash", [LinuxL4Hash(), OvsHash()], ids=["linux", "other"])
@pytest.mark.parametrize(
    ("topology", "ttls"),
    [
        (TWO_TIERS, [2]),
        (THREE_TIERS, [3]),
        (PARALLEL, [2, 3]),
        (PARALLEL_CORES, [3, 4]),
        (PARALLEL_EVERYWHERE, [3, 4, 5, 2]),
    ],
    ids=["two", "three", "parallel", "parallel cores", "parallel everywhere"],
)
def test_more_hops_are_asked_about_only_for_parallel_links(
    topology: Topology, ttls: list[int], ecmp_hash: EcmpHash
) -> None:
    routers = Routers(topology, ecmp_hash)
    fabric = routers.measured()
    pinning = MeasuredPinning(fabric, pace=FAST)
    count = len(routers.hosts)
    pairs = [PairKey(host, (host + count // 2) % count, 4791) for host in range(count)]
    sights = [fabric.sight(pair.src, pair.dst) for pair in pairs]
    assert all(sight is not None and [hop.ttl for hop in sight.hops] == ttls for sight in sights)
    for pair in pairs:
        pinning.announce(0.0, pair, 4)
    settle(pinning, routers)
    assert assert_pinned(pinning, routers, pairs, 4) <= 1.5


def test_answers_that_contradict_each_other_pin_nothing() -> None:
    """Linux by default answers by the port by which the answer leaves, here always the first one."""
    routers = Routers(PARALLEL, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pair = PairKey(0, 8, 4791)
    pinning.announce(0.0, pair, 4)
    first = router_addresses(PARALLEL).port[PortRef(PARALLEL.peer(PortRef(routers.hosts[8], 1)).node, 5)]
    for _ in range(100):
        for ask in pinning.due(0.0):
            said = {port: first if ask.ttl == 3 else routers.answer(pair, port, ask.ttl) for port in ask.ports}
            pinning.probed(0.0, ask, said)
    assert pinning.ports(pair) == []
    assert pinning.ports(pair) is pinning.ports(pair)
    assert "icmp_errors_use_inbound_ifaddr=1" in pinning.given_up(pair)
    pinning.announce(1.0, pair, 4)
    settle(pinning, routers, 1.0)  # routers are mended
    assert_pinned(pinning, routers, [pair], 4)


@pytest.mark.parametrize("far", [False, True])
def test_parallel_links_that_die_are_left(far: bool) -> None:
    """A watch of the topmost router tells that one on the way up has died, one of the far leaf that another has."""
    routers = Routers(PARALLEL, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pair = PairKey(0, 8, 4791)
    pinning.announce(0.0, pair, 4)
    settle(pinning, routers)
    before = dict(zip(pinning.ports(pair), pinning.paths(pair), strict=True))
    link = PARALLEL.link_at(pinning.paths(pair)[0][1 if far else 0])
    routers.change(forwarding(PARALLEL, frozenset([link])))
    moved = [port for port, path in before.items() if routers.path(pair, port)[1:-1] != path]
    seen = [
        {port: answer for port, was in watched if (answer := routers.answer(pair, port, hop.ttl)) != was}
        for hop, watched in pinning.watched(pair)
    ]
    assert [bool(each) for each in seen] == [not far, True]
    assert seen[-1].keys() <= set(moved)
    assert pinning.moved(1.0, pair, seen[far]) == []
    assert pinning.measuring(pair)
    settle(pinning, routers, 1.0)
    assert_pinned(pinning, routers, [pair], 4)
    assert all({link.a, link.b}.isdisjoint(path) for path in pinning.paths(pair))


def test_a_cut_link_is_left_and_ports_are_measured_again() -> None:
    routers, pinning, pairs = announced(TWO_TIERS, 2)
    link = next(link for link in TWO_TIERS.links if link.a.node == "leaf1" and link.b.node == "spine2")
    routers.change(forwarding(TWO_TIERS, frozenset([link])))
    said = pinning.cut(1.0, (link.a, link.b))
    away = [
        pair for pair in pairs if "leaf1" in {TWO_TIERS.peer(PortRef(routers.hosts[end], 1)).node for end in pair[:2]}
    ]
    assert set(away) <= set(said)
    probes = settle(pinning, routers, 1.0)
    assert 0 < probes < 60 * len(away)
    assert assert_pinned(pinning, routers, pairs, 2) == 1.5  # eight lanes of leaf1 share three links
    assert all({link.a, link.b}.isdisjoint(path) for pair in pairs for path in pinning.paths(pair))
    routers.change(None)
    pinning.mend(2.0, (link.a, link.b))
    settle(pinning, routers, 2.0)
    assert assert_pinned(pinning, routers, pairs, 2) <= 2


def test_lanes_change_their_ports_only_for_paths_that_their_pair_did_not_take() -> None:
    """Eight lanes on eight paths: when one is cut, and when it is back."""
    topology = leaf_spine(4, 8, 4, 10**9)
    routers, pinning, pairs = announced(topology, 8)
    link = next(link for link in topology.links if link.a.node == "leaf1" and link.b.node == "spine2")
    for now_s, dead in ((1.0, [link]), (2.0, [])):
        before = {pair: list(pinning.ports(pair)) for pair in pairs}
        routers.change(forwarding(topology, frozenset(dead)))
        (pinning.cut if dead else pinning.mend)(now_s, (link.a, link.b))
        settle(pinning, routers, now_s)
        assert_pinned(pinning, routers, pairs, 8)
        after = {pair: pinning.ports(pair) for pair in pairs}
        changed = sum(was != port for pair in pairs for was, port in zip(before[pair], after[pair], strict=True))
        assert changed == sum(len(set(before[pair]).difference(after[pair])) for pair in pairs) > 0


def test_one_port_that_moved_has_all_pairs_of_its_leaf_measured_again() -> None:
    """A remote link dies, which only a watched port tells."""
    routers = Routers(THREE_TIERS, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pairs = [PairKey(host, (host + 4) % 8, 4791) for host in range(8)]
    for pair in pairs:
        pinning.announce(0.0, pair, 2)
    settle(pinning, routers)
    link = THREE_TIERS.link_at(pinning.paths(pairs[0])[0][1])
    before = {(pair, port): routers.path(pair, port) for pair in pairs for port in pinning.ports(pair)}
    routers.change(forwarding(THREE_TIERS, frozenset([link])))
    moved = [(pair, port) for (pair, port), path in before.items() if routers.path(pair, port) != path]
    pair, port = next(one for one in moved if one[0].src < 2)
    said = pinning.probed(1.0, Ask(pair, 3, (port,)), {port: routers.answer(pair, port, 3)})
    assert {one for one in pairs if one.src < 2} <= set(said)
    settle(pinning, routers, 1.0)
    assert_pinned(pinning, routers, [one for one in pairs if one.src < 2], 2)


def sought(count: int, pace: Pace = FAST, *, searches: bool = True) -> tuple[Routers, MeasuredPinning, PairKey]:
    """A pair of which nothing is wanted but one port along each of so many paths, for which connections wait."""
    routers = Routers(TWO_TIERS, LinuxL4Hash())
    pinning, pair = MeasuredPinning(routers.measured(), pace=pace), PairKey(0, 8, 4791)
    pinning.announce(0.0, pair, 0, searches=searches)
    paths = list(routers.measured().paths(0, 8))[:count]
    pinning.seek(0.0, pair, dict.fromkeys(paths, 1), (), urgent=True)
    return routers, pinning, pair


@pytest.mark.parametrize("told", [0, 1, 2])
def test_ports_that_a_host_left_out_of_its_answer_are_kept_and_asked_for_again(told: int) -> None:
    """It had found what was sought, or had no time left."""
    routers, pinning, pair = sought(3)
    settle(pinning, routers)
    known = pinning.known(pair)
    pinning.doubt(1.0, pair)
    (ask,) = pinning.due(1.0)
    assert len(ask.ports) == 3
    assert set(ask.ports) <= known.keys()
    answers = {port: routers.answer(pair, port, ask.ttl) for port in ask.ports[:told]}
    pinning.probed(1.0, ask, answers, ask.ports[told:])
    assert pinning.known(pair) == {port: known[port] for port in ask.ports[:told]}
    (again,) = pinning.due(1.0)
    assert again.ports == ask.ports[told:]
    pinning.probed(1.0, again, {port: routers.answer(pair, port, ask.ttl) for port in again.ports})
    assert pinning.known(pair) == {port: known[port] for port in ask.ports}


def test_a_search_goes_on_as_long_as_with_hosts_that_tell_of_all_ports() -> None:
    """Ports that were not probed do not count as probed in vain."""
    routers, pinning, pair = sought(1)
    path, probes = next(iter(routers.measured().paths(0, 8))), 0
    while due := pinning.due(0.0):
        (ask,) = due
        port = next(port for port in ask.ports if routers.path(pair, port)[1:-1] != path)
        probes += 1
        pinning.probed(0.0, ask, {port: routers.answer(pair, port, ask.ttl)}, set(ask.ports) - {port})
    assert probes == 64
    assert pinning.given_up(pair) == "probes find nothing new"


def test_a_host_that_does_not_know_searches_is_asked_for_two_ports_and_each_is_charged() -> None:
    pace = Pace()
    routers, pinning, pair = sought(1, pace, searches=False)
    path, ports = next(iter(routers.measured().paths(0, 8))), 0
    while due := pinning.due(0.0):  # until the pace holds them back
        (ask,) = due
        assert (len(ask.ports), ask.once, ask.until) == (2, False, ())
        ports += len(ask.ports)
        others = (port for port in ask.ports if routers.path(pair, port)[1:-1] != path)
        pinning.probed(0.0, ask, {port: routers.answer(pair, port, ask.ttl) for port in others})
    assert pinning.measuring(pair)
    at_once = pace.host_router_burst + pace.host_router_urgent  # of a router; a port that nobody watches counts half
    assert ports == 2 * 4 * at_once


def test_a_host_that_tells_of_no_port_is_not_asked_for_ever() -> None:
    _, pinning, pair = sought(1)
    asks = 0
    while due := pinning.due(0.0):
        (ask,) = due
        asks += 1
        pinning.probed(0.0, ask, {}, ask.ports)
    assert asks == 5
    assert pinning.given_up(pair) == "probes are not answered"


def test_where_routes_may_have_changed_the_ports_in_use_are_probed_and_few_others() -> None:
    routers = Routers(TWO_TIERS, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pair = PairKey(0, 8, 4791)
    pinning.announce(0.0, pair, 2)
    assert settle(pinning, routers) >= 4
    assert len(pinning.ports(pair)) == 2
    pinning.doubt(1.0, pair)
    (first,) = pinning.due(1.0)
    assert set(first.ports) == set(pinning.ports(pair))
    pinning.probed(1.0, first, {port: routers.answer(pair, port, first.ttl) for port in first.ports})
    assert not pinning.is_doubtful(pair)
    assert settle(pinning, routers, 1.0) == 2  # one for each other path


@pytest.mark.parametrize("lanes", [2, 4])
def test_a_path_that_comes_back_is_seen_at_a_port_that_left_it(lanes: int) -> None:
    """With two lanes neither takes that path meanwhile, with four one keeps its port, on another path."""
    routers = Routers(THREE_TIERS, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pair = PairKey(0, 4, 4791)
    pinning.announce(0.0, pair, lanes)
    settle(pinning, routers)
    assert len(pinning.ports(pair)) == lanes
    link = THREE_TIERS.link_at(pinning.paths(pair)[0][1])
    routers.change(forwarding(THREE_TIERS, frozenset([link])))
    pinning.doubt(1.0, pair)
    settle(pinning, routers, 1.0)
    assert len(set(pinning.paths(pair))) == min(lanes, 3)
    routers.change(None)
    ((hop, watched),) = pinning.watched(pair)
    moved = {port: answer for port, was in watched if (answer := routers.answer(pair, port, hop.ttl)) != was}
    assert moved
    pinning.moved(2.0, pair, moved)
    settle(pinning, routers, 2.0)
    assert len(set(pinning.paths(pair))) == lanes
    assert [len(watched) for _, watched in pinning.watched(pair)] == [lanes]


def test_an_inferred_topology_will_do() -> None:
    real = Fabric(THREE_TIERS, LinuxL4Hash())
    files = [
        ProbeFile(
            source,
            "2026-11-26T21:12:00Z",
            tuple(
                one
                for destination in ("h1", "h3", "h5", "h7")
                if destination != source
                for one in real.probes(source, destination, range(0xC000, 0xC040), range(1, 7))
            ),
        )
        for source in ("h1", "h3", "h5", "h7")
    ]
    found = infer(files, rate_bps=10**9)
    pinning = MeasuredPinning(MeasuredFabric(found.topology, found.routers, found.ports), pace=FAST)
    names = [host.name for host in found.topology.hosts]
    routers = Routers(THREE_TIERS, LinuxL4Hash())
    number = {name: place for place, name in enumerate(routers.hosts)}
    pairs = [PairKey(src, dst, 4791) for src, dst in permutations(range(4), 2)]
    for pair in pairs:
        assert pinning.announce(0.0, pair, 1) is not None
    for _ in range(500):
        for ask in pinning.due(0.0):
            own = PairKey(number[names[ask.pair.src]], number[names[ask.pair.dst]], 4791)
            pinning.probed(0.0, ask, {port: routers.answer(own, port, ask.ttl) for port in ask.ports})
    assert all(len(pinning.ports(pair)) == 1 for pair in pairs)


def test_what_cannot_be_chosen_is_refused() -> None:
    refused: list[tuple[Topology, PairKey, Naming]] = [
        (TWO_TIERS, PairKey(0, 1, 4791), "interface"),  # on one leaf
        (leaf_spine(2, 1, 2, 10**9), PairKey(0, 2, 4791), "interface"),  # one path
        (PARALLEL, PairKey(0, 8, 4791), "router"),  # answers name routers, and not which of two links it was
    ]
    for topology, pair, naming in refused:
        pinning = MeasuredPinning(Routers(topology, LinuxL4Hash(), naming).measured(), pace=FAST)
        assert pinning.announce(0.0, pair, 2) is None
        assert pinning.due(0.0) == []
        assert pinning.release(0.0, pair) == []


@pytest.mark.parametrize(
    "topology",
    [in_planes(leaf_spine(2, 2, 2, 10**9), 2), rail_optimised(2, 2, 10**9, 10**10, spines=2)],
    ids=["planes", "rails"],
)
def test_hosts_of_several_nics_are_measured(topology: Topology) -> None:
    """Between the NICs of one host no packet crosses the fabric, although they are at different leaves."""
    fabric = Routers(topology, LinuxL4Hash()).measured()
    assert fabric.unmeasurable() is None
    sights = {ends: fabric.sight(*ends) for ends in permutations(range(len(fabric.nics)), 2)}
    assert not any(sight for (src, dst), sight in sights.items() if fabric.nics[src].node == fabric.nics[dst].node)
    assert {sight.ways for sight in sights.values() if sight is not None} == {2}


def test_answers_from_elsewhere_count_for_none() -> None:
    routers = Routers(TWO_TIERS, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pair = PairKey(0, 8, 4791)
    pinning.announce(0.0, pair, 2)
    strange = [ip_address("8.8.8.8"), router_addresses(TWO_TIERS).port[PortRef("spine1", 2)]]
    asked = 0
    while due := pinning.due(0.0):
        for ask in due:
            asked += len(ask.ports)
            pinning.probed(0.0, ask, {port: strange[port % 2] for port in ask.ports})
    assert asked <= 5 * 8
    assert pinning.ports(pair) == []
    assert pinning.paths(pair) == []
    assert pinning.given_up(pair) == "routers answer by addresses that are on none of the pair's paths"


def test_slow_links_take_less() -> None:
    """Of 24 lanes, 6 would be an equal part. A link of a quarter of the rate has room for 2 beside 7 or 8 on others."""
    slow = [PortRef("spine4", 1), PortRef("spine4", 2)]
    made = leaf_spine(2, 4, 6, 10**9)
    links = tuple(
        replace(link, rate_bps=link.rate_bps // 4) if {link.a, link.b} & {*slow} else link for link in made.links
    )
    routers = Routers(replace(made, links=links), LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pairs = [PairKey(host, 6 + host, 4791) for host in range(6)]
    for pair in pairs:
        pinning.announce(0.0, pair, 4)
    settle(pinning, routers)
    assert_pinned(pinning, routers, pairs, 4)
    assert pinning.congestion == pytest.approx(2 / 10**9)


def test_lanes_keep_their_ports_until_others_are_known() -> None:
    routers = Routers(TWO_TIERS, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pair = PairKey(0, 8, 4791)
    pinning.announce(0.0, pair, 8)
    settle(pinning, routers)
    ports, ((hop, watched),) = pinning.ports(pair), pinning.watched(pair)
    assert {routers.answer(pair, port, hop.ttl) for port, _ in watched} == {router for _, router in watched}
    assert len(watched) == 4
    pinning.doubt(1.0, pair)
    assert pinning.ports(pair) is ports
    settle(pinning, routers, 1.0)
    assert pinning.ports(pair) is ports  # all is as it was
    assert pinning.oldest_s(pair) == 1.0


def test_a_host_that_lies_about_its_ports_moves_others_seldom_and_never_wrongly() -> None:
    """It says of its own probes what it likes, again and again: that routes have changed, and that models are wrong."""
    routers = Routers(TWO_TIERS, CrcHash("crc32"))
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    liar, *others = [PairKey(host, host + 8, 4791) for host in range(4)]
    addresses = sorted({routers.answer(liar, port, 2) for port in range(0xC000, 0xC040)}, key=int)
    probes: Counter[PairKey] = Counter()
    for pair in (liar, *others):
        pinning.announce(0.0, pair, 2)

    def answer_all(now_s: float, lie: int) -> None:
        while due := pinning.due(now_s):
            for ask in due:
                probes[ask.pair] += len(ask.ports)
                said = {port: routers.answer(ask.pair, port, ask.ttl) for port in ask.ports}
                if ask.pair == liar:
                    said = {port: addresses[(port + lie) % len(addresses)] for port in ask.ports}
                pinning.probed(now_s, ask, said)

    answer_all(0.0, 0)
    ports = [pinning.ports(pair) for pair in others]
    before = probes.total() - probes[liar]
    moves: list[int] = []
    for second in range(1, 21):
        for lie in range(5):
            known = pinning.ports(liar) or [0xC000]
            way = {port: addresses[(port + second + lie) % len(addresses)] for port in known}
            pinning.probed(float(second), Ask(liar, 2, tuple(known)), way)
        answer_all(float(second), second)
        if (now := [pinning.ports(pair) for pair in others]) != ports:
            ports = now
            moves.append(second)
    # They were told of changed routes, and made room, at most once in ten seconds.
    assert len(moves) <= 2
    for pair in others:
        assert [routers.path(pair, port)[1:-1] for port in pinning.ports(pair)] == pinning.paths(pair)
    # They were probed again at most once in ten seconds, each time as often as when they began.
    assert probes.total() - probes[liar] - before <= 3 * before


def test_a_pair_that_is_released_makes_room_for_others() -> None:
    routers = Routers(leaf_spine(2, 2, 3, 10**9), LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pairs = [PairKey(host, host + 3, 4791) for host in range(3)]
    for pair in pairs:
        pinning.announce(0.0, pair, 1)
        settle(pinning, routers)
    assert assert_pinned(pinning, routers, pairs, 1) == 2
    alone = next(
        pair for pair in pairs if all(pinning.paths(pair) != pinning.paths(other) for other in pairs if other != pair)
    )
    moved = pinning.release(1.0, alone)
    settle(pinning, routers, 1.0)
    left = [pair for pair in pairs if pair != alone]
    assert assert_pinned(pinning, routers, left, 1) == 1
    assert len(moved) == 1
