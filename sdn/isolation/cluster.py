# SPDX-License-Identifier: Apache-2.0
"""A cluster for job scheduling: idle GPUs, free links, and the allocations of jobs.

Leaves, spines, servers and GPUs are numbered from 0. All objects are immutable: taking and releasing return a new
cluster. Letters in docstrings are vClos's (table 1): L leaves, S spines, T GPUs per server, C[n, m] free links between
leaf n and spine m, R[n] idle servers on leaf n.

A cluster is a leaf-spine, or consists of pods. The spines of a leaf are then the aggs of its pod, and agg a of every
pod is linked to the same cores, those of group a.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sdn.isolation.idle_gpus import Gpu, IdleGpus, gpus_of_server

LinkCount = Mapping[tuple[int, int], int]
"""Numbers of links, by leaf and spine."""

CoreLink = tuple[int, int, int]
"""A link of a pod's agg to a core of its group: pod, agg and core."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The GPUs and links of one job. Without links it is on one server (stage 0) or under one leaf (stage 1).

    Stage 2 is on several leaves of a leaf-spine or a pod, stage 3 in several pods.
    """

    job: str
    stage: int
    gpus: tuple[Gpu, ...]
    links: LinkCount = field(default_factory=dict)
    core_links: frozenset[CoreLink] = frozenset()

    @property
    def leaves(self) -> list[int]:
        """The leaves with GPUs of the job, ascending."""
        return sorted({gpu.leaf for gpu in self.gpus})

    @property
    def spines(self) -> list[int]:
        """The spines with links of the job, ascending."""
        return sorted({spine for _, spine in self.links})

    @property
    def cores(self) -> dict[int, list[int]]:
        """By agg: the cores of its group with links of the job, ascending. Empty within a pod."""
        found: dict[int, set[int]] = {}
        for _, agg, core in self.core_links:
            found.setdefault(agg, set()).add(core)
        return {agg: sorted(found[agg]) for agg in sorted(found)}


def _no_cores() -> NDArray[np.bool_]:
    return np.ones((1, 0, 0), dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """L leaves with servers of T GPUs each, and S spines, of a pod where there are several.

    `free` is C[n, m], of shape (L, S). `free_above` says which links of aggs to cores are free, by pod, agg and core.
    """

    leaves: int
    spines: int
    servers_per_leaf: int
    gpus_per_server: int
    idle: IdleGpus
    free: NDArray[np.int32]
    free_above: NDArray[np.bool_] = field(default_factory=_no_cores)

    @classmethod
    def empty(
        cls,
        leaves: int,
        spines: int,
        servers_per_leaf: int,
        gpus_per_server: int = 1,
        parallel_links: int = 1,
        *,
        pods: int = 1,
        cores: int = 0,
    ) -> "Cluster":
        """A cluster without jobs. `leaves` are those of all pods, `cores` those of a group.

        Raises ValueError for counts below one, and for pods of different size.
        """
        for what, count in (
            ("leaves", leaves),
            ("spines", spines),
            ("servers per leaf", servers_per_leaf),
            ("GPUs per server", gpus_per_server),
            ("parallel links", parallel_links),
            ("pods", pods),
        ):
            if count < 1:
                raise ValueError(f"a cluster needs one or more {what}, not {count}")
        if leaves % pods:
            raise ValueError(f"{leaves} leaves cannot be shared out equally over {pods} pods")
        idle = IdleGpus(np.ones((leaves, servers_per_leaf, gpus_per_server), dtype=np.bool_))
        free = np.full((leaves, spines), parallel_links, dtype=np.int32)
        free_above = np.ones((pods, spines, cores), dtype=np.bool_)
        return cls(leaves, spines, servers_per_leaf, gpus_per_server, idle, free, free_above)

    @property
    def gpus(self) -> int:
        """The number of GPUs of the cluster, idle or not."""
        return self.leaves * self.servers_per_leaf * self.gpus_per_server

    @property
    def pods(self) -> int:
        """The number of pods; 1 for a leaf-spine."""
        return len(self.free_above)

    @property
    def leaves_per_pod(self) -> int:
        """The number of leaves of each pod."""
        return self.leaves // self.pods

    def pod(self, number: int) -> "Cluster":
        """One pod as a leaf-spine, whose leaves are numbered from 0."""
        own = slice(number * self.leaves_per_pod, (number + 1) * self.leaves_per_pod)
        idle = IdleGpus(self.idle.at[own])
        return Cluster(
            self.leaves_per_pod, self.spines, self.servers_per_leaf, self.gpus_per_server, idle, self.free[own]
        )

    def take(self, allocation: Allocation) -> "Cluster":
        """The cluster without an allocation's GPUs and links. Raises ValueError when some of them are not free."""
        if not self.idle.holds(allocation.gpus).all():
            raise ValueError(f"job {allocation.job!r} cannot take a GPU that another has")
        free = self._free_after(allocation.links, -1)
        if (free < 0).any() or not all(self.free_above[link] for link in allocation.core_links):
            raise ValueError(f"job {allocation.job!r} cannot take a link that another has")
        above = self._free_above_after(allocation.core_links, free=False)
        return replace(self, idle=self.idle.changed(allocation.gpus, idle=False), free=free, free_above=above)

    def release(self, allocation: Allocation) -> "Cluster":
        """The cluster with an allocation's GPUs and links free. Raises ValueError when some are free already."""
        if self.idle.holds(allocation.gpus).any():
            raise ValueError(f"job {allocation.job!r} has been released before")
        free = self._free_after(allocation.links, 1)
        above = self._free_above_after(allocation.core_links, free=True)
        return replace(self, idle=self.idle.changed(allocation.gpus, idle=True), free=free, free_above=above)

    def with_free_links(self) -> "Cluster":
        """The cluster with the same idle GPUs and a free link, at least, between each leaf and spine."""
        return replace(self, free=np.maximum(self.free, 1))

    def _free_after(self, links: LinkCount, sign: int) -> NDArray[np.int32]:
        if not links:
            return self.free
        free = self.free.copy()
        leaves, spines = np.array(list(links)).T
        free[leaves, spines] += sign * np.array(list(links.values()), dtype=np.int32)
        return free

    def _free_above_after(self, links: Collection[CoreLink], *, free: bool) -> NDArray[np.bool_]:
        if not links:
            return self.free_above
        above = self.free_above.copy()
        above[tuple(np.array(list(links)).T)] = free
        return above


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
