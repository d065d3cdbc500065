# SPDX-License-Identifier: Apache-2.0
"""The cases of the bench of route changes; tests/integration/routed has one on routers."""

from __future__ import annotations

from pathlib import Path

from emul import RoutedFabric
from netmodel import clos, tiers
from testbed.bench.route_changes import cases


def test_links_of_each_tier_fail_near_and_far_from_the_sender(tmp_path: Path) -> None:
    topology = clos(2, 2, 4, 2, 1, 100_000_000)
    tier = tiers(topology)
    found = list(cases(RoutedFabric(topology, log_dir=tmp_path)))
    ends = [sorted(tier[end.node] for end in (link.a, link.b)) for case in found for link in case.dead]
    assert {tuple(pair) for pair in ends} == {(1, 2), (2, 3)}
    loud, silent = ([case for case in found if case.name.startswith(kind)] for kind in ("cut", "silent"))
    assert [case.dead for case in loud] == [case.dead for case in silent]
    assert all(link in topology.links for case in found for link in case.dead)
