# SPDX-License-Identifier: Apache-2.0
"""Paths of connections by what `paralet probe` has written."""

from __future__ import annotations

from msgspec.structs import replace

from netmodel.probing.observations import Observation
from paralet_pin.probed_paths import with_probed
from tests.testbed.live.pinned_flows import FLOW, report


def hop(
    ttl: int, router: str, at_s: float = 1.0, port: int = FLOW.port, to_port: int = FLOW.remote_port
) -> Observation:
    return Observation(FLOW.local, FLOW.remote, "tcp", port, to_port, ttl, "hop", router, 0.001, at_s)


def test_a_connection_has_the_routers_that_answered_probes_from_its_port() -> None:
    silent = Observation(FLOW.local, FLOW.remote, "tcp", FLOW.port, FLOW.remote_port, 3, "none", None, None, 9.0)
    others = [hop(1, "172.16.0.8", port=FLOW.port + 1), hop(1, "172.16.0.9", to_port=FLOW.remote_port + 1)]
    seen = [hop(2, "172.16.0.2", 2.0), hop(2, "172.16.0.3", 1.0), hop(1, "172.16.0.1"), silent, *others]
    told = replace(FLOW, path=["h1:1", "leaf1:3"])
    said = with_probed(report(FLOW, told, replace(FLOW, port=60000)), seen)
    assert [flow.path for flow in said.pinned] == [["172.16.0.1", "172.16.0.2"], told.path, []]
