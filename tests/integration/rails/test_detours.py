# SPDX-License-Identifier: Apache-2.0
"""A rail that dies on an emulated fabric: GPUs of the HB domains at both ends forward over the other rail."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from emul import MininetFabric
from netmodel import rail_only
from sdn.failover.detours import Detours, detours
from tests.integration.traffic import PATIENCE_S, PORT, in_host

pytestmark = pytest.mark.sandboxed

RATE_BPS = 100_000_000


def test_packets_go_around_a_dead_rail_switch_and_back_when_it_lives(tmp_path: Path) -> None:
    topology = rail_only(2, 2, RATE_BPS, RATE_BPS)
    plan = detours(topology, ["rail2"], 0, 1)
    ways = {ends: plan.path(topology, *ends) for ends in (("d1g2", "d2g2"), ("d2g2", "d1g2"))}
    straight = {("d1g2", "d2g2"): {"rail2:2"}, ("d2g2", "d1g2"): {"rail2:1"}}
    rail = [link for link in topology.links if "rail2" in (link.a.node, link.b.node)]

    def crossed(src: str, dst: str) -> set[str]:
        """The switch ports by which a packet between NICs on rail 2 left."""
        before = fabric.link_counters()
        sockets[src].sendto(b"x", (str(topology.host(dst).nics[0].address), PORT))
        assert sockets[dst].recv(10) == b"x"
        after = fabric.link_counters()
        return {str(port) for port in after if after[port].tx_packets != before[port].tx_packets}

    def follow() -> None:
        """Wait for the datapath, which remembers earlier routes for a moment and would drop what goes by dead links."""
        fabric.ovs.appctl("revalidator/wait")

    def bound(host: str) -> socket.socket:
        made = closing.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.bind((str(topology.host(host).nics[0].address), PORT))
        made.settimeout(PATIENCE_S)
        return made

    with MininetFabric(topology, log_dir=tmp_path) as fabric, ExitStack() as closing:
        sockets = {host: in_host(fabric, host, lambda host=host: bound(host)) for host in ("d1g2", "d2g2")}
        fabric.allow_detours()
        assert {ends: crossed(*ends) for ends in ways} == straight
        for link in rail:
            fabric.set_link(link, False)
        fabric.set_detours(plan)
        follow()
        for ends, path in ways.items():
            assert crossed(*ends) == {str(port) for port in path if not topology.has_host(port.node)}
        for link in rail:
            fabric.set_link(link, True)
        fabric.set_detours(Detours())
        follow()
        assert {ends: crossed(*ends) for ends in ways} == straight
