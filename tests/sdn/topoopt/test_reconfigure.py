# SPDX-License-Identifier: Apache-2.0
"""OCS-reconfig: demand first, every server reachable, every interface used once."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.topoopt import on_interfaces, reconfigure, two_edge_replacement, utility
from tests.sdn.topoopt.graphs import digraph


def test_demand_diminishes_with_parallel_circuits() -> None:
    demand = np.zeros((3, 3))
    demand[0, 1], demand[0, 2] = 10.0, 6.0
    circuits = Counter(reconfigure(demand, 2, connected=False))
    assert circuits[0, 1] == circuits[0, 2] == 1  # 10 / 2 < 6
    assert Counter(reconfigure(demand, 2, diminish=1.0, connected=False))[0, 1] == 2
    assert utility([(0, 1), (0, 1), (0, 2)], demand) == 10 * 0.75 + 6 * 0.5


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(1, 4), st.sampled_from([0.5, 1.0]), st.integers(0, 2**32 - 1))
def test_circuits_are_those_of_algorithm_5(servers: int, degree: int, diminish: float, seed: int) -> None:
    """The first pair with the highest demand of all that have interfaces, searched for circuit by circuit."""
    demand = np.random.default_rng(seed).integers(0, 4, (servers, servers)) * 1.0
    left, free = demand.copy(), np.full((2, servers), degree)
    wanted = []
    while (usable := np.outer(*(free > 0)) & ~np.eye(servers, dtype=np.bool_)).any():
        pair = divmod(int(np.where(usable, left, -1.0).argmax()), servers)
        wanted.append(pair)
        left[pair] *= diminish
        free[0, pair[0]] -= 1
        free[1, pair[1]] -= 1
    assert list(reconfigure(demand, degree, diminish=diminish, connected=False)) == sorted(wanted)


def test_two_components_are_joined_at_the_least_cost() -> None:
    demand = np.zeros((4, 4))
    demand[0, 1] = demand[1, 0] = 9.0
    demand[2, 3], demand[3, 2] = 9.0, 1.0
    circuits = ((0, 1), (1, 0), (2, 3), (3, 2))
    assert reconfigure(demand, 1, connected=False) == circuits
    joined = two_edge_replacement(4, circuits, demand)
    assert nx.is_strongly_connected(digraph(4, joined))
    assert (3, 2) not in joined  # the cheaper of the second part
    assert utility(joined, demand) == 0.5 * (9 + 9)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_every_interface_is_used_once_and_every_server_is_reachable(servers: int, degree: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    demand = generator.integers(0, 100, (servers, servers)) * (generator.random((servers, servers)) < 0.5) * 1.0
    np.fill_diagonal(demand, 0)
    circuits = reconfigure(demand, degree)
    assert nx.is_strongly_connected(digraph(servers, circuits))
    for end in (0, 1):
        assert max(Counter(circuit[end] for circuit in circuits).values()) <= degree
    layers = on_interfaces(servers, circuits, degree)
    assert sorted(circuit for layer in layers for circuit in layer) == sorted(circuits)
    for layer in layers:
        for end in (0, 1):
            assert len({circuit[end] for circuit in layer}) == len(layer)


def test_invalid_arguments_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="not 4 and 0"):
        reconfigure(np.zeros((4, 4)), 0)
    with pytest.raises(ValueError, match="server 0 needs 2 transmitters, but has 1 interfaces"):
        on_interfaces(3, [(0, 1), (0, 2)], 1)
