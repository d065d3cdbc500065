# SPDX-License-Identifier: Apache-2.0
"""Placement without isolation: rules that choose GPUs and reserve no link. They take what `vclos.place` takes. Pure."""

from typing import Protocol

import numpy as np

from sdn.isolation.cluster import Allocation, on_servers, rounded
from sdn.isolation.idle_gpus import Gpu, IdleGpus
from sdn.isolation.local import within_leaf, within_server


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


SPREAD = 2
"""The stage of an allocation of which several leaves have GPUs, as in vClos, whatever links it has."""


def packed(cluster: GpuPool, job: str, gpus: int) -> Allocation | None:
    """Stages 0 and 1 of vClos, then whole servers of as few leaves as possible. None when the job must wait.

    Leaves with more idle servers come first. Raises ValueError for a job of no GPU or of more than the cluster has.
    """
    per_server = cluster.gpus_per_server
    given = rounded(cluster.gpus, gpus, per_server, job)
    if given <= per_server:
        return within_server(cluster.idle, given, job)
    return within_leaf(cluster.idle, given, job) or _over_leaves(cluster, given // per_server, job)


def relaxed(cluster: GpuPool, job: str, gpus: int) -> Allocation | None:
    """As `packed`; a job that it has no place for gets any idle GPUs, from leaves with more of them first.

    None when fewer are idle than the job asks for. Errors are those of `packed`.
    """
    if (found := packed(cluster, job, gpus)) is not None:
        return found
    if len(cluster.idle) < gpus:
        return None
    chosen: list[Gpu] = []
    for leaf in np.argsort(-cluster.idle.per_server.sum(axis=1), kind="stable").tolist():
        numbers = np.argwhere(cluster.idle.at[leaf])[: gpus - len(chosen)].tolist()
        chosen += [Gpu(leaf, server, number) for server, number in numbers]
        if len(chosen) == gpus:
            break
    return Allocation(job, _stage(chosen), tuple(sorted(chosen)))


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
    return Allocation(job, _stage(chosen), chosen)


def _over_leaves(cluster: GpuPool, servers: int, job: str) -> Allocation | None:
    if cluster.idle.whole.sum() < servers:
        return None
    chosen: list[Gpu] = []
    for leaf in np.argsort(-cluster.idle.whole, kind="stable").tolist():
        own = cluster.idle.servers(leaf)[:servers]
        chosen += on_servers(leaf, own, cluster.gpus_per_server)
        servers -= len(own)
        if not servers:
            break
    return Allocation(job, SPREAD, tuple(sorted(chosen)))


def _stage(gpus: list[Gpu] | tuple[Gpu, ...]) -> int:
    """0 on one server, 1 under one leaf, else `SPREAD`."""
    if len({gpu.leaf for gpu in gpus}) > 1:
        return SPREAD
    return min(1, len({gpu.server for gpu in gpus}) - 1)
