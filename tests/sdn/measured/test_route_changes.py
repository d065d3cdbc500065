# SPDX-License-Identifier: Apache-2.0
"""What is measured again when routes have changed, and which answers count, on simulated routers."""

from __future__ import annotations

from collections import Counter

import pytest

from netmodel import IPPROTO_TCP, LinuxL4Hash, Topology, clos, forwarding
from netmodel.flow import Address
from sdn.measured.discovery import Ask, PairKey
from sdn.measured.pinning import MeasuredPinning
from tests.sdn.measured.test_pinning import (
    FAST,
    PARALLEL,
    TWO_TIERS,
    Routers,
    announced,
    assert_pinned,
    settle,
)


def test_answers_of_before_a_change_of_routes_do_not_count_as_of_after_it() -> None:
    """A host tells what came of several ports when the last is answered. Meanwhile another host tells of a change."""
    topology = clos(4, 2, 2, 2, 2, 10**9)
    routers = Routers(topology, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pair, other = PairKey(0, 12, 4791), PairKey(1, 13, 4791)
    pinning.announce(0.0, other, 4)
    settle(pinning, routers)
    pinning.announce(1.0, pair, 4)
    (ask,) = pinning.due(1.0)
    assert len(ask.ports) > 1
    early = {port: routers.answer(pair, port, ask.ttl) for port in ask.ports}
    dead = [link for link in topology.links if "agg1" in (link.a.node, link.b.node)]
    routers.change(forwarding(topology, frozenset(dead)))
    port = next(port for port in pinning.ports(other) if routers.path(other, port)[1:-1] != pinning.known(other)[port])
    pinning.probed(1.1, Ask(other, 3, (port,)), {port: routers.answer(other, port, 3)})
    pinning.probed(1.2, ask, early)
    settle(pinning, routers, 1.2)
    assert_pinned(pinning, routers, [pair, other], 4)


def test_answers_of_two_hops_before_and_after_a_change_of_routes_tell_no_way() -> None:
    routers, pair = Routers(PARALLEL, LinuxL4Hash()), PairKey(0, 12, 4791)
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pinning.announce(0.0, pair, 4)
    (ask,) = pinning.due(0.0)
    pinning.probed(0.0, ask, {port: routers.answer(pair, port, ask.ttl) for port in ask.ports})
    dead = next(link for link in PARALLEL.links if {link.a.node, link.b.node} == {"leaf1", "spine1"})
    routers.change(forwarding(PARALLEL, frozenset([dead])))
    pinning.doubt(0.1, pair)
    settle(pinning, routers, 0.2)
    known = pinning.known(pair)
    assert known == {port: routers.path(pair, port)[1:-1] for port in known}
    assert_pinned(pinning, routers, [pair], 4)


@pytest.mark.parametrize("topology", [TWO_TIERS, PARALLEL], ids=["one hop", "two hops"])
def test_ports_of_a_pair_that_pauses_are_watched_again(topology: Topology) -> None:
    """They are given out at once, and nobody has seen meanwhile whether routes have changed."""
    routers, pinning, pairs = announced(topology, 4)
    for pair in pairs:
        pinning.release(1.0, pair)
        pinning.announce(2.0, pair, 4)
        assert len(pinning.ports(pair)) == 4
        for hop, watched in pinning.watched(pair):
            assert len(watched) == len(set(pinning.paths(pair)))
            assert watched == [(port, routers.answer(pair, port, hop.ttl)) for port, _ in watched]


def test_ports_of_connections_are_not_tried_at_other_routers() -> None:
    """Their host cannot probe them."""
    topology = clos(2, 2, 2, 2, 2, 10**9)
    routers, pairs = Routers(topology, LinuxL4Hash()), [PairKey(host, host + 4, 4791, IPPROTO_TCP) for host in range(4)]
    pinning, tried = MeasuredPinning(routers.measured(), pace=FAST), 0
    for pair in pairs:
        pinning.announce(0.0, pair, 4)
    while due := pinning.due(0.0):
        for ask in due:
            if ask.trial:
                tried += len(ask.ports)
                assert set(ask.ports).isdisjoint(pinning.ports(ask.pair))
            pinning.probed(0.0, ask, {port: routers.answer(ask.pair, port, ask.ttl) for port in ask.ports})
            pinning.ports(ask.pair)
    assert tried >= 8


def agg_dies(routers: Routers) -> None:
    dead = [link for link in routers.topology.links if "agg1" in (link.a.node, link.b.node)]
    routers.change(forwarding(routers.topology, frozenset(dead)))


def asked_after_a_death(
    pinning: MeasuredPinning, routers: Routers, pairs: list[PairKey], silent: int, now_s: float = 1.0
) -> set[int]:
    """An aggregation switch dies, and the routers at a hop have no answers left. The hops that are asked."""
    agg_dies(routers)
    for pair in pairs:
        pinning.doubt(now_s, pair)
    asked = set[int]()
    for _ in range(50):
        for ask in pinning.due(now_s):
            asked |= set() if ask.trial else {ask.ttl}
            answers = {port: routers.answer(ask.pair, port, ask.ttl) for port in ask.ports}
            pinning.probed(now_s, ask, {} if ask.ttl == silent else answers)
    return asked


@pytest.mark.parametrize("silent", [3, 4])
def test_routers_behind_the_topmost_ones_are_asked_where_ports_have_moved(silent: int) -> None:
    """Each router gives a host few answers, and fewer are left at the topmost hop. Each hop does without the other."""
    topology = clos(2, 2, 2, 2, 2, 10**9)
    routers, pairs = Routers(topology, LinuxL4Hash()), [PairKey(host, host + 4, 4791) for host in range(4)]
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    for pair in pairs:
        pinning.announce(0.0, pair, 4)
    settle(pinning, routers)
    assert 4 in asked_after_a_death(pinning, routers, pairs, silent)
    assert_pinned(pinning, routers, pairs, 4)
    for pair in pairs:
        ((hop, watched),) = pinning.watched(pair)
        assert hop.ttl == 3
        assert dict(watched) == {port: routers.answer(pair, port, 3) for port, _ in watched}


@pytest.mark.parametrize("early", [True, False], ids=["change known later", "answers of before it"])
def test_routers_are_tried_again_after_a_change_of_routes_during_their_trial(early: bool) -> None:
    topology = clos(2, 2, 2, 2, 2, 10**9)
    routers, pairs = Routers(topology, LinuxL4Hash()), [PairKey(host, host + 4, 4791) for host in range(4)]
    pinning, trials = MeasuredPinning(routers.measured(), pace=FAST), list[tuple[Ask, dict[int, Address]]]()
    for pair in pairs:
        pinning.announce(0.0, pair, 4)
    while due := pinning.due(0.0):
        for ask in due:
            answers = {port: routers.answer(ask.pair, port, ask.ttl) for port in ask.ports}
            if ask.ttl > 3:
                trials.append((ask, answers))
            else:
                pinning.probed(0.0, ask, answers)
    assert len(trials) > 2
    agg_dies(routers)
    if early:
        for ask, _ in trials:
            pinning.probed(0.1, ask, {port: routers.answer(ask.pair, port, ask.ttl) for port in ask.ports})
    for pair in pairs:
        pinning.doubt(0.2, pair)
    while due := pinning.due(0.2):
        for ask in due:
            pinning.probed(0.2, ask, {port: routers.answer(ask.pair, port, ask.ttl) for port in ask.ports})
    if not early:
        for ask, answers in trials:
            pinning.probed(0.3, ask, answers)
    for pair in pairs:
        pinning.announce(0.4, pair, 4)
    settle(pinning, routers, 0.4)
    routers.change(None)
    assert 4 in asked_after_a_death(pinning, routers, pairs, silent=0)
    assert_pinned(pinning, routers, pairs, 4)


def test_probing_ends_where_routers_behind_the_topmost_ones_do_not_answer() -> None:
    topology = clos(2, 2, 2, 2, 2, 10**9)
    routers, pairs = Routers(topology, LinuxL4Hash()), [PairKey(host, host + 4, 4791) for host in range(4)]
    pinning, asked = MeasuredPinning(routers.measured(), pace=FAST), 0
    for pair in pairs:
        pinning.announce(0.0, pair, 4)
    while due := pinning.due(0.0):
        for ask in due:
            asked += len(ask.ports)
            answers = {port: routers.answer(ask.pair, port, ask.ttl) for port in ask.ports}
            pinning.probed(0.0, ask, {} if ask.ttl > 3 else answers)
        assert asked < 200
    assert_pinned(pinning, routers, pairs, 4)


@pytest.mark.parametrize("lanes", [4, 8])
def test_a_single_router_behind_the_topmost_ones_is_asked_for_what_it_answers_at_once(lanes: int) -> None:
    """On two tiers it is the far leaf. Linux gives a host six answers at once, and then one a second."""
    routers, pairs = Routers(TWO_TIERS, LinuxL4Hash()), [PairKey(host, 12 + host % 4, 4791) for host in range(4)]
    pinning = MeasuredPinning(routers.measured())
    for pair in pairs:
        pinning.announce(0.0, pair, lanes)
    for now_s in range(100):
        settle(pinning, routers, float(now_s))
    assert_pinned(pinning, routers, pairs, lanes)
    for pair in pairs:
        pinning.doubt(1000.0, pair)
    asked: Counter[tuple[int, Address]] = Counter()
    hops = set[int]()
    for ask in pinning.due(1000.0):
        hops.add(ask.ttl)
        asked.update((ask.pair.src, routers.answer(ask.pair, port, ask.ttl)) for port in ask.ports)
    assert hops == ({3} if lanes == 4 else {2})
    assert max(asked.values()) <= 6


@pytest.mark.parametrize(("from_the_start", "liars"), [(True, 0), (True, 2), (False, 0)])
def test_routers_that_name_the_port_by_which_answers_leave_are_not_believed(from_the_start: bool, liars: int) -> None:
    """As Linux does by default. The topmost ones have one port to each pod, so what they say is right anyway.

    The first hosts lie: they say that the routers behind these are right.
    """
    topology = clos(2, 2, 2, 2, 4, 10**9)
    routers = Routers(topology, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pairs = [PairKey(host, host + 8, 4791) for host in range(8)]
    true = routers.answer

    def answer(pair: PairKey, port: int, ttl: int) -> Address:
        if ttl == 3 or pair.src < liars:
            return true(pair, port, ttl)
        node = routers.path(pair, port)[ttl].node
        return true(pair, next(one for one in range(0xC000, 0x10000) if routers.path(pair, one)[ttl].node == node), ttl)

    def watch() -> None:
        for pair in pairs:
            pinning.ports(pair)
            ((_, watched),) = pinning.watched(pair)
            moved = {port: by for port, router in watched if (by := routers.answer(pair, port, 3)) != router}
            if moved:
                pinning.moved(2.0, pair, moved)

    if from_the_start:
        routers.answer = answer  # type: ignore[method-assign]
    for pair in pairs:
        pinning.announce(0.0, pair, 4)
        settle(pinning, routers)
    assert_pinned(pinning, routers, pairs, 4)
    routers.answer = answer  # type: ignore[method-assign]
    asked = asked_after_a_death(pinning, routers, pairs, silent=0)
    assert (4 in asked) != from_the_start
    for _ in range(0 if from_the_start else 4):
        watch()
        settle(pinning, routers, 2.0)
    assert_pinned(pinning, routers, pairs, 4)
    assert asked_after_a_death(pinning, routers, pairs, silent=0, now_s=2.0) == {3}


def test_a_port_of_which_a_host_has_told_that_it_moved_is_not_probed_for_that() -> None:
    topology = clos(4, 2, 2, 2, 2, 10**9)
    routers, pinning, pairs = announced(topology, 4)
    dead = [link for link in topology.links if "agg1" in (link.a.node, link.b.node)]
    routers.change(forwarding(topology, frozenset(dead)))
    pair, port = next(
        (pair, port)
        for pair in pairs
        for port in pinning.ports(pair)
        if routers.path(pair, port)[1:-1] != pinning.known(pair)[port]
    )
    pinning.probed(1.0, Ask(pair, 3, (port,)), {port: routers.answer(pair, port, 3)})
    asked = {port for ask in pinning.due(1.0) if ask.pair == pair for port in ask.ports}
    assert asked == set(pinning.ports(pair)) - {port}


def test_a_router_that_dies_has_pairs_over_its_other_links_measured_again() -> None:
    """One host tells that a port has left one of its links."""
    topology = clos(4, 2, 2, 2, 2, 10**9)
    routers = Routers(topology, LinuxL4Hash())
    pinning = MeasuredPinning(routers.measured(), pace=FAST)
    pairs = [PairKey(host, (host + 4) % 16, 4791) for host in range(16)]
    for pair in pairs:
        pinning.announce(0.0, pair, 1)
    settle(pinning, routers)
    through = [pair for pair in pairs if any(link.node == "agg1" for link in pinning.paths(pair)[0])]
    dead = [link for link in topology.links if "agg1" in (link.a.node, link.b.node)]
    routers.change(forwarding(topology, frozenset(dead)))
    (port,) = pinning.ports(through[0])
    pinning.probed(1.0, Ask(through[0], 3, (port,)), {port: routers.answer(through[0], port, 3)})
    assert len(through) > 2
    assert all(pinning.is_doubtful(pair) for pair in through[1:])
