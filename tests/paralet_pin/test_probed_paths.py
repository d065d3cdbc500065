# SPDX-License-Identifier: Apache-2.0
"""Paths of connections by what `paralet probe` has written."""

from __future__ import annotations

from msgspec.structs import replace

from netmodel.probing.observations import Observation, ProbeFile
from paralet_pin.probed_paths import with_probed
from tests.testbed.live.pinned_flows import FLOW, report

BEGAN = "2026-11-28T09:00:00Z"


def hop(
    ttl: int, router: str, at_s: float = 1.0, port: int = FLOW.port, to_port: int = FLOW.remote_port
) -> Observation:
    return Observation(FLOW.local, FLOW.remote, "tcp", port, to_port, ttl, "hop", router, 0.001, at_s)


def test_a_connection_has_the_routers_that_answered_probes_from_its_port() -> None:
    silent = Observation(FLOW.local, FLOW.remote, "tcp", FLOW.port, FLOW.remote_port, 3, "none", None, None, 9.0)
    others = [hop(1, "172.16.0.8", port=FLOW.port + 1), hop(1, "172.16.0.9", to_port=FLOW.remote_port + 1)]
    seen = [hop(2, "172.16.0.2", 2.0), hop(2, "172.16.0.3", 1.0), hop(1, "172.16.0.1"), silent, *others]
    told = replace(FLOW, path=["h1:1", "leaf1:3"])
    said = with_probed(report(FLOW, told, replace(FLOW, port=60000)), [ProbeFile("h1", BEGAN, tuple(seen))])
    assert [flow.path for flow in said.pinned] == [["172.16.0.1", "172.16.0.2"], told.path, []]


def test_the_newest_of_several_files_counts() -> None:
    """Times in a file are since its own probing began."""
    before = ProbeFile("h1", BEGAN, (hop(1, "172.16.0.1", at_s=50.0), hop(2, "172.16.0.2", at_s=50.0)))
    after = ProbeFile("h1", "2026-11-28T09:01:00Z", (hop(1, "172.16.0.3", at_s=1.0),))
    for files in ([before, after], [after, before]):
        (flow,) = with_probed(report(FLOW), files).pinned
        assert flow.path == ["172.16.0.3", "172.16.0.2"]
