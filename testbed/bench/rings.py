# SPDX-License-Identifier: Apache-2.0
"""Paths of a ring of randomly placed ranks, for the benchmarks of both simulations."""

import numpy as np
import numpy.typing as npt

from netmodel import ENTROPY_PORTS, ROCE_PORT, FlowFields, OvsHash
from netmodel.flow import IPPROTO_UDP, address_array
from sim.links import Links
from sim.paths import hashed_paths


def ring_paths(links: Links, lanes: int, seed: int) -> npt.NDArray[np.int32]:
    """The links of each lane from a rank to the next in the ring, by the switches' hash.

    Every host is one rank. `seed` draws the ring and the source ports. Shape: ranks, lanes, links of a path.
    """
    addresses = address_array(host.nics[0].address for host in links.topology.hosts)
    rng = np.random.default_rng(seed)
    ranks = rng.permutation(addresses)
    fields = FlowFields(
        src=np.repeat(ranks, lanes, axis=0),
        dst=np.repeat(np.roll(ranks, -1, axis=0), lanes, axis=0),
        sport=rng.integers(ENTROPY_PORTS.start, ENTROPY_PORTS.stop, len(ranks) * lanes).astype(np.uint16),
        dport=np.array([ROCE_PORT], dtype=np.uint16),
        proto=np.array([IPPROTO_UDP], dtype=np.uint8),
    )
    return hashed_paths(links, fields, OvsHash()).reshape(len(ranks), lanes, -1)
