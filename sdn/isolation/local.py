# SPDX-License-Identifier: Apache-2.0
"""Stages 0 and 1 of vClos and OCS-vClos: jobs that need no link between switches."""

from collections import Counter
from collections.abc import Iterable

from sdn.isolation.cluster import Allocation, Gpu, on_servers


def within_server(idle: Iterable[Gpu], wanted: int, job: str) -> Allocation | None:
    """Stage 0: GPUs of the server with the fewest idle GPUs that suffice."""
    by_server = Counter((gpu.leaf, gpu.server) for gpu in idle)
    fitting = [(count, server) for server, count in by_server.items() if count >= wanted]
    if not fitting:
        return None
    _, server = min(fitting)
    own = sorted(gpu for gpu in idle if (gpu.leaf, gpu.server) == server)
    return Allocation(job, 0, tuple(own[:wanted]))


def within_leaf(idle_servers: list[list[int]], wanted: int, per_server: int, job: str) -> Allocation | None:
    """Stage 1: servers under the leaf with the fewest idle servers that suffice. `idle_servers` is by leaf."""
    needed = wanted // per_server
    fitting = [(len(servers), leaf) for leaf, servers in enumerate(idle_servers) if len(servers) >= needed]
    if not fitting:
        return None
    _, leaf = min(fitting)
    return Allocation(job, 1, tuple(on_servers(leaf, idle_servers[leaf][:needed], per_server)))
