# SPDX-License-Identifier: Apache-2.0
"""A leaf-spine cluster for job scheduling: idle GPUs, free links, and the allocations of jobs.

Leaves, spines, servers and GPUs are numbered from 0. All objects are immutable: taking and releasing return a new
cluster. Letters in docstrings are vClos's (table 1): L leaves, S spines, T GPUs per server, C[n, m] free links between
leaf n and spine m, R[n] idle servers on leaf n.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sdn.isolation.idle_gpus import Gpu, IdleGpus, gpus_of_server

LinkCount = Mapping[tuple[int, int], int]
"""Numbers of links, by leaf and spine."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """L leaves with servers of T GPUs each, and S spines. `free` is C[n, m], of shape (L, S)."""

    leaves: int
    spines: int
    servers_per_leaf: int
    gpus_per_server: int
    idle: IdleGpus
    free: NDArray[np.int32]

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
        idle = IdleGpus(np.ones((leaves, servers_per_leaf, gpus_per_server), dtype=np.bool_))
        free = np.full((leaves, spines), parallel_links, dtype=np.int32)
        return cls(leaves, spines, servers_per_leaf, gpus_per_server, idle, free)

    @property
    def gpus(self) -> int:
        """The number of GPUs of the cluster, idle or not."""
        return self.leaves * self.servers_per_leaf * self.gpus_per_server

    def take(self, allocation: Allocation) -> "Cluster":
        """The cluster without an allocation's GPUs and links. Raises ValueError when some of them are not free."""
        if not self.idle.holds(allocation.gpus).all():
            raise ValueError(f"job {allocation.job!r} cannot take a GPU that another has")
        free = self._free_after(allocation.links, -1)
        if (free < 0).any():
            raise ValueError(f"job {allocation.job!r} cannot take a link that another has")
        return replace(self, idle=self.idle.changed(allocation.gpus, idle=False), free=free)

    def release(self, allocation: Allocation) -> "Cluster":
        """The cluster with an allocation's GPUs and links free. Raises ValueError when some are free already."""
        if self.idle.holds(allocation.gpus).any():
            raise ValueError(f"job {allocation.job!r} has been released before")
        free = self._free_after(allocation.links, 1)
        return replace(self, idle=self.idle.changed(allocation.gpus, idle=True), free=free)

    def _free_after(self, links: LinkCount, sign: int) -> NDArray[np.int32]:
        if not links:
            return self.free
        free = self.free.copy()
        leaves, spines = np.array(list(links)).T
        free[leaves, spines] += sign * np.array(list(links.values()), dtype=np.int32)
        return free


def rounded(gpus: int, wanted: int, per_server: int, job: str) -> int:
    """The number of GPUs that a job gets: its request if that fits a server, else whole servers (locality).

    Raises ValueError when the request is below one, or more than the `gpus` of the cluster.
    """
    if wanted < 1:
        raise ValueError(f"job {job!r} asks for {wanted} GPUs; it must ask for at least 1")
    given = wanted if wanted <= per_server else -(-wanted // per_server) * per_server
    if given > gpus:
        raise ValueError(
            f"job {job!r} asks for {wanted} GPUs and the whole cluster has {gpus}; make the job smaller or the cluster "
            "larger"
        )
    return given


def on_servers(leaf: int, servers: Iterable[int], per_server: int) -> tuple[Gpu, ...]:
    """Every GPU of these servers."""
    return tuple(chain.from_iterable(gpus_of_server(leaf, server, per_server) for server in servers))
