# SPDX-License-Identifier: Apache-2.0
"""What is exported of a running path service: its figures at a moment, without a pause in its answers to hosts."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from netmodel import PortRef
from sdn.path_service.availability.state import Availability, State
from sdn.path_service.latency import BOUNDS_S
from sdn.path_service.server import Server
from sdn.path_service.service import PathService

_PART = 32  # commodities that are looked at before hosts are served again


@dataclass(frozen=True, slots=True)
class WorstLinks:
    """The fullest direction of a link between two switches, by the plan and as hosts measure it."""

    planned_commodities: float
    """The most commodities on one link. A commodity whose lanes take several paths counts in parts."""
    measured_ratio: float | None
    """The most that elephants were measured to send over one link, over its rate; None while nothing was measured."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A path service at a moment. Counts go up only, from its start."""

    topology: str
    planner: str
    hosts: int
    """Devices that are connected."""
    connections: int
    elephants: int
    fixed_elephants: int
    """Those of connections that cannot move, such as the TCP connections of `paralet pin`."""
    commodities: int
    dead_links: int
    drained_links: int
    """Links between switches that elephants avoid, because an operator drains them."""
    pinned_pairs: int
    """Pairs of devices whose path an operator has pinned."""
    counts: Mapping[str, int]
    """By kind of event, such as "announced"; a few dozen kinds."""
    refused: Mapping[str, int]
    """By the code of the error."""
    latency: tuple[tuple[float, int], ...]
    """Upper bounds in seconds, the last infinite, with the number of announcements that took at most that time."""
    latency_sum_s: float
    worst: WorstLinks
    availability: State | None
    """Of one of two services."""


async def figures(server: Server, member: Availability | None = None) -> Figures:
    """The figures of a server, in the thread of its event loop. Hosts are served meanwhile."""
    worst = await _worst_links(server.service)
    service, latency = server.service, server.latency
    below, total = [], 0
    for bound, count in zip((*BOUNDS_S, float("inf")), latency.counts, strict=True):
        total += count
        below.append((bound, total))
    return Figures(
        topology=service.topology.name,
        planner=service.options.planner,
        hosts=service.hosts,
        connections=len(server.connections),
        elephants=service.elephants,
        fixed_elephants=service.fixed_elephants,
        commodities=service.commodities,
        dead_links=len(service.dead),
        drained_links=len(service.constraints.drained),
        pinned_pairs=len(service.constraints.pins),
        counts=dict(service.counts),
        refused=dict(server.counts),
        latency=tuple(below),
        latency_sum_s=latency.sum_s,
        worst=worst,
        availability=None if member is None else member.state(),
    )


async def _worst_links(service: PathService) -> WorstLinks:
    planned: defaultdict[PortRef, float] = defaultdict(float)
    measured_bps: defaultdict[PortRef, float] = defaultdict(float)
    for number, (paths, rate_bps) in enumerate(service.ways()):
        if number % _PART == 0:
            await asyncio.sleep(0)
        for path in paths:
            for port in path[1:-1]:  # the ends are links of hosts
                planned[port] += 1 / len(paths)
                if rate_bps is not None:
                    measured_bps[port] += rate_bps / len(paths)
    ratios = (bps / service.topology.link_at(port).rate_bps for port, bps in measured_bps.items())
    return WorstLinks(round(max(planned.values(), default=0.0), 6), max(ratios, default=None))
