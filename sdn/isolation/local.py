# SPDX-License-Identifier: Apache-2.0
"""Stages 0 and 1 of vClos and OCS-vClos: jobs that need no link between switches."""

import numpy as np
from numpy.typing import NDArray

from sdn.isolation.cluster import Allocation, on_servers
from sdn.isolation.idle_gpus import Gpu, IdleGpus


def within_server(idle: IdleGpus, wanted: int, job: str) -> Allocation | None:
    """Stage 0: GPUs of the server with the fewest idle GPUs that suffice."""
    chosen = tightest(idle.per_server.ravel(), wanted)
    if chosen is None:
        return None
    leaf, server = divmod(chosen, idle.per_server.shape[1])
    numbers = np.flatnonzero(idle.at[leaf, server])[:wanted].tolist()
    return Allocation(job, 0, tuple(Gpu(leaf, server, number) for number in numbers))


def within_leaf(idle: IdleGpus, wanted: int, job: str) -> Allocation | None:
    """Stage 1: servers under the leaf with the fewest idle servers that suffice. `wanted` GPUs are whole servers."""
    per_server = idle.at.shape[2]
    needed = wanted // per_server
    leaf = tightest(idle.whole, needed)
    if leaf is None:
        return None
    return Allocation(job, 1, on_servers(leaf, idle.servers(leaf)[:needed], per_server))


def tightest(counts: NDArray[np.int32], needed: int) -> int | None:
    """The first place of the smallest count that is at least `needed`, which is one or more."""
    fitting = np.where(counts >= needed, counts, np.iinfo(np.int32).max)
    least = int(fitting.argmin())
    return least if counts[least] >= needed else None
