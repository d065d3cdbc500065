# SPDX-License-Identifier: Apache-2.0
"""Placement, the ideal time, and plans for pinned paths."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import PortRef, Topology, clos, leaf_spine, rail_only
from testbed.allocation.demands import bytes_by_pair, disjoint_paths, ideal_s
from testbed.allocation.placement import PlacementError, leaf_of, place
from testbed.allocation.routes import routes_of
from testbed.workloads import Transfer, Workload
from tests.testbed.kinds import KINDS

MBIT = 1_000_000


def fabric(leaves: int = 4, spines: int = 4, hosts: int = 4) -> Topology:
    return leaf_spine(leaves, spines, hosts, 20 * MBIT)


def workload(kind: str, size: int) -> Workload:
    return KINDS[kind].model_validate({"kind": kind, "bytes": size})


def schedule(kind: str, ranks: int, size: int = 16_000, seed: int = 0) -> tuple[Transfer, ...]:
    return workload(kind, size).schedule(ranks, seed)


@given(leaves=st.integers(2, 6), hosts=st.integers(1, 5))
def test_every_hop_of_a_cross_leaf_ring_crosses_leaves(leaves: int, hosts: int) -> None:
    topology = fabric(leaves, 2, hosts)
    placed = place(topology, "cross_leaf", leaves * hosts)
    assert len(set(placed)) == leaves * hosts
    assert all(leaf_of(topology, a) != leaf_of(topology, b) for a, b in pairwise([*placed, placed[0]]))


def test_in_order_is_the_order_of_the_topology() -> None:
    rails = rail_only(2, 2, MBIT, MBIT)
    assert place(rails, "in_order", 3) == ("d1g1", "d1g2", "d2g1")
    assert place(rails, "packed", 3) == ("d1g1", "d2g1", "d1g2")


def test_packed_fills_leaf_after_leaf_and_random_obeys_its_seed() -> None:
    assert place(fabric(), "packed", 5) == ("h1", "h2", "h3", "h4", "h5")
    assert place(fabric(), "random", 16, 1) == place(fabric(), "random", 16, 1) != place(fabric(), "random", 16, 2)
    assert sorted(place(fabric(), "random", 16, 1)) == sorted(host.name for host in fabric().hosts)


def test_cross_leaf_needs_leaves_and_hosts() -> None:
    with pytest.raises(PlacementError, match="two or more leaves"):
        place(fabric(leaves=1), "cross_leaf", 2)
    with pytest.raises(PlacementError, match="17 ranks need 17 hosts"):
        place(fabric(), "cross_leaf", 17)
    assert len(place(fabric(leaves=4, hosts=2), "cross_leaf", 2)) == 2


@given(ranks=st.integers(2, 16), chunk=st.integers(1, 50))
def test_ideal_of_a_ring_is_the_known_formula(ranks: int, chunk: int) -> None:
    """2 (n - 1) / n * 8 B / R, wherever equal chunks and no oversubscription make it exact."""
    size = ranks * chunk * 8
    topology = fabric()
    demands = bytes_by_pair(schedule("ring_allreduce", ranks, size), 8)
    expected = 2 * (ranks - 1) / ranks * size * 8 / (20 * MBIT)
    assert ideal_s(topology, place(topology, "packed", ranks), demands) == pytest.approx(expected)


def test_ideal_counts_oversubscribed_uplinks() -> None:
    topology = leaf_spine(2, 1, 4, 20 * MBIT, 40 * MBIT)  # 80 Mbit/s of hosts share an uplink of 40
    hosts = place(topology, "cross_leaf", 8)
    demands = bytes_by_pair(schedule("ring_allreduce", 8, 8000), 8)
    assert ideal_s(topology, hosts, demands) == pytest.approx(2 * 2 * 7 / 8 * 8000 * 8 / (20 * MBIT))


def test_ideal_counts_oversubscribed_cores() -> None:
    topology = clos(2, 2, 2, 1, 2, 20 * MBIT, core_rate_bps=10 * MBIT)  # 80 Mbit/s of hosts share 20 to the cores
    hosts = place(topology, "in_order", 8)
    between_pods = {(rank, (rank + 4) % 8): 1000 for rank in range(8)}
    assert ideal_s(topology, hosts, between_pods) == pytest.approx(4 * 8 * 1000 / (20 * MBIT))
    within_pods = {(rank, rank ^ 2): 1000 for rank in range(8)}
    assert ideal_s(topology, hosts, within_pods) == pytest.approx(8 * 1000 / (20 * MBIT))


def test_ideal_of_nothing_is_nothing() -> None:
    assert ideal_s(fabric(), ["h1", "h5"], {}) == 0.0


def test_a_ring_gets_an_uplink_and_a_downlink_for_every_flow() -> None:
    topology = fabric()
    hosts = place(topology, "cross_leaf", 16)
    paths = disjoint_paths(topology, hosts, schedule("ring_allreduce", 16))
    used = Counter(port for rank in range(16) for port in paths[rank, (rank + 1) % 16])
    assert len(used) == 16 * 4
    assert set(used.values()) == {1}


def test_acknowledgements_return_over_the_links_of_their_data() -> None:
    topology = fabric()
    paths = disjoint_paths(topology, place(topology, "cross_leaf", 16), schedule("ring_allreduce", 16))
    assert len(paths) == 2 * 16
    for (src, dst), path in paths.items():
        assert [topology.link_at(port) for port in paths[dst, src]] == [topology.link_at(port) for port in path[::-1]]


def test_every_step_of_an_alltoall_is_free_of_conflicts() -> None:
    topology = fabric()
    hosts = place(topology, "packed", 16)
    transfers = schedule("pairwise_alltoall", 16)
    paths = disjoint_paths(topology, hosts, transfers)
    for step in range(15):
        pairs = {(t.src, t.dst) for t in transfers if t.step == step}
        used = Counter(port for pair in pairs if pair in paths for port in paths[pair])
        assert max(used.values()) == 1


def test_pairs_on_one_leaf_have_no_choice_and_no_plan() -> None:
    topology = fabric()
    assert disjoint_paths(topology, ["h1", "h2"], schedule("ring_allreduce", 2)) == {}


def test_bytes_by_pair_adds_slices_up() -> None:
    transfers = [Transfer(0, 0, 0, 1, 0, 0, 3), Transfer(1, 0, 0, 1, 3, 3, 4), Transfer(1, 0, 1, 0, 0, 0, 1)]
    assert bytes_by_pair(transfers, 4) == {(0, 1): 28, (1, 0): 4}
    assert leaf_of(fabric(), "h5") == PortRef("leaf2", 1).node


@given(shares=st.lists(st.integers(1, 9), min_size=1, max_size=4), slices=st.integers(1, 40))
def test_routes_carry_their_shares_but_for_a_transfer(shares: list[int], slices: int) -> None:
    parts = [share / sum(shares) for share in shares]
    transfers = [Transfer(0, part, 0, 1, 10 * part, 10 * part, 10) for part in range(slices)]
    others = [Transfer(0, 0, 1, 0, 0, 0, 10)]
    routes = routes_of([*transfers, *others], lambda src, dst: parts if src == 0 else (1.0,))
    assert routes[-1] == 0
    for route, part in enumerate(parts):
        assert abs(routes[:-1].count(route) - part * slices) < max(1, len(parts) - 1)
