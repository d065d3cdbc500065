# SPDX-License-Identifier: Apache-2.0
"""The numbers by which planners know the NICs of a topology."""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from netmodel import PortRef, Topology
from sdn.planners.model import Commodities


def number_of(topology: Topology, numbers: Mapping[PortRef, int], host: str, nic: int) -> int:
    """The number of a host's NIC. Raises KeyError for an unknown host, and for a NIC without a live link."""
    port = PortRef(topology.host(host).name, nic + 1)
    try:
        return numbers[port]
    except KeyError:
        topology.link_at(port)  # raises KeyError when nothing is connected
        raise KeyError(f"the link of {port} is dead") from None


def between(ends: Iterable[tuple[int, int]], demand: npt.ArrayLike, job: npt.ArrayLike) -> Commodities:
    """One commodity for each pair of source and destination NIC."""
    numbers = np.array(list(ends), dtype=np.int32).reshape(-1, 2)
    return Commodities.of(numbers[:, 0], numbers[:, 1], demand, job)
