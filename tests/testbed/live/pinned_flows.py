# SPDX-License-Identifier: Apache-2.0
"""Made-up reports of agents of `paralet pin`."""

from __future__ import annotations

from paralet_pin.check import NotPinned, Pinned, Report

FLOW = Pinned(
    pid=7,
    what="socket 3",
    protocol="tcp",
    local="10.0.0.1",
    remote="10.0.0.2",
    remote_port=5,
    port=50001,
    planned_port=50001,
    bytes=1000,
    timeouts=0,
    elephant=True,
)
OTHER = NotPinned(
    pid=7, what="socket 4", protocol="tcp", local="::", remote="::1", remote_port=6, why="the program has bound it"
)


def report(*flows: Pinned, others: tuple[NotPinned, ...] = ()) -> Report:
    return Report(
        format="paralet-pin-1",
        job="",
        path_service=True,
        clients=1,
        connected=1,
        asked=1,
        given=1,
        pinned=list(flows),
        not_pinned=list(others),
    )
