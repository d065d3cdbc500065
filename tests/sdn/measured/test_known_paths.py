# SPDX-License-Identifier: Apache-2.0
"""Plans that grow with what probes find, on fabrics of two tiers and of three."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import PortRef, Topology, clos, equal_cost_paths, leaf_spine
from sdn.measured.known_paths import KnownPaths

RATE = 10**9
TWO_TIERS = leaf_spine(4, 4, 4, RATE)


def inner(topology: Topology, source: str, destination: str) -> list[tuple[PortRef, ...]]:
    """The paths between two hosts, without the links of hosts."""
    return [path[1:-1] for path in equal_cost_paths(topology, source, destination)]


def plan_of(topology: Topology) -> KnownPaths[int, PortRef]:
    between = [port for port in topology.linked_ports() if not topology.has_host(port.node)]
    return KnownPaths(dict.fromkeys(between, RATE))


def worst(plan: KnownPaths[int, PortRef], names: range) -> int:
    load: dict[PortRef, int] = {}
    for name in names:
        for link in plan.path(name) or ():
            load[link] = load.get(link, 0) + 1
    return max(load.values())


def test_links_that_concern_nobody_move_nobody() -> None:
    """Callers who name no link do not look at who has moved."""
    plan, names = plan_of(leaf_spine(2, 2, 3, RATE)), range(2)
    paths = inner(leaf_spine(2, 2, 3, RATE), "h1", "h4")
    plan.arrive(0, 1.0, paths, 0)
    plan.arrive(1, 1.0, [path for path in paths if path == plan.path(0)], 0)
    assert plan.mend([], 16) == plan.cut([], 16) == []
    assert worst(plan, names) == 2
    assert plan.mend(paths[0], 16)
    assert worst(plan, names) == 1


@pytest.mark.parametrize("topology", [leaf_spine(4, 4, 4, RATE), clos(2, 2, 2, 2, 2, RATE)], ids=["two", "three"])
def test_more_known_paths_give_better_plans_with_few_moves(topology: Topology) -> None:
    hosts = [host.name for host in topology.hosts]
    ends = [(host, hosts[(place + len(hosts) // 2) % len(hosts)]) for place, host in enumerate(hosts)]
    chance = random.Random(1)
    plan = plan_of(topology)
    lists = [chance.sample(paths, len(paths)) for paths in (inner(topology, *pair) for pair in ends)]
    for name, paths in enumerate(lists):
        plan.arrive(name, 1.0, paths[:1], 16)
    names = range(len(ends))
    levels, moves = [worst(plan, names)], 0
    for known in range(1, 4):
        before = {name: plan.path(name) for name in names}
        for name, paths in enumerate(lists):
            said = plan.learn(name, paths[: known + 1], 16)
            after = {other: plan.path(other) for other in names}
            assert {other for other in names if after[other] != before[other]} <= set(said)
            before = after
            moves += len(said)
        levels.append(worst(plan, names))
    assert all(later <= earlier for earlier, later in pairwise(levels))
    assert levels[-1] == 1
    assert plan.congestion == pytest.approx(1 / RATE)
    assert moves <= 2 * len(ends)


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_every_commodity_is_on_a_live_path_that_it_knows(seed: int) -> None:
    chance = random.Random(seed)
    topology = leaf_spine(3, 3, 2, RATE, parallel_links=2)
    hosts = [host.name for host in topology.hosts]
    plan = plan_of(topology)
    known: dict[int, set[tuple[PortRef, ...]]] = {}
    dead: set[PortRef] = set()
    for step in range(30):
        act = chance.choice(["arrive", "learn", "unlearn", "depart", "cut", "mend"])
        links = chance.sample(sorted(plan._number), 2)
        name = chance.choice(sorted(known)) if known else None
        before = {each: plan.path(each) for each in known}
        if act == "arrive":
            source = chance.choice(hosts[:2])
            paths = chance.sample(inner(topology, source, chance.choice(hosts[2:])), chance.randint(0, 3))
            known[step] = set(paths)
            moved = plan.arrive(step, 1.0, paths, 8)
        elif act == "cut":
            dead |= set(links)
            moved = plan.cut(links, 8)
        elif act == "mend":
            dead -= set(links)
            moved = plan.mend(links, 8)
        elif name is None:
            continue
        elif act == "depart":
            del known[name]
            moved = plan.depart(name, 8)
        elif act == "unlearn":
            gone = chance.sample(sorted(known[name]), min(1, len(known[name])))
            known[name] -= set(gone)
            moved = plan.unlearn(name, gone, 8)
        else:
            fresh = chance.sample(inner(topology, "h1", "h3"), 2)
            known[name] |= set(fresh)
            moved = plan.learn(name, fresh, 8)
        for each, paths_of_it in known.items():
            alive = {path for path in paths_of_it if dead.isdisjoint(path)}
            path = plan.path(each)
            assert (path in alive) if alive else path is None
            assert each in moved or each not in before or before[each] == path


def test_a_commodity_stays_where_nothing_better_is_known() -> None:
    topology = leaf_spine(2, 4, 1, RATE)
    plan = plan_of(topology)
    paths = inner(topology, "h1", "h2")
    plan.arrive(1, 1.0, paths[2:3], 16)
    assert plan.learn(1, paths, 16) == []
    assert plan.path(1) == paths[2]


def test_mistakes_of_callers_are_told() -> None:
    plan = plan_of(leaf_spine(2, 2, 1, RATE))
    plan.arrive(1, 1.0, [], 16)
    assert plan.path(1) is None
    with pytest.raises(ValueError, match="commodity 1 already"):
        plan.arrive(1, 1.0, [], 16)
    with pytest.raises(KeyError, match="no commodity 2"):
        plan.path(2)
    with pytest.raises(KeyError, match="leaf9:1 has no rate"):
        plan.learn(1, [(PortRef("leaf9", 1),)], 16)
    assert plan.path(1) is None
