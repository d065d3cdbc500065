# SPDX-License-Identifier: Apache-2.0
"""JSON views of clients and routes for operators. No I/O."""

from collections.abc import Collection
from itertools import islice
from typing import Any

from netmodel import Link
from sdn.path_service.parties import Pair
from sdn.path_service.routing import Routing
from sdn.planners import Cabling


def flows(routing: Routing, cables: Cabling, most: int) -> list[dict[str, Any]]:
    """The `most` oldest commodities, the oldest first."""
    listed = []
    shown = list(islice(routing.pairs.values(), most))
    elephants: dict[Pair, dict[int, int]] = {pair: {} for pair in shown}
    for client in {pair.client.conn: pair.client for pair in shown}.values():
        for number, (pair, size) in client.open.items():
            if pair in elephants:
                elephants[pair][number] = size
    for pair, sizes in elephants.items():
        client, peer = pair.client, pair.peer
        path = cables.path_by(client.nic, peer.nic, *pair.way)
        listed.append(
            {
                "device": client.key[0],
                "peer": peer.at[0],
                "ids": list(sizes),
                "job": pair.job if sizes else "",
                "bytes": sum(sizes.values()),
                "since_s": pair.since_s,
                "path": [str(port) for port in path or ()],
                "ports": routing.ports(pair, pair.way),
                "rate_bps": pair.rate_bps,
                "measured_bps": pair.measured_bps,
            }
        )
    return listed


def paths(routing: Routing, cables: Cabling, dead: Collection[Link]) -> list[dict[str, Any]]:
    """Every link between a leaf and a spine, with the number of commodities that go up and down by it."""
    up, down = routing.plan().loads
    listed = []
    for link in cables.topology.links:
        try:
            at = cables.link(link)
        except KeyError:  # a link to a host
            continue
        ends = sorted((link.a, link.b), key=lambda end: end.node not in cables.tors)
        listed.append(
            {
                "leaf": str(ends[0]),
                "spine": str(ends[1]),
                "up": int(up[at]),
                "down": int(down[at]),
                "dead": link in dead,
            }
        )
    return listed
