# SPDX-License-Identifier: Apache-2.0
"""JSON views of clients and routes for operators, an entry at a time. No I/O."""

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from netmodel import Link
from sdn.path_service.parties import Client, Pair
from sdn.path_service.routing import Routing
from sdn.planners import Cabling


def flows(routing: Routing, cables: Cabling, most: int) -> Iterator[dict[str, Any]]:
    """The `most` oldest commodities, the oldest first. One that has ended meanwhile is left out."""
    elephants: dict[Client, dict[Pair, dict[int, int]]] = {}  # sizes by id
    for pair in list(islice(routing.pairs.values(), most)):
        client, peer = pair.client, pair.peer
        if pair.commodity is None:
            continue
        if client not in elephants:
            elephants[client] = _elephants(client)
        sizes = elephants[client].get(pair, {})
        path = cables.path_by(client.nic, peer.nic, *pair.way)
        yield {
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


def _elephants(client: Client) -> dict[Pair, dict[int, int]]:
    found: dict[Pair, dict[int, int]] = {}
    for number, (pair, size) in client.open.items():
        found.setdefault(pair, {})[number] = size
    return found


def paths(routing: Routing, cables: Cabling, dead: Collection[Link]) -> Iterator[dict[str, Any]]:
    """Every link between a leaf and a spine, with the number of commodities that go up and down by it."""
    up, down = routing.plan().loads
    for link in cables.topology.links:
        try:
            at = cables.link(link)
        except KeyError:  # a link to a host
            continue
        ends = sorted((link.a, link.b), key=lambda end: end.node not in cables.tors)
        yield {
            "leaf": str(ends[0]),
            "spine": str(ends[1]),
            "up": int(up[at]),
            "down": int(down[at]),
            "dead": link in dead,
        }
