# SPDX-License-Identifier: Apache-2.0
"""What is probed next, against fabrics whose every port is known to the test."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import CrcHash, EcmpHash, LinuxL4Hash, leaf_spine, paths_of_ports
from sdn.measured.discovery import Ask, Discovery, Hop, PairKey, Sight
from sdn.measured.pace import Pace
from sdn.measured.tables import MeasuredTables

FABRIC = leaf_spine(2, 8, 16, 10**9)
FAST = Pace(router_per_s=1e6, host_router_per_s=1e6, host_router_burst=1e6, host_per_s=1e6)
SIGHT: Sight[str] = Sight((Hop(2, "spines", 8),), ways=8, group=("leaf1", "leaf2"))

Truth = Callable[[PairKey, int], str | None]


def hashed(ecmp_hash: EcmpHash) -> Truth:
    """The spine that each port's packets cross, of host src + 1 to host dst + 1."""
    tables: dict[PairKey, list[str]] = {}

    def spine(pair: PairKey, port: int) -> str:
        if pair not in tables:
            paths, taken = paths_of_ports(FABRIC, f"h{pair.src + 1}", f"h{pair.dst + 1}", ecmp_hash)
            tables[pair] = [paths[index][2].node for index in taken.tolist()]
        return tables[pair][port - 0xC000]

    return spine


def run(discovery: Discovery[str], truth: Truth, now_s: float = 0.0, most_s: float = 60.0) -> list[Ask]:
    """Sends what is due and answers by `truth` until nothing is due for a second; what was asked."""
    asked: list[Ask] = []
    quiet = 0
    while quiet < 100 and now_s < most_s:
        due = discovery.due(now_s)
        quiet = 0 if due else quiet + 1
        for ask in due:
            assert len(set(ask.ports)) == len(ask.ports) <= 8
            ways = {port: way for port in ask.ports if (way := truth(ask.pair, port)) is not None}
            discovery.answered(now_s, ask, ways)
        asked += due
        now_s += 0.01
    return asked


def probes(asked: list[Ask], pair: PairKey | None = None) -> int:
    return sum(len(ask.ports) for ask in asked if pair in (None, ask.pair))


def pairs(count: int) -> list[PairKey]:
    return [PairKey(place % 16, 16 + (place * 5 + place // 16) % 16, 4791) for place in range(count)]


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.floats(0, 0.5))
def test_every_announced_pair_gets_ready_although_answers_are_lost(seed: int, loss: float) -> None:
    chance = random.Random(seed)
    spine = hashed(LinuxL4Hash())
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST, seed=seed)
    own = pairs(4)
    for pair in own:
        discovery.announce(0.0, pair, SIGHT)
    run(discovery, lambda pair, port: None if chance.random() < loss else spine(pair, port))
    for pair in own:
        assert discovery.ready(pair)
        assert len(discovery.tables.ways(*pair)) == 8
        assert all(spine(pair, port) == way for port, way in discovery.tables.known(*pair).items())


def test_only_announced_pairs_are_probed() -> None:
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    first, second = pairs(2)
    discovery.announce(0.0, first, SIGHT)
    discovery.announce(0.0, second, SIGHT)
    discovery.release(0.0, second)
    assert {ask.pair for ask in run(discovery, hashed(LinuxL4Hash()))} == {first}
    assert len(discovery) == 1


def test_a_planned_way_gets_its_ports() -> None:
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    spine = hashed(LinuxL4Hash())
    (pair,) = pairs(1)
    discovery.announce(0.0, pair, SIGHT)
    run(discovery, spine)
    discovery.aim(1.0, pair, {"spine3": 4})
    run(discovery, spine, 1.0)
    found = discovery.tables.ports(pair.src, pair.dst, "spine3", 4)
    assert len(found) == 4
    assert {spine(pair, port) for port in found} == {"spine3"}


def test_an_affine_hash_saves_probes() -> None:
    counts = {}
    for name, ecmp_hash in (("affine", CrcHash("crc32")), ("other", LinuxL4Hash())):
        discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
        own = pairs(64)
        spine = hashed(ecmp_hash)
        for pair in own:
            discovery.announce(0.0, pair, SIGHT)
        asked = run(discovery, spine)
        assert all(map(discovery.ready, own))
        for pair in own:
            discovery.aim(70.0, pair, {"spine5": 4})
        asked += run(discovery, spine, 70.0, 120.0)
        assert all(len(discovery.tables.ports(pair.src, pair.dst, "spine5", 4)) == 4 for pair in own)
        assert discovery.models.affine(SIGHT.group) is (name == "affine")
        counts[name] = probes(asked) / len(own)
    assert counts["affine"] < 0.5 * counts["other"]


def test_pairs_do_not_wait_for_a_learner_that_has_gone() -> None:
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    own = pairs(20)
    for pair in own:
        discovery.announce(0.0, pair, SIGHT)
    run(discovery, lambda pair, port: None if pair in discovery._learners.values() else "spine1", most_s=0.02)
    (learner,) = discovery._learners.values()
    discovery.release(1.0, learner)
    run(discovery, hashed(LinuxL4Hash()), 1.0)
    assert all(discovery.ready(pair) for pair in own if pair != learner)


def test_a_polarised_pair_is_not_probed_for_ever() -> None:
    spine = hashed(LinuxL4Hash())

    def half(pair: PairKey, port: int) -> str:
        return f"spine{(int(spine(pair, port)[5:]) + 1) // 2 * 2}"

    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    (pair,) = pairs(1)
    discovery.announce(0.0, pair, SIGHT)
    assert probes(run(discovery, half)) < 120
    assert not discovery.ready(pair)
    assert len(discovery.tables.ways(*pair)) == 4
    discovery.aim(1.0, pair, {"spine1": 1})
    assert probes(run(discovery, half, 1.0)) < 120


@pytest.mark.parametrize("count", [1, 20], ids=["sampling", "learning"])
def test_a_pair_without_answers_is_given_up_until_it_is_announced_again(count: int) -> None:
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    own = pairs(count)
    for pair in own:
        discovery.announce(0.0, pair, SIGHT)
    assert probes(run(discovery, lambda pair, port: None)) <= count * 5 * 8
    assert discovery.due(100.0) == []
    for pair in own:
        discovery.announce(100.0, pair, SIGHT)
    run(discovery, hashed(LinuxL4Hash()), 100.0, 160.0)
    assert all(map(discovery.ready, own))


def test_after_a_change_of_routes_doubtful_ports_come_first() -> None:
    before, after = hashed(LinuxL4Hash()), hashed(CrcHash("crc16"))
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    moved, other = pairs(2)
    discovery.announce(0.0, moved, SIGHT)
    run(discovery, before)
    ports = sorted(discovery.tables.known(*moved))
    discovery.announce(2.0, other, SIGHT)
    discovery.doubt(2.0, moved)
    assert discovery.tables.known(*moved) == {}
    first = discovery.due(2.0)
    assert [ask.pair for ask in first] == [moved, other]
    assert list(first[0].ports) == ports[:8]  # no lane uses any of them
    changed = [discovery.answered(2.0, ask, {port: after(ask.pair, port) for port in ask.ports}) for ask in first]
    assert changed == [False, False]  # it was known already
    run(discovery, after, 2.1)
    for pair in (moved, other):
        assert discovery.ready(pair)
        assert all(after(pair, port) == way for port, way in discovery.tables.known(*pair).items())
        assert discovery.doubtful(pair) == []


def test_a_port_that_is_not_answered_does_not_hold_up_the_others() -> None:
    """Lanes wait for them: what comes of each is told at once."""
    way = hashed(LinuxL4Hash())
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    (pair,) = pairs(1)
    discovery.announce(0.0, pair, SIGHT)
    run(discovery, way)
    dead, *ports = sorted(discovery.tables.known(*pair))[:4]
    discovery.use(pair, [dead, *ports])
    discovery.doubt(1.0, pair)
    (ask,) = discovery.due(1.0)
    assert (ask.ports, ask.urgent) == ((dead, *ports), True)
    for port in ports:
        discovery.answered(1.0, replace(ask, ports=(port,)), {port: way(pair, port)})
    assert discovery.doubtful(pair) == [dead]
    discovery.check(1.1, pair, ports[0])
    assert [asked.ports for asked in discovery.due(1.1)] == [(ports[0],)]
    discovery.answered(1.2, ask, {ports[0]: way(pair, ports[0])})
    assert discovery.doubtful(pair) == []  # it is replaced
    assert discovery.given_up(pair) == ""


def test_a_port_whose_probe_is_under_way_is_not_asked_for_again_when_others_are_to_be_checked() -> None:
    spine = hashed(LinuxL4Hash())
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    (pair,) = pairs(1)
    discovery.announce(0.0, pair, SIGHT)
    run(discovery, spine)
    first, second, third = list(discovery.tables.known(*pair))[:3]
    discovery.check(70.0, pair, first)
    (ask,) = discovery.due(70.0)
    assert ask.ports == (first,)
    discovery.check(70.1, pair, second)
    discovery.check(70.1, pair, third)
    assert [ask.ports for ask in discovery.due(70.1)] == [(second, third)]


def test_a_port_that_moved_is_noticed_without_being_told() -> None:
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    (pair,) = pairs(1)
    discovery.announce(0.0, pair, SIGHT)
    before, after = hashed(LinuxL4Hash()), hashed(CrcHash("crc16"))
    run(discovery, before)
    port = next(port for port in discovery.tables.known(*pair) if before(pair, port) != after(pair, port))
    watched = Ask(pair, 2, (port,))
    assert discovery.answered(3.0, watched, {port: after(pair, port)})
    run(discovery, after, 3.0)
    assert all(after(pair, port) == way for port, way in discovery.tables.known(*pair).items())
    assert discovery.ready(pair)


def test_a_host_cannot_answer_for_ports_that_were_not_asked() -> None:
    discovery: Discovery[str] = Discovery(MeasuredTables(), pace=FAST)
    (pair,) = pairs(1)
    discovery.announce(0.0, pair, SIGHT)
    (ask,) = discovery.due(0.0)
    discovery.answered(0.0, ask, {1: "spine1", ask.ports[0]: "spine2"})
    assert discovery.tables.known(*pair) == {ask.ports[0]: "spine2"}
