# SPDX-License-Identifier: Apache-2.0
"""A cut link: its traffic moves to the predicted paths, at remote leaves too, and returns with the link."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from emul import MininetFabric
from emul.openflow_app import OpenFlowAppError
from netmodel import Flow, Link, OvsHash, PortRef, forwarding, leaf_spine, path_of
from testbed.bench import cuts, failures
from tests.integration.traffic import RawSender, address, receiver

pytestmark = pytest.mark.sandboxed

TOPOLOGY = leaf_spine(3, 3, 1, 1_000_000_000)
FLOWS_PER_PAIR = 12


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[MininetFabric]:
    with MininetFabric(TOPOLOGY, log_dir=tmp_path) as running:
        yield running


def uplink(leaf: str, spine: str) -> Link:
    return next(link for link in TOPOLOGY.links if {link.a.node, link.b.node} == {leaf, spine})


def check_paths(fabric: MininetFabric, dead: frozenset[Link]) -> set[PortRef]:
    """Send one datagram per flow between all hosts; each must take the path predicted without `dead`. Ports used."""
    fabric.ovs.appctl("revalidator/wait")  # what the datapath remembers of earlier routes is put right a moment later
    routes = forwarding(TOPOLOGY, dead)
    names = [host.name for host in TOPOLOGY.hosts]
    receivers = {name: receiver(fabric, name) for name in names}
    senders = {name: RawSender(fabric, name) for name in names}
    used: set[PortRef] = set()
    for source in names:
        for destination in names:
            if source == destination:
                continue
            for port in range(50000, 50000 + FLOWS_PER_PAIR):
                flow = Flow(address(fabric, source), address(fabric, destination), port)
                path = path_of(TOPOLOGY, flow, OvsHash(), routes=routes)
                before = fabric.link_counters()
                senders[source].send(flow.dst, port)
                receivers[destination].recv(100)
                after = fabric.link_counters()
                moved = {at for at in after if after[at].tx_packets != before[at].tx_packets}
                assert moved == set(path[1:]), (flow, dead)
                used |= moved
    for opened in (*receivers.values(), *senders.values()):
        opened.close()
    return used


def test_traffic_leaves_a_cut_link_and_returns_when_it_is_restored(fabric: MininetFabric) -> None:
    everything = check_paths(fabric, frozenset())
    cut = uplink("leaf3", "spine1")
    assert {cut.a, cut.b} <= everything

    fabric.set_link(cut, up=False)
    used = check_paths(fabric, frozenset({cut}))
    assert not used & {cut.a, cut.b}
    # leaf1 still uses spine1 to leaf2, though no longer to leaf3
    assert uplink("leaf1", "spine1").a in used or uplink("leaf1", "spine1").b in used

    fabric.set_link(cut, up=True)
    assert check_paths(fabric, frozenset()) == everything


def test_cuts_accumulate_and_a_disconnected_host_has_no_routes_until_restored(fabric: MininetFabric) -> None:
    cuts = [uplink("leaf1", "spine1"), uplink("leaf1", "spine2"), uplink("leaf2", "spine1")]
    for number, cut in enumerate(cuts, start=1):
        fabric.set_link(cut, up=False)
        check_paths(fabric, frozenset(cuts[:number]))
    cable = next(link for link in TOPOLOGY.links if "h3" in (link.a.node, link.b.node))
    fabric.set_link(cable, up=False)
    assert fabric.traced_port("leaf1", Flow(address(fabric, "h1"), address(fabric, "h3"), 50000)) is None
    for cut in (cable, *cuts):
        fabric.set_link(cut, up=True)
    check_paths(fabric, frozenset())


def test_cutting_a_cut_link_has_no_effect_and_an_unknown_link_is_refused(fabric: MininetFabric) -> None:
    cut = uplink("leaf1", "spine1")
    fabric.set_link(cut, up=True)
    fabric.set_link(cut, up=False)
    fabric.set_link(cut, up=False)
    with pytest.raises(ValueError, match="has no link"):
        fabric.set_link(Link(PortRef("leaf1", 9), PortRef("spine1", 9), 1), up=False)


def test_a_silent_loss_stops_lanes_of_ecmp_until_it_ends_and_loses_nothing(fabric: MininetFabric) -> None:
    """Switches do not notice it, so that no lane moves."""
    case = failures.silent_loss(fabric, [PortRef("leaf1", 2), PortRef("leaf1", 3)], "two of three uplinks", None)
    outage = cuts.observe(fabric, case, "ecmp", settle_s=1.5)
    assert outage.messages > 0 == outage.lost
    assert outage.lanes > 0 == outage.moved == outage.others
    assert outage.still_s is None


def test_without_its_openflow_app_the_fabric_forwards_and_reports_when_it_needs_it(fabric: MininetFabric) -> None:
    app = next(
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and b"sdn.openflow.app" in (entry / "cmdline").read_bytes().split(b"\0")
    )
    os.kill(app, signal.SIGKILL)
    check_paths(fabric, frozenset())
    with pytest.raises(OpenFlowAppError, match="the OpenFlow app ended"):
        fabric.set_link(uplink("leaf1", "spine1"), up=False)
