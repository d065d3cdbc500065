# SPDX-License-Identifier: Apache-2.0
"""Placement without isolation: rules that choose GPUs and reserve no link. They take what `vclos.place` takes. Pure."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sdn.isolation.cluster import Allocation, on_servers, rounded
from sdn.isolation.idle_gpus import Gpu, IdleGpus
from sdn.isolation.local import tightest, within_leaf, within_server


class GpuPool(Protocol):
    """What `packed` and `relaxed` need to know of a cluster: `Cluster` and `OcsCluster` have it."""

    @property
    def idle(self) -> IdleGpus:
        """The GPUs that no job has."""

    @property
    def gpus(self) -> int:
        """The number of GPUs of the cluster, idle or not."""

    @property
    def gpus_per_server(self) -> int:
        """The number of GPUs of a server (T in the vClos paper)."""

    @property
    def pods(self) -> int:
        """The number of pods, which have equally many leaves; 1 for a leaf-spine."""


def packed(cluster: GpuPool, job: str, gpus: int) -> Allocation | None:
    """Stages 0 and 1 of vClos, then whole servers of as few pods, and of these as few leaves as possible.

    Of pods with room for the job, it gets the one with the fewest idle servers; pods and leaves with more come first
    where it needs several. None when the job must wait. Raises ValueError for a job of no GPU or of more than the
    cluster has.
    """
    per_server = cluster.gpus_per_server
    given = rounded(cluster.gpus, gpus, per_server, job)
    if given <= per_server:
        return within_server(cluster.idle, given, job)
    return within_leaf(cluster.idle, given, job) or _over_leaves(cluster, given // per_server, job)


def relaxed(cluster: GpuPool, job: str, gpus: int) -> Allocation | None:
    """As `packed`; a job that it has no place for gets any idle GPUs, from pods and leaves with more of them first.

    None when fewer are idle than the job asks for. Errors are those of `packed`.
    """
    if (found := packed(cluster, job, gpus)) is not None:
        return found
    if len(cluster.idle) < gpus:
        return None
    chosen: list[Gpu] = []
    for leaf in _fullest_first(cluster.idle.per_server.sum(axis=1), cluster.pods):
        numbers = np.argwhere(cluster.idle.at[leaf])[: gpus - len(chosen)].tolist()
        chosen += [Gpu(leaf, server, number) for server, number in numbers]
        if len(chosen) == gpus:
            break
    return Allocation(job, _stage(cluster, chosen), tuple(sorted(chosen)))


def scattered(rng: np.random.Generator, cluster: GpuPool, job: str, gpus: int) -> Allocation | None:
    """Idle GPUs drawn at random, in ascending order. None when fewer are idle than the job asks for.

    Errors are those of `packed`.
    """
    rounded(cluster.gpus, gpus, 1, job)
    idle = np.argwhere(cluster.idle.at)
    if len(idle) < gpus:
        return None
    drawn = idle[np.sort(rng.choice(len(idle), gpus, replace=False))]
    chosen = tuple(map(Gpu._make, drawn.tolist()))
    return Allocation(job, _stage(cluster, chosen), chosen)


def _over_leaves(cluster: GpuPool, servers: int, job: str) -> Allocation | None:
    if cluster.idle.whole.sum() < servers:
        return None
    by_pod = cluster.idle.whole.reshape(cluster.pods, -1)
    pod = tightest(by_pod.sum(axis=1), servers)
    leaves = _fullest_first(cluster.idle.whole, cluster.pods)
    if pod is not None:
        leaves = [leaf for leaf in leaves if leaf // by_pod.shape[1] == pod]
    chosen: list[Gpu] = []
    for leaf in leaves:
        own = cluster.idle.servers(leaf)[:servers]
        chosen += on_servers(leaf, own, cluster.gpus_per_server)
        servers -= len(own)
        if not servers:
            break
    return Allocation(job, _stage(cluster, chosen), tuple(sorted(chosen)))


def _fullest_first(idle: NDArray[np.int32], pods: int) -> list[int]:
    """Leaves in the order of what is idle in their pods, then under themselves, the most first."""
    in_pod = idle.reshape(pods, -1).sum(axis=1).repeat(len(idle) // pods)
    pod = np.arange(len(idle)) // (len(idle) // pods)
    order: list[int] = np.lexsort((-idle, pod, -in_pod)).tolist()
    return order


def _stage(cluster: GpuPool, gpus: Sequence[Gpu]) -> int:
    """0 on one server, 1 under one leaf, 2 in one pod, else 3, as in vClos, whatever links it has."""
    leaves = {gpu.leaf for gpu in gpus}
    if len(leaves) > 1:
        per_pod = len(cluster.idle.whole) // cluster.pods
        return 2 if len({leaf // per_pod for leaf in leaves}) == 1 else 3
    return min(1, len({gpu.server for gpu in gpus}) - 1)
