# SPDX-License-Identifier: Apache-2.0
"""Paths of connections by what `paralet probe` has written. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypeAlias

import msgspec

from netmodel.probing.observations import ProbeFile
from paralet_pin.check import Pinned, Report

_Flow: TypeAlias = tuple[str, str, str, int, int]


def with_probed(report: Report, files: Iterable[ProbeFile]) -> Report:
    """A report where connections whose path nobody has told have the routers that answered probes from their port.

    The newest answer counts at each hop. A hop at which no probe was answered is left out. Raises ValueError, with one
    sentence, where a file does not tell when its probing began.
    """
    wanted = {_of(flow) for flow in report.pinned if not flow.path}
    routers: dict[_Flow, dict[int, tuple[float, str]]] = {}
    for file in files:
        began_s = _began_s(file)
        for one in file.observations:
            flow = (one.source, one.destination, one.protocol, one.source_port, one.destination_port)
            if one.answer == "hop" and flow in wanted:
                hops, answered = routers.setdefault(flow, {}), (began_s + one.at_s, one.router or "")
                hops[one.ttl] = max(hops.get(one.ttl, answered), answered)
    paths = {flow: [router for _, (_, router) in sorted(hops.items())] for flow, hops in routers.items()}
    pinned = [msgspec.structs.replace(flow, path=flow.path or paths.get(_of(flow), [])) for flow in report.pinned]
    return msgspec.structs.replace(report, pinned=pinned)


def _began_s(file: ProbeFile) -> float:
    """By the wall clock: times in a file are since its own probing began."""
    try:
        return datetime.fromisoformat(file.began).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{file.began!r} is no time at which the probes of {file.host!r} began") from None


def _of(flow: Pinned) -> _Flow:
    return flow.local, flow.remote, flow.protocol, flow.port, flow.remote_port
