# SPDX-License-Identifier: Apache-2.0
"""How soon all paths are known again when routes have changed: simulated hosts and routers, on a clock of the test."""

from __future__ import annotations

import pytest

from netmodel import LinuxL4Hash, forwarding
from sdn.path_service.messages import Moved, Probe
from tests.sdn.path_service.sample import address
from tests.sdn.path_service.test_measured import STEP_S, THREE_TIERS, measured, permuted

AGG1 = frozenset(link for link in THREE_TIERS.links if "agg1" in (link.a.node, link.b.node))


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_all_paths_of_sixteen_hosts_are_known_again_soon_after_a_router_has_died(seed: int) -> None:
    """Just after their first ports, for which routers have spent their answers. Two routers are left at the top."""
    probers = measured(THREE_TIERS, LinuxL4Hash())
    permuted(probers, seed)
    probers.run(2.3)
    probers.change(forwarding(THREE_TIERS, AGG1))
    probers.run(2.0)
    assert probers.misplaced() == set()
    assert probers.service.status()["measured"]["doubtful"] == 0


def test_what_hosts_tell_of_ports_that_move_one_after_another_counts_for_each() -> None:
    """Watched ports are probed in turn, and routers have no answers left for probes of the others."""
    probers = measured(THREE_TIERS, LinuxL4Hash())
    permuted(probers)
    probers.run(8.0)
    (watch,) = [watch for (conn, *_), watch in probers.watches.items() if conn == 0]
    probers.change(forwarding(THREE_TIERS, AGG1))
    moved = [answer for port, router in watch.ports
             if (answer := probers.answer(0, watch.peer, port, watch.ttl)).router != router]  # fmt: skip
    assert len(moved) > 1
    for answer in moved:
        probers.say(0, Moved(watch.peer, (answer,), watch.peer_port, watch.ttl))
    (flow,) = [flow for flow in probers.service.flows(1000) if flow["device"] == address(THREE_TIERS, 0)]
    said = dict(zip(flow["ports"], flow["lane_paths"], strict=True))
    for answer in moved:
        assert said[answer.port] == [str(port) for port in probers.path(0, watch.peer, answer.port)]


def test_hosts_that_go_while_they_try_other_routers_say_nothing_of_these() -> None:
    """The routers are the aggregation switches of the second pod, at hop 4."""
    probers = measured(THREE_TIERS, LinuxL4Hash())

    def tries(host: int) -> bool:
        probers.connect(host)
        probers.announce(host, 4 + host)
        for _ in range(3_000):
            probers.run(STEP_S)
            asks = [message for _, conn, message in probers._due if conn == host and isinstance(message, Probe)]
            if any(ask.ttl == 4 for ask in asks):
                return True
        return False

    for host in range(3):
        assert tries(host)
        probers.hear(probers.service.disconnect(probers.now_s, host))
        probers._due = [each for each in probers._due if each[1] != host]
    assert tries(3)
