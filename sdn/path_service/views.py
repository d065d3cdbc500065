# SPDX-License-Identifier: Apache-2.0
"""JSON views of clients and routes for operators, an entry at a time. No I/O."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from netmodel import tiers
from sdn.path_service.constraints import Constraints
from sdn.path_service.parties import Client, Pair
from sdn.path_service.pinning import Pinning
from sdn.planners.planner import AnyCabling


def flows(pinning: Pinning, most: int) -> Iterator[dict[str, Any]]:
    """The `most` oldest commodities, the oldest first. One that has ended meanwhile is left out."""
    elephants: dict[Client, dict[Pair, dict[int, int]]] = {}  # sizes by id
    for pair in list(islice(pinning.pairs.values(), most)):
        client, peer = pair.client, pair.peer
        if pair.commodity is None:
            continue
        if client not in elephants:
            elephants[client] = _elephants(client)
        sizes = elephants[client].get(pair, {})
        paths = pinning.paths(pair)
        yield {
            "device": client.key[0],
            "peer": peer.at[0],
            "ids": list(sizes),
            "job": pair.job if sizes else "",
            "bytes": sum(sizes.values()),
            "since_s": pair.since_s,
            "path": [str(port) for path in paths[:1] for port in path],
            "lane_paths": [[str(port) for port in path] for path in paths] if len(set(paths)) > 1 else None,
            "ports": pinning.ports(pair),
            "rate_bps": pair.rate_bps,
            "measured_bps": pair.measured_bps,
        }


def _count(load: float) -> float:
    """A number of commodities, whole unless lanes of one take several paths."""
    return int(load) if float(load).is_integer() else round(float(load), 3)


def _elephants(client: Client) -> dict[Pair, dict[int, int]]:
    found: dict[Pair, dict[int, int]] = {}
    for number, (pair, size) in client.open.items():
        found.setdefault(pair, {})[number] = size
    return found


def paths(pinning: Pinning, cables: AnyCabling, constraints: Constraints) -> Iterator[dict[str, Any]]:
    """Every link between two switches, with the number of commodities that go up and down by it."""
    up, down = pinning.loads()
    tier = tiers(cables.topology)
    for link in cables.topology.links:
        try:
            number = cables.link_number(link)
        except KeyError:  # a link to a host
            continue
        lower, upper = sorted((link.a, link.b), key=lambda end: tier[end.node])
        yield {
            "lower": str(lower),
            "upper": str(upper),
            "up": _count(up[number]),
            "down": _count(down[number]),
            "dead": link in constraints.dead,
            "drained": link in constraints.drained,
        }
