# SPDX-License-Identifier: Apache-2.0
"""Max-min fair rates where hosts measure: by the paths that lanes take."""

from __future__ import annotations

import pytest

from netmodel import LinuxL4Hash, forwarding, leaf_spine
from sdn.path_service.messages import Release
from tests.sdn.path_service.sample import RATE, address
from tests.sdn.path_service.test_measured import LANES, Probers, measured

NARROW = leaf_spine(2, 2, 2, RATE)
"""Two leaves and two spines: each leaf has two hosts, and as many links up as these fill."""


def rates(probers: Probers) -> dict[int, float | None]:
    """The rate that each connection was told last."""
    return {conn: message.rate_bps for _, conn, message in probers.answers}


def test_a_pair_has_the_rate_of_its_paths_as_soon_as_its_ports_are_known() -> None:
    probers = measured(NARROW, LinuxL4Hash(), rates=True)
    for host in (0, 1):
        probers.connect(host)
        probers.announce(host, 2)
    assert probers.answers == [], "an announcement waits for its ports, not for its rate"
    probers.run(20.0)
    assert [len(ports) for ports in probers.ports.values()] == [LANES] * 2
    assert rates(probers) == {0: pytest.approx(RATE / 2), 1: pytest.approx(RATE / 2)}
    said = len(probers.answers)
    probers.run(1.0)
    assert len(probers.answers) == said, "rates that have not changed are not sent again"
    probers.say(1, Release(1))
    probers.run(1.0)
    assert rates(probers)[0] == pytest.approx(RATE)


def test_rates_follow_when_routes_change() -> None:
    probers = measured(NARROW, LinuxL4Hash(), rates=True)
    for host in (0, 1):
        probers.connect(host)
        probers.announce(host, host + 2)
    probers.run(20.0)
    assert rates(probers) == {0: pytest.approx(RATE), 1: pytest.approx(RATE)}
    dead = frozenset(link for link in NARROW.links if "spine1" in (link.a.node, link.b.node))
    probers.change(forwarding(NARROW, dead))
    probers.run(10.0)
    assert not probers.misplaced()
    assert rates(probers) == {0: pytest.approx(RATE / 2), 1: pytest.approx(RATE / 2)}
    probers.change(None)
    probers.run(20.0)
    assert rates(probers) == {0: pytest.approx(RATE), 1: pytest.approx(RATE)}


def test_a_pair_without_ports_has_no_limit_and_counts_as_idle() -> None:
    probers = measured(NARROW, LinuxL4Hash(), rates=True)
    probers.connect(0)
    probers.connect(1, probes=False)
    probers.announce(0, 2)
    probers.announce(1, 2)
    probers.run(2.0)
    assert probers.ports == {(0, address(NARROW, 2)): probers.ports[0, address(NARROW, 2)], (1, address(NARROW, 2)): []}
    assert rates(probers) == {0: pytest.approx(RATE), 1: None}
