# SPDX-License-Identifier: Apache-2.0
"""Max-min fair rates of pairs whose lanes take several paths. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from netmodel import PortRef
from sdn.measured.discovery import PairKey
from sdn.measured.fabric import MeasuredFabric
from sdn.measured.pinning import Share
from sdn.planners.rates import max_min_rates


def fair_rates(fabric: MeasuredFabric, shares: Mapping[PairKey, Sequence[Share]]) -> dict[PairKey, float]:
    """The rate of each pair in bit/s: the sum of the max-min fair rates of its shares, weighted by their parts.

    It is 0 for a pair without a path.
    """
    topology = fabric.topology
    links: dict[PortRef, int] = {}  # by the port at which each direction of a link begins
    rows, weights, owners = [], [], []
    for pair, own in shares.items():
        first, last = fabric.nics[pair.src], topology.peer(fabric.nics[pair.dst])
        for share in own:
            rows.append([links.setdefault(port, len(links)) for port in (first, *share.path, last)])
            weights.append(share.part)
            owners.append(pair)
    rates = dict.fromkeys(shares, 0.0)
    if not rows:
        return rates
    crossed = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int32)
    for at, row in enumerate(rows):
        crossed[at, : len(row)] = row
    capacity = np.array([topology.link_at(port).rate_bps for port in links], dtype=np.float64)
    for pair, rate in zip(owners, max_min_rates(capacity, crossed, np.array(weights)).tolist(), strict=True):
        rates[pair] += rate
    return rates
