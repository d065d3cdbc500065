# SPDX-License-Identifier: Apache-2.0
"""OCS-vClos on a fabric: places jobs on hosts, with the circuits of their virtual Clos. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from netmodel import Circuits, PortRef, Topology, duplex, joined
from sdn.isolation.idle_gpus import IdleGpus
from sdn.isolation.ocs_cluster import Circuit, Level, OcsCluster, OpticalPort
from sdn.isolation.ocs_vclos import place
from sdn.isolation.virtual_clos import SubClos, VirtualClos, hosts_by_gpu, must_wait


@dataclass(frozen=True, slots=True)
class OpticalClos:
    """The circuits of the optical switches, and the steering that isolates jobs on `netmodel.with_circuits` of them."""

    circuits: Circuits
    clos: VirtualClos


def placed(topology: Topology, jobs: Mapping[str, int]) -> OpticalClos:
    """Places jobs, given by their numbers of hosts, one after the other on a fabric without circuits.

    Raises ValueError for a job that is larger than the cluster, or that has to wait until others have ended.
    """
    cluster, ports = ocs_cluster_of(topology)
    hosts = hosts_by_gpu(topology)
    parts: list[Circuits] = []
    made: list[SubClos] = []
    for job, size in jobs.items():
        allocation = place(cluster, job, size)
        if allocation is None:
            raise must_wait(job, size, len(cluster.idle))
        cluster = cluster.take(allocation)
        parts.append(_patched(topology, ports, allocation.circuits))
        uplinks = sorted(ports[end] for circuit in allocation.circuits for end in circuit.ports if end.level == "leaf")
        made.append(SubClos(job, tuple(hosts[gpu] for gpu in allocation.gpus[:size]), tuple(uplinks)))
    return OpticalClos(joined(*parts), VirtualClos(tuple(made)))


def ocs_cluster_of(topology: Topology) -> tuple[OcsCluster, dict[OpticalPort, PortRef]]:
    """The cluster of a leaf-spine whose cables end in optical switches, and the port of every number.

    Each host is a server of one GPU. All GPUs are idle, and there are no circuits. A leaf with fewer hosts than others
    has servers that are never idle.
    """
    numbers = {name: number for number, name in enumerate(_names(topology, "ocs"))}
    ports: dict[OpticalPort, PortRef] = {}
    ocs: dict[OpticalPort, int] = {}
    levels: tuple[Level, ...] = ("leaf", "spine")
    plugged: defaultdict[str, list[PortRef]] = defaultdict(list)
    for port in sorted(topology.linked_ports()):
        if topology.peer(port).node in numbers:
            plugged[port.node].append(port)
    for level in levels:
        for number, name in enumerate(_names(topology, level)):
            for place_there, port in enumerate(plugged[name]):
                own = OpticalPort(level, number, place_there)
                ports[own], ocs[own] = port, numbers[topology.peer(port).node]
    gpus = hosts_by_gpu(topology)
    leaves, spines = (len(_names(topology, level)) for level in levels)
    servers = 1 + max((gpu.server for gpu in gpus), default=0)
    idle = IdleGpus.of(leaves, servers, 1, gpus)
    return OcsCluster(leaves, spines, servers, 1, idle, ocs, frozenset()), ports


def _names(topology: Topology, role: str) -> list[str]:
    return [switch.name for switch in topology.switches if switch.role == role]


def _patched(topology: Topology, ports: Mapping[OpticalPort, PortRef], circuits: frozenset[Circuit]) -> Circuits:
    """The circuits as those of the topology's optical switches."""
    pairs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for circuit in sorted(circuits):
        a, b = (topology.peer(ports[end]) for end in circuit.ports)
        pairs[a.node].append((a.port, b.port))
    return {name: duplex(both) for name, both in pairs.items()}
