# SPDX-License-Identifier: Apache-2.0
"""Jobs on the same servers with NICs of their own: neither has a circuit of the other, nor its delay."""

from __future__ import annotations

import numpy as np
import pytest

from netmodel import PortRef, TopologyError, check_circuits, direct_connect
from sdn.topoopt import Demand, data_parallel, find_topology
from sdn.topoopt.relays import RelayPlan
from sdn.topoopt.tenants import Tenancy, Tenant, share
from sim.fluid import Messages, Simulation
from sim.paths import Paths

RATE = 1e6
FABRIC = direct_connect(8, 4, int(RATE))
HOSTS = [host.name for host in FABRIC.hosts]
REDUCED = data_parallel(8, 1e6)
EXCHANGED = Demand(8, (), 1e6 * np.roll(np.eye(8), 2, axis=1))


def flows(plan: RelayPlan, demand: Demand) -> list[tuple[tuple[PortRef, ...], float]]:
    """The circuits and bytes of what servers send: hops of the ring +1 of an all-reduce, and other transfers."""
    sent = {(a, b): float(demand.mp[a, b]) for a, b in zip(*demand.mp.nonzero(), strict=True)}
    for group in demand.groups:
        members = len(group.members)
        sent |= {(a, (a + 1) % members): group.sent_bytes / members for a in range(members)}
    return [(plan.connections[HOSTS[a], HOSTS[b]][0].there.ports, size) for (a, b), size in sent.items()]


def ends_s(*jobs: list[tuple[tuple[PortRef, ...], float]]) -> list[float]:
    """By job: when its last flow ends, if all begin together. A circuit is the link of the NIC that sends."""
    every = [flow for job in jobs for flow in job]
    number = {port: place for place, port in enumerate(sorted({port for ports, _ in every for port in ports}))}
    longest = max(len(ports) for ports, _ in every)
    rows = [[[number[port] for port in ports] + [-1] * (longest - len(ports))] for ports, _ in every]
    simulation = Simulation([RATE] * len(number))
    simulation.add_channels(Paths.of(np.array(rows, dtype=np.int32)))
    simulation.add_messages(Messages(np.arange(len(every)), np.array([8 * size for _, size in every])))
    simulation.advance()
    parts = np.split(simulation.delivered_s(), np.cumsum([len(job) for job in jobs])[:-1])
    return [float(part.max()) for part in parts]


def test_tenants_share_servers_and_no_circuit() -> None:
    circuits, tenancies = share(FABRIC, [Tenant(REDUCED, HOSTS, [0, 1]), Tenant(EXCHANGED, HOSTS, [2, 3])])
    check_circuits(FABRIC, circuits)
    used = [{port.port - 1 for way in tenancy.plan.ways.values() for port in way.ports} for tenancy in tenancies]
    assert used == [{0, 1}, {2, 3}]
    assert circuits == {**tenancies[0].circuits, **tenancies[1].circuits}
    both = ends_s(*(flows(one.plan, demand) for one, demand in zip(tenancies, (REDUCED, EXCHANGED), strict=True)))
    alone = [ends_s(flows(one.plan, demand))[0] for one, demand in zip(tenancies, (REDUCED, EXCHANGED), strict=True)]
    assert both == pytest.approx(alone)


def test_without_a_partition_one_job_slows_the_other() -> None:
    """Two jobs on the rings +1 and +3 of the same NICs: what one relays delays the other."""
    _, (tenancy,) = share(FABRIC, [Tenant(REDUCED, HOSTS, [0, 1])])
    own, other = flows(tenancy.plan, REDUCED), flows(tenancy.plan, EXCHANGED)
    assert ends_s(own, other)[0] > 1.2 * ends_s(own)[0]


def test_a_tenant_gets_what_topology_finder_finds_for_its_degree() -> None:
    _, (tenancy,) = share(FABRIC, [Tenant(REDUCED, HOSTS, [1, 3])])
    assert isinstance(tenancy, Tenancy)
    assert tenancy.found.layers == find_topology(REDUCED, 2).layers
    assert tenancy.circuits.keys() == {"ocs2", "ocs4"}


def test_impossible_tenants_are_refused() -> None:
    with pytest.raises(TopologyError, match="optical port 1 of 'ocs2' is used twice, by two sets of circuits"):
        share(FABRIC, [Tenant(REDUCED, HOSTS, [0, 1]), Tenant(EXCHANGED, HOSTS, [1, 2])])
    with pytest.raises(ValueError, match="a demand of 8 servers does not fit 4 hosts"):
        share(FABRIC, [Tenant(REDUCED, HOSTS[:4], [0])])
    with pytest.raises(TopologyError, match="a degree of 2 is impossible: host 'h1' has 4 NICs"):
        share(FABRIC, [Tenant(REDUCED, HOSTS, [3, 4])])
