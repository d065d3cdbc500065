# SPDX-License-Identifier: Apache-2.0
"""Port tables for policy `pinned`: from the path that each pair should take to the UDP source ports that take it."""

from collections.abc import Mapping, Sequence

import numpy as np

from netmodel import EcmpHash, Path, Topology, ports_for_path
from testbed.errors import InputError
from testbed.plan.demands import Pair


def port_tables(
    topology: Topology, hosts: Sequence[str], paths: Mapping[Pair, Path], lanes: int, seed: int, *, ecmp_hash: EcmpHash
) -> dict[int, dict[int, list[int]]]:
    """For every source rank: the ports of its `lanes` lanes towards each destination rank that has a path assigned.

    Among the ports that take a path, `seed` chooses. Raises InputError when some path is taken by too few ports.
    """
    tables: dict[int, dict[int, list[int]]] = {}
    for (src, dst), path in paths.items():
        ports = ports_for_path(topology, hosts[src], hosts[dst], path, ecmp_hash)
        if len(ports) < lanes:
            raise InputError(
                f"pinned: {len(ports)} UDP source ports lead from {hosts[src]} to {hosts[dst]} by "
                f"{', '.join(map(str, path))}, and {lanes} lanes need as many"
            )
        chosen = np.random.default_rng([seed, src, dst]).choice(ports, size=lanes, replace=False)
        tables.setdefault(src, {})[dst] = [int(port) for port in chosen]
    return tables
