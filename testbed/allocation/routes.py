# SPDX-License-Identifier: Apache-2.0
"""The routes that the transfers of a pair of ranks take. Agents share them out too, so this imports no planner."""

from collections.abc import Callable, Sequence

from testbed.workloads import Transfer

Pair = tuple[int, int]
"""Source rank and destination rank."""


def routes_of(transfers: Sequence[Transfer], shares: Callable[[int, int], Sequence[float]]) -> list[int]:
    """The route of each transfer, where `shares` has the part of a pair's data that each of its routes is to carry.

    Transfers are shared out whole and in order, each to the route that is furthest behind.
    """
    routes = [0] * len(transfers)
    parts: dict[Pair, Sequence[float]] = {}
    behind: dict[Pair, list[float]] = {}
    for place, transfer in enumerate(transfers):
        pair = transfer.src, transfer.dst
        if pair not in parts:
            parts[pair] = shares(*pair)
            behind[pair] = [0.0] * len(parts[pair])
        lag = behind[pair]
        if len(lag) > 1:
            for route, part in enumerate(parts[pair]):
                lag[route] += part * transfer.count
            routes[place] = max(range(len(lag)), key=lag.__getitem__)
            lag[routes[place]] -= transfer.count
    return routes
