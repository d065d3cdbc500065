# SPDX-License-Identifier: Apache-2.0
"""A leaf-spine whose cables run through optical circuit switches (OCS), as a scheduler of jobs sees it. Pure.

Every leaf and spine port that faces the other level is plugged into an OCS, which joins any two of its ports by a
circuit and can do so anew at any time. A circuit that a job uses stays as it is until the job ends: changing it would
cut the job's traffic for the switching time, 50 ms in the paper's section 7.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sdn.isolation.cluster import Cluster, Gpu

Level = Literal["leaf", "spine"]


@dataclass(frozen=True, slots=True, order=True)
class OpticalPort:
    """A port of leaf or spine `switch` that is plugged into an OCS, numbered from 0 among those of its switch."""

    level: Level
    switch: int
    number: int


@dataclass(frozen=True, slots=True, order=True)
class Circuit:
    """Light between two ports of one OCS, both ways; `a` is the smaller port."""

    a: OpticalPort
    b: OpticalPort

    @classmethod
    def of(cls, one: OpticalPort, other: OpticalPort) -> "Circuit":
        """Between two ports, in whatever order. Raises ValueError when they are one."""
        if one == other:
            raise ValueError(f"a circuit cannot join {one.level} {one.switch} port {one.number} to itself")
        return cls(min(one, other), max(one, other))

    @property
    def ports(self) -> tuple[OpticalPort, OpticalPort]:
        """Both ends."""
        return self.a, self.b


@dataclass(frozen=True, slots=True)
class OcsAllocation:
    """What one job holds. `made`: those of its circuits that were not there before.

    Stage 2 joins its leaves by one spine or, when there are two, by circuits from leaf to leaf; stage 3 by several.
    """

    job: str
    stage: int
    gpus: tuple[Gpu, ...]
    circuits: frozenset[Circuit] = frozenset()
    made: frozenset[Circuit] = frozenset()

    @property
    def leaves(self) -> list[int]:
        """The leaves with GPUs of the job, ascending."""
        return sorted({gpu.leaf for gpu in self.gpus})


@dataclass(frozen=True, slots=True)
class OcsCluster:
    """GPUs as in `Cluster`, the OCS of every port, the circuits that there are, and which of them are some job's."""

    leaves: int
    spines: int
    servers_per_leaf: int
    gpus_per_server: int
    idle: frozenset[Gpu]
    ocs: Mapping[OpticalPort, int]
    circuits: frozenset[Circuit]
    busy: frozenset[Circuit] = frozenset()

    @classmethod
    def empty(
        cls, leaves: int, spines: int, servers_per_leaf: int, gpus_per_server: int, switches: int
    ) -> "OcsCluster":
        """Nothing is taken, every leaf has a circuit to every spine. The one from leaf n to spine m is on OCS
        (n + m) mod `switches`, so that the ports of each are spread over all. Raises ValueError for counts below one.
        """
        if switches < 1:
            raise ValueError(f"a cluster needs one or more optical switches, not {switches}")
        plain = Cluster.empty(leaves, spines, servers_per_leaf, gpus_per_server)
        ends = {
            (leaf, spine): (OpticalPort("leaf", leaf, spine), OpticalPort("spine", spine, leaf))
            for leaf in range(leaves)
            for spine in range(spines)
        }
        ocs = {port: sum(pair) % switches for pair, both in ends.items() for port in both}
        circuits = frozenset(Circuit.of(*both) for both in ends.values())
        return cls(leaves, spines, servers_per_leaf, gpus_per_server, plain.idle, ocs, circuits)

    @property
    def gpus(self) -> int:
        """All GPUs, idle or not."""
        return self.leaves * self.servers_per_leaf * self.gpus_per_server

    @property
    def switches(self) -> list[int]:
        """The numbers of the OCSs."""
        return sorted(set(self.ocs.values()))

    def idle_servers(self, leaf: int) -> list[int]:
        """The servers of a leaf of which every GPU is idle; their number is R[n]."""
        counts = Counter(gpu.server for gpu in self.idle if gpu.leaf == leaf)
        return sorted(server for server, count in counts.items() if count == self.gpus_per_server)

    def free_ports(self) -> dict[tuple[Level, int, int], list[OpticalPort]]:
        """The ports that no job uses, lit or dark, by level, switch and OCS; C^k_n and C^k_m are their numbers."""
        used = {port for circuit in self.busy for port in circuit.ports}
        free: dict[tuple[Level, int, int], list[OpticalPort]] = {}
        for port, ocs in sorted(self.ocs.items()):
            if port not in used:
                free.setdefault((port.level, port.switch, ocs), []).append(port)
        return free

    def take(self, allocation: OcsAllocation) -> "OcsCluster":
        """The cluster with a job's circuits made and taken. What these ports carried before, idle, is gone.

        Raises ValueError for a GPU or port that another job has, and for a circuit between two OCSs.
        """
        if not self.idle.issuperset(allocation.gpus):
            raise ValueError(f"job {allocation.job!r} cannot take a GPU that another has")
        used = Counter(port for circuit in self.busy | allocation.circuits for port in circuit.ports)
        if self.busy & allocation.circuits or any(count > 1 for count in used.values()):
            raise ValueError(f"job {allocation.job!r} cannot use an optical port that is used already")
        if any(self.ocs[circuit.a] != self.ocs[circuit.b] for circuit in allocation.circuits):
            raise ValueError(f"job {allocation.job!r} cannot have a circuit between two optical switches")
        kept = without(self.circuits, (port for circuit in allocation.circuits for port in circuit.ports))
        return replace(
            self,
            idle=self.idle.difference(allocation.gpus),
            circuits=kept | allocation.circuits,
            busy=self.busy | allocation.circuits,
        )

    def release(self, allocation: OcsAllocation) -> "OcsCluster":
        """The cluster with what a job had free again; its circuits stay until someone needs their ports.

        Raises ValueError when some of that is free already.
        """
        if not (self.idle.isdisjoint(allocation.gpus) and allocation.circuits <= self.busy):
            raise ValueError(f"job {allocation.job!r} has been released before")
        return replace(self, idle=self.idle.union(allocation.gpus), busy=self.busy - allocation.circuits)


def without(circuits: Iterable[Circuit], ports: Iterable[OpticalPort]) -> frozenset[Circuit]:
    """The circuits that end at none of these ports."""
    gone = set(ports)
    return frozenset(circuit for circuit in circuits if gone.isdisjoint(circuit.ports))
