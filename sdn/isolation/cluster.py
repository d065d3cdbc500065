# SPDX-License-Identifier: Apache-2.0
"""A leaf-spine cluster for job scheduling: idle GPUs, free links, and the allocations of jobs.

Leaves, spines, servers and GPUs are numbered from 0. All objects are immutable: taking and releasing return a new
cluster. Letters in docstrings are vClos's (table 1): L leaves, S spines, T GPUs per server, C[n, m] free links between
leaf n and spine m, R[n] idle servers on leaf n.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    """A GPU with a NIC of its own."""

    leaf: int
    server: int
    """Within the leaf."""
    number: int
    """Within the server."""


LinkCount = Mapping[tuple[int, int], int]
"""Links by (leaf, spine)."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The GPUs and links of one job. Without links it is on one server (stage 0) or under one leaf (stage 1)."""

    job: str
    stage: int
    gpus: tuple[Gpu, ...]
    links: LinkCount = field(default_factory=dict)

    @property
    def leaves(self) -> list[int]:
        """The leaves with GPUs of the job, ascending."""
        return sorted({gpu.leaf for gpu in self.gpus})

    @property
    def spines(self) -> list[int]:
        """The spines with links of the job, ascending."""
        return sorted({spine for _, spine in self.links})


@dataclass(frozen=True, slots=True)
class Cluster:
    """L leaves with servers of T GPUs each, and S spines. `free` is C[n, m] without zeros."""

    leaves: int
    spines: int
    servers_per_leaf: int
    gpus_per_server: int
    idle: frozenset[Gpu]
    free: LinkCount

    @classmethod
    def empty(
        cls, leaves: int, spines: int, servers_per_leaf: int, gpus_per_server: int = 1, parallel_links: int = 1
    ) -> "Cluster":
        """A cluster without jobs. Raises ValueError for counts below one."""
        for what, count in (
            ("leaves", leaves),
            ("spines", spines),
            ("servers per leaf", servers_per_leaf),
            ("GPUs per server", gpus_per_server),
            ("parallel links", parallel_links),
        ):
            if count < 1:
                raise ValueError(f"a cluster needs one or more {what}, not {count}")
        idle = frozenset(
            Gpu(leaf, server, number)
            for leaf in range(leaves)
            for server in range(servers_per_leaf)
            for number in range(gpus_per_server)
        )
        free = {(leaf, spine): parallel_links for leaf in range(leaves) for spine in range(spines)}
        return cls(leaves, spines, servers_per_leaf, gpus_per_server, idle, free)

    @property
    def gpus(self) -> int:
        """All GPUs, idle or not."""
        return self.leaves * self.servers_per_leaf * self.gpus_per_server

    def idle_servers(self) -> list[list[int]]:
        """By leaf: its servers whose GPUs are all idle, ascending; their number is R[n]."""
        return idle_servers(self.idle, self.leaves, self.gpus_per_server)

    def free_ports(self) -> list[int]:
        """By spine: the number of its free links, to all leaves."""
        ports = [0] * self.spines
        for (_, spine), count in self.free.items():
            ports[spine] += count
        return ports

    def take(self, allocation: Allocation) -> "Cluster":
        """The cluster without an allocation's GPUs and links. Raises ValueError when some of them are not free."""
        if not self.idle.issuperset(allocation.gpus):
            raise ValueError(f"job {allocation.job!r} cannot take a GPU that another has")
        free = Counter(self.free)
        free.subtract(allocation.links)
        if any(count < 0 for count in free.values()):
            raise ValueError(f"job {allocation.job!r} cannot take a link that another has")
        return replace(self, idle=self.idle.difference(allocation.gpus), free=+free)

    def release(self, allocation: Allocation) -> "Cluster":
        """The cluster with an allocation's GPUs and links free. Raises ValueError when some are free already."""
        if not self.idle.isdisjoint(allocation.gpus):
            raise ValueError(f"job {allocation.job!r} has been released before")
        return replace(self, idle=self.idle.union(allocation.gpus), free=Counter(self.free) + Counter(allocation.links))


def idle_servers(idle: Iterable[Gpu], leaves: int, per_server: int) -> list[list[int]]:
    """By leaf: its servers of which all `per_server` GPUs are among `idle`, ascending. O(idle * log idle)."""
    counts = Counter((gpu.leaf, gpu.server) for gpu in idle)
    found: list[list[int]] = [[] for _ in range(leaves)]
    for (leaf, server), count in sorted(counts.items()):
        if count == per_server:
            found[leaf].append(server)
    return found


def rounded(gpus: int, wanted: int, per_server: int, job: str) -> int:
    """The number of GPUs that a job gets: its request if that fits a server, else whole servers (locality).

    Raises ValueError when the request is below one, or more than the `gpus` of the cluster.
    """
    if wanted < 1:
        raise ValueError(f"job {job!r} asks for {wanted} GPUs; one is the least")
    given = wanted if wanted <= per_server else -(-wanted // per_server) * per_server
    if given > gpus:
        raise ValueError(
            f"job {job!r} asks for {wanted} GPUs and the whole cluster has {gpus}; make the job smaller or the cluster "
            "larger"
        )
    return given


def on_servers(leaf: int, servers: Iterable[int], per_server: int) -> list[Gpu]:
    """Every GPU of these servers."""
    return [Gpu(leaf, server, number) for server in servers for number in range(per_server)]
