# SPDX-License-Identifier: Apache-2.0
"""Paths of connections by what `paralet probe` has written. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from netmodel.probing.observations import Observation
from paralet_pin.check import Pinned, Report

_Flow: TypeAlias = tuple[str, str, str, int, int]


def with_probed(report: Report, observations: Iterable[Observation]) -> Report:
    """A report where connections whose path nobody has told have the routers that answered probes from their port.

    The newest answer counts at each hop. A hop at which no probe was answered is left out.
    """
    wanted = {_of(flow) for flow in report.pinned if not flow.path}
    routers: dict[_Flow, dict[int, Observation]] = {}
    for one in observations:
        flow = (one.source, one.destination, one.protocol, one.source_port, one.destination_port)
        if one.answer == "hop" and flow in wanted:
            newest = routers.setdefault(flow, {}).setdefault(one.ttl, one)
            if one.at_s > newest.at_s:
                routers[flow][one.ttl] = one
    paths = {flow: [hop.router or "" for _, hop in sorted(hops.items())] for flow, hops in routers.items()}
    pinned = [msgspec.structs.replace(flow, path=flow.path or paths.get(_of(flow), [])) for flow in report.pinned]
    return msgspec.structs.replace(report, pinned=pinned)


def _of(flow: Pinned) -> _Flow:
    return flow.local, flow.remote, flow.protocol, flow.port, flow.remote_port
