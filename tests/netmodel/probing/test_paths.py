# SPDX-License-Identifier: Apache-2.0
import random
from collections.abc import Iterable
from itertools import chain

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import LinuxL4Hash, clos, leaf_spine, paths_of_ports
from netmodel.probing.observations import Observation
from netmodel.probing.paths import PairPaths, paths_of
from netmodel.probing.simulated import Fabric, Naming
from netmodel.probing.steadiness import steadiness

PORTS = range(0xC000, 0xC000 + 64)
TWO_TIERS = leaf_spine(2, 4, 2, 10**9)
THREE_TIERS = clos(2, 2, 2, 2, 1, 10**9)


def only(observations: Iterable[Observation]) -> PairPaths:
    (found,) = paths_of(observations)
    return found


def kinds(found: PairPaths) -> list[str]:
    return [finding.kind for finding in found.findings]


def at(ttl: int, router: str, port: int, at_s: float) -> Observation:
    return Observation("10.0.0.1", "10.0.1.1", "udp", port, 4791, ttl, "hop", router, 1e-4, at_s)


def unanswered(observation: Observation) -> Observation:
    return msgspec.structs.replace(observation, answer="none", router=None, rtt_s=None)


@pytest.mark.parametrize("naming", ["interface", "router"])
def test_every_port_is_on_the_path_that_its_packets_take(naming: Naming) -> None:
    fabric = Fabric(THREE_TIERS, LinuxL4Hash(), naming)
    found = only(fabric.probes("h1", "h4", PORTS, range(1, 7)))
    paths, taken = paths_of_ports(THREE_TIERS, "h1", "h4", LinuxL4Hash(), list(PORTS))
    expected: dict[tuple[str, ...], tuple[int, ...]] = {}
    for port, index in zip(PORTS, taken.tolist(), strict=True):
        hops = tuple(fabric.routers(paths[index]))
        expected[hops] = (*expected.get(hops, ()), port)
    assert {path.hops: path.ports for path in found.paths} == expected
    assert found.routers == 5
    assert found.pinnable
    assert not found.undecided
    assert not found.silent
    assert sum(found.shares()) == pytest.approx(1)
    assert all(path.rtt_s == pytest.approx(60e-6) and path.unanswered == 0 for path in found.paths)


def test_a_probe_of_the_topmost_tier_tells_the_path_of_a_port() -> None:
    fabric = Fabric(THREE_TIERS, LinuxL4Hash())
    some = fabric.probes("h1", "h4", PORTS[:32], range(1, 7))
    rest = fabric.probes("h1", "h4", PORTS[32:], [3], at_s=1.0)
    whole = only(fabric.probes("h1", "h4", PORTS, range(1, 7)))
    found = only([*some, *rest])
    assert {path.hops: path.ports for path in found.paths} == {path.hops: path.ports for path in whole.paths}


@given(st.randoms(use_true_random=False))
def test_lost_answers_never_put_a_port_on_a_wrong_path(chance: random.Random) -> None:
    fabric = Fabric(TWO_TIERS, LinuxL4Hash())
    sent = list(fabric.probes("h1", "h3", PORTS[:24], range(1, 5)))
    truth = {port: path.hops for path in only(sent).paths for port in path.ports}
    kept = [observation if chance.random() < 0.6 else unanswered(observation) for observation in sent]
    found = only(kept)
    for path in found.paths:
        for port in path.ports:
            assert all(seen in (None, real) for seen, real in zip(path.hops, truth[port], strict=False))
    ports = [*chain.from_iterable(path.ports for path in found.paths), *found.undecided, *found.silent]
    assert sorted(ports) == list(PORTS[:24])


def test_a_port_whose_answers_fit_two_paths_is_undecided() -> None:
    seen = [at(1, "10.9.0.1", port, port / 1e3) for port in (1, 2, 3)]
    seen += [at(2, f"10.9.1.{port}", port, 1.0) for port in (1, 2)]
    found = only(seen)
    assert [path.ports for path in found.paths] == [(1,), (2,)]
    assert found.undecided == (3,)


def test_more_paths_than_a_fabric_has_are_refused() -> None:
    def seen(count: int) -> list[Observation]:
        return [at(2, f"10.{port // 200}.{port % 200}.1", port, port / 1e3) for port in range(count)]

    assert len(only(seen(4_096)).paths) == 4_096
    found = only(seen(4_097))
    assert kinds(found) == ["scattered"]
    assert not found.pinnable
    assert found.undecided == tuple(range(4_097))


def test_no_answers_are_said() -> None:
    found = only(map(unanswered, Fabric(TWO_TIERS, LinuxL4Hash()).probes("h1", "h3", PORTS, [2])))
    assert kinds(found) == ["no answers"]
    assert not found.pinnable
    assert found.silent == tuple(PORTS)
    assert "no router answered the 64 probes from 10.0.0.1 to 10.0.1.1" in found.findings[0].statement


@pytest.mark.parametrize(
    ("port", "ttl", "answered", "pinnable"),
    [(4791, 2, False, False), (4791, 2, True, True), (4791, 3, True, False), (33434, 2, True, True)],
)
def test_the_first_router_alone_tells_no_path_unless_it_is_the_only_one(
    port: int, ttl: int, answered: bool, pinnable: bool
) -> None:
    """A closed port of the destination may tell that it was reached, where that of the flow takes probes in silence."""
    seen = [at(1, "10.9.0.1", source, source / 1e3) for source in PORTS]
    behind = unanswered(at(ttl, "10.0.1.1", PORTS[0], 1.0))
    if answered:
        behind = msgspec.structs.replace(behind, answer="destination", router="10.0.1.1", destination_port=port)
    (found,) = (pair for pair in paths_of([*seen, behind]) if pair.pair.destination_port == 4791)
    assert found.pinnable == pinnable
    assert kinds(found) == ([] if pinnable else ["first router"])
    assert [path.ports for path in found.paths] == [tuple(PORTS)]


def test_two_first_routers_tell_no_path_either() -> None:
    """A host with two uplinks spreads its flows over two leaves, and what is behind them is silent."""
    seen = [at(1, f"10.9.0.{1 + source % 2}", source, source / 1e3) for source in PORTS]
    found = only([*seen, *(unanswered(at(2, "10.0.1.1", source, 1.0)) for source in PORTS)])
    assert (kinds(found)[0], found.pinnable) == ("first router", False)
    assert "only the first router, 10.9.0.1 or 10.9.0.2, answered" in found.findings[0].statement


def test_probes_that_all_reach_the_destination_ask_no_router() -> None:
    """A closed port is asked only whether the host is there, and a host on the same link has no router before it."""
    found = only(msgspec.structs.replace(at(4, "10.0.1.1", port, 0.0), answer="destination") for port in PORTS)
    assert (found.findings, found.paths, found.pinnable) == ((), (), False)


def test_few_answers_are_told_and_do_not_hinder() -> None:
    sent = list(Fabric(TWO_TIERS, LinuxL4Hash()).probes("h1", "h3", PORTS, [2]))
    found = only([observation if place % 4 == 0 else unanswered(observation) for place, observation in enumerate(sent)])
    assert kinds(found) == ["few answers"]
    assert found.pinnable
    assert "16 of 64" in found.findings[0].statement


def test_sprayed_packets_cannot_be_pinned() -> None:
    chance = random.Random(1)
    seen = [at(2, f"10.9.1.{chance.randrange(4)}", port, port + k / 10) for port in range(20) for k in range(4)]
    found = only(seen)
    assert kinds(found) == ["sprayed"]
    assert not found.pinnable


@pytest.mark.parametrize("paths", [2, 4, 16])
def test_spraying_is_hardly_ever_taken_for_a_change_of_routes(paths: int) -> None:
    taken = 0
    for seed in range(300):
        chance = random.Random(seed)
        order = [(port, chance.random()) for port in range(10) for _ in range(3)]
        seen = [at(2, f"10.9.1.{chance.randrange(paths)}", port, at_s) for port, at_s in order]
        taken += steadiness(seen).verdict in ("moved", "steady")
    assert taken <= 3


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_changes_of_routes_are_told_apart_from_spraying(seed: int, changes: int) -> None:
    chance = random.Random(seed)
    seen = []
    table = {port: chance.randrange(4) for port in range(32)}
    for era in range(changes + 1):
        for at_s in range(8):
            seen += [at(2, f"10.9.1.{table[port]}", port, 100 * era + at_s + port / 100) for port in table]
        for port in chance.sample(sorted(table), 10):
            table[port] = (table[port] + 1) % 4
    chance.shuffle(seen)
    found = only(seen)
    assert len(found.steadiness.changes_s) == changes
    assert found.steadiness.verdict == "moved"
    assert kinds(found) == ["moved"]
    last = {
        port: observation.router
        for observation in sorted(seen, key=lambda observation: observation.at_s)
        for port in [observation.source_port]
    }
    assert {port: path.hops[1] for path in found.paths for port in path.ports} == last


def test_one_change_with_few_probes_is_unclear() -> None:
    found = only([at(2, "10.9.1.1", 7, 0.0), at(2, "10.9.1.2", 7, 1.0)])
    assert kinds(found) == ["unclear"]
    assert not found.pinnable


def test_a_hash_without_ports_is_suspected() -> None:
    found = only(chain.from_iterable([at(1, "10.9.0.1", port, port), at(2, "10.9.1.1", port, port)] for port in PORTS))
    assert kinds(found) == ["one path"]
    assert found.pinnable


def test_uneven_shares_are_told() -> None:
    seen = [at(2, f"10.9.1.{max(1, port % 5)}", port, port) for port in range(1000)]
    assert kinds(only(seen)) == ["uneven"]
    assert kinds(only(at(2, f"10.9.1.{port % 5}", port, port) for port in range(1000))) == []
