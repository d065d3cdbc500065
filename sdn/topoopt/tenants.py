# SPDX-License-Identifier: Apache-2.0
"""Several jobs on the same servers, each with NICs and circuits of its own (TopoOpt, section 7). Pure.

"TopoOpt can leverage NVIDIA's MIG to treat one physical server as multiple logical servers in its topology." A logical
server has some of the GPU parts and some of the NICs of its physical one, so jobs share no circuit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from netmodel import Circuits, Topology, joined
from sdn.topoopt.demand import Demand
from sdn.topoopt.finder import DirectTopology, find_topology
from sdn.topoopt.patching import patch
from sdn.topoopt.relays import RelayPlan, plan_relays


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job on logical servers: server i of its demand is on `hosts[i]`, and has NICs with the indices `nics`."""

    demand: Demand
    hosts: Sequence[str]
    nics: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Tenancy:
    """What a tenant gets."""

    found: DirectTopology
    circuits: Circuits
    plan: RelayPlan


def share(topology: Topology, tenants: Sequence[Tenant]) -> tuple[Circuits, tuple[Tenancy, ...]]:
    """The circuits of all tenants together, and those and the relays of each, by TopologyFinder on its own NICs.

    Relays are hosts of the tenant itself, by its own NICs. Raises ValueError for a demand of another number of servers,
    TopologyError (a ValueError) where two tenants have one NIC of a host, and as `find_topology` and `plan_relays` do.
    """
    got = []
    for tenant in tenants:
        if tenant.demand.servers != len(tenant.hosts):
            raise ValueError(f"a demand of {tenant.demand.servers} servers does not fit {len(tenant.hosts)} hosts")
        found = find_topology(tenant.demand, len(tenant.nics))
        circuits = patch(topology, tenant.hosts, found.layers, nics=tenant.nics)
        named = {
            (tenant.hosts[a], tenant.hosts[b]): [[tenant.hosts[at] for at in way] for way in ways]
            for (a, b), ways in found.routes.items()
        }
        got.append(Tenancy(found, circuits, plan_relays(topology, circuits, tenant.hosts, routes=named)))
    return joined(*(tenancy.circuits for tenancy in got)), tuple(got)
