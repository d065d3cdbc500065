# SPDX-License-Identifier: Apache-2.0
"""A leaf-spine whose cables run through optical circuit switches (OCS), for job scheduling. Pure.

Every leaf and spine port that faces the other level is connected to an OCS, which can join any two of its ports by a
circuit and can be reconfigured at any time. A job's circuits do not change until the job ends: a change would interrupt
its traffic for the switching time, 50 ms in the paper's section 7.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sdn.isolation.cluster import Cluster
from sdn.isolation.idle_gpus import Gpu, IdleGpus

Level = Literal["leaf", "spine"]


@dataclass(frozen=True, slots=True, order=True)
class OpticalPort:
    """A port of leaf or spine `switch` that is connected to an OCS, numbered from 0 among those of its switch."""

    level: Level
    switch: int
    number: int


@dataclass(frozen=True, slots=True, order=True)
class Circuit:
    """A bidirectional circuit between two ports of one OCS; `a` is the smaller port."""

    a: OpticalPort
    b: OpticalPort

    @classmethod
    def of(cls, one: OpticalPort, other: OpticalPort) -> "Circuit":
        """The circuit between two ports, in any order. Raises ValueError when they are equal."""
        if one == other:
            raise ValueError(f"a circuit cannot join {one.level} {one.switch} port {one.number} to itself")
        return cls(min(one, other), max(one, other))

    @property
    def ports(self) -> tuple[OpticalPort, OpticalPort]:
        """The two ports that the circuit joins."""
        return self.a, self.b


@dataclass(frozen=True, slots=True)
class OcsAllocation:
    """The GPUs and circuits of one job; `made` has those of its circuits that have to be set up.

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


@dataclass(frozen=True, slots=True, eq=False)
class OcsCluster:
    """GPUs as in `Cluster`, the OCS of every port, the present circuits, and those of them that jobs use.

    `ocs` has the ports of each switch in ascending order.
    """

    leaves: int
    spines: int
    servers_per_leaf: int
    gpus_per_server: int
    idle: IdleGpus
    ocs: Mapping[OpticalPort, int]
    circuits: frozenset[Circuit]
    busy: frozenset[Circuit] = frozenset()
    fitting: dict[int, bool] = field(default_factory=dict)
    """By number of GPUs: whether this cluster has a place for it while it is empty, as far as that is known."""

    @classmethod
    def empty(
        cls, leaves: int, spines: int, servers_per_leaf: int, gpus_per_server: int, switches: int
    ) -> "OcsCluster":
        """A cluster without jobs, with a circuit between every leaf and spine.

        The circuit from leaf n to spine m is on OCS (n + m) mod `switches`, so that the ports of each switch are spread
        over all of them. Raises ValueError for counts below one.
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

    def with_free_links(self) -> "OcsCluster":
        """The cluster with the same idle GPUs, of which no job uses a circuit."""
        return replace(self, busy=frozenset())

    def emptied(self) -> "OcsCluster":
        """The cluster with every GPU idle and no circuit."""
        plain = Cluster.empty(self.leaves, self.spines, self.servers_per_leaf, self.gpus_per_server)
        return replace(self, idle=plain.idle, circuits=frozenset(), busy=frozenset())

    @property
    def pods(self) -> int:
        """One: it is a leaf-spine."""
        return 1

    @property
    def gpus(self) -> int:
        """The number of GPUs of the cluster, idle or not."""
        return self.leaves * self.servers_per_leaf * self.gpus_per_server

    @property
    def switches(self) -> list[int]:
        """The numbers of the OCSs."""
        return sorted(set(self.ocs.values()))

    def free_ports(self) -> dict[tuple[Level, int, int], list[OpticalPort]]:
        """Ports that no job uses, with or without a circuit, by level, switch and OCS: C^k_n and C^k_m count them.

        Each list is in ascending order of the ports' numbers.
        """
        used = {port for circuit in self.busy for port in circuit.ports}
        free: dict[tuple[Level, int, int], list[OpticalPort]] = {}
        for port, ocs in self.ocs.items():
            if port not in used:
                free.setdefault((port.level, port.switch, ocs), []).append(port)
        return free

    def take(self, allocation: OcsAllocation) -> "OcsCluster":
        """The cluster after a job's circuits have been set up and taken. Idle circuits at these ports are removed.

        Raises ValueError for a GPU or port that another job has, and for a circuit between two OCSs.
        """
        if not self.idle.holds(allocation.gpus).all():
            raise ValueError(f"job {allocation.job!r} cannot take a GPU that another has")
        if not allocation.circuits:
            return replace(self, idle=self.idle.changed(allocation.gpus, idle=False))
        used = Counter(port for circuit in self.busy | allocation.circuits for port in circuit.ports)
        if self.busy & allocation.circuits or any(count > 1 for count in used.values()):
            raise ValueError(f"job {allocation.job!r} cannot use an optical port that is used already")
        if any(self.ocs[circuit.a] != self.ocs[circuit.b] for circuit in allocation.circuits):
            raise ValueError(f"job {allocation.job!r} cannot have a circuit between two optical switches")
        kept = without(self.circuits, (port for circuit in allocation.circuits for port in circuit.ports))
        return replace(
            self,
            idle=self.idle.changed(allocation.gpus, idle=False),
            circuits=kept | allocation.circuits,
            busy=self.busy | allocation.circuits,
        )

    def release(self, allocation: OcsAllocation) -> "OcsCluster":
        """The cluster with an allocation free again. Its circuits stay until a job needs their ports.

        Raises ValueError when some of it is free already.
        """
        if self.idle.holds(allocation.gpus).any() or not allocation.circuits <= self.busy:
            raise ValueError(f"job {allocation.job!r} has been released before")
        return replace(self, idle=self.idle.changed(allocation.gpus, idle=True), busy=self.busy - allocation.circuits)


def without(circuits: Iterable[Circuit], ports: Iterable[OpticalPort]) -> frozenset[Circuit]:
    """The circuits that end at none of these ports."""
    gone = set(ports)
    return frozenset(circuit for circuit in circuits if gone.isdisjoint(circuit.ports))
