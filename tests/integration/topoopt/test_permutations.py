# SPDX-License-Identifier: Apache-2.0
"""Eight hosts of degree 2 in two rings chosen by TopologyFinder: connectivity of all pairs, all-reduce on both rings.

h1 .. h8: nic0 - ocs1, nic1 - ocs2. The ring "+p" on a switch is a circuit from every host i to host i + p, one-way.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from emul import MininetFabric
from netmodel import PortRef, direct_connect
from sdn.topoopt import data_parallel, find_topology
from sdn.topoopt.patching import patch
from sdn.topoopt.relays import RelayPlan, plan_relays
from tests.integration.topoopt.direct import FRAME, RATE_BPS, arrives, carried, names
from tests.integration.topoopt.rings import all_reduce

pytestmark = pytest.mark.sandboxed


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MininetFabric, RelayPlan]]:
    """Eight hosts of degree 2 in the rings that TopologyFinder finds, one-shot before the job."""
    topology = direct_connect(8, 2, RATE_BPS)
    found = find_topology(data_parallel(8, 1e6), 2)
    hosts = names(8)
    routes = {(hosts[a], hosts[b]): [[hosts[s] for s in way] for way in ways] for (a, b), ways in found.routes.items()}
    with MininetFabric(topology, log_dir=tmp_path_factory.mktemp("eight")) as fabric:
        fabric.set_circuits(patch(topology, hosts, found.layers))
        plan = plan_relays(topology, fabric.circuits, hosts, routes=routes)
        fabric.set_relays(plan)
        yield fabric, plan


def test_all_pairs_are_connected_and_the_bandwidth_tax_is_as_predicted(eight: tuple[MininetFabric, RelayPlan]) -> None:
    fabric, plan = eight
    ways = [connection.there for (connection,) in plan.connections.values()]
    assert len(ways) == 8 * 7
    before = carried(fabric)
    for way in ways:
        assert arrives(fabric, way)
    measured = (carried(fabric) - before) / (FRAME * len(ways))
    predicted = sum(way.hops for way in ways) / len(ways)
    assert measured == predicted
    for (connection,) in plan.connections.values():
        assert arrives(fabric, connection.back)


def test_ring_all_reduce_over_all_permutations_at_once(eight: tuple[MininetFabric, RelayPlan]) -> None:
    fabric, plan = eight
    hosts = names(8)
    generator = np.random.default_rng(3)
    data = {host: generator.integers(-(2**62), 2**62, 16 * 1024, dtype=np.int64) for host in hosts}
    expected = sum(data.values(), start=np.zeros(16 * 1024, dtype=np.int64))
    for nic, stride in enumerate((1, 3), start=1):
        for i, host in enumerate(hosts):
            there = plan.connections[host, hosts[(i + stride) % 8]][0].there
            assert (there.hops, there.ports[0].port) == (1, nic)  # data of both rings go directly
    before = fabric.link_counters()
    all_reduce(fabric, data, (1, 3), RATE_BPS, timeout_s=60)
    after = fabric.link_counters()
    assert all(np.array_equal(got, expected) for got in data.values())
    each = 2 * 7 / 8 * (16 * 1024 * 8 / 2)  # what a host sends in either ring
    for switch in ("ocs1", "ocs2"):
        for port in range(1, 9):
            counted = PortRef(switch, port)
            assert after[counted].tx_bytes - before[counted].tx_bytes > each
