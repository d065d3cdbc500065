# SPDX-License-Identifier: Apache-2.0
"""Hosts with two NICs, each on a separate leaf: packets leave by the NIC that owns their source address.

h1, h2: nic0 - leaf1, nic1 - leaf2; leaf1, leaf2 = spine1, spine2
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from emul import MininetFabric
from netmodel import Flow, Host, Link, Nic, OvsHash, PortRef, Switch, Topology, derived_hash_seed, derived_mac, path_of
from tests.integration.traffic import PATIENCE_S, PORT, in_host

pytestmark = pytest.mark.sandboxed

RATE_BPS = 100_000_000
ADDRESSES = {(host, rail): IPv4Address(f"10.0.{rail}.{host}") for host in (1, 2) for rail in (0, 1)}


def two_rails() -> Topology:
    hosts = tuple(
        Host(f"h{host}", tuple(Nic(f"nic{r}", ADDRESSES[host, r], derived_mac(ADDRESSES[host, r])) for r in (0, 1)))
        for host in (1, 2)
    )
    switches = tuple(
        Switch(name, "leaf" if name.startswith("leaf") else "spine", dpid, derived_hash_seed(dpid))
        for dpid, name in enumerate(("leaf1", "leaf2", "spine1", "spine2"), start=1)
    )
    cables = [(PortRef(f"leaf{r + 1}", h), PortRef(f"h{h}", r + 1)) for r in (0, 1) for h in (1, 2)]
    cables += [(PortRef(f"leaf{n}", 2 + s), PortRef(f"spine{s}", n)) for n in (1, 2) for s in (1, 2)]
    return Topology("rails", hosts, switches, tuple(Link(a, b, RATE_BPS) for a, b in cables), 9000)


def test_every_pair_of_nics_communicates_over_the_predicted_path(tmp_path: Path) -> None:
    topology = two_rails()

    def bound(host: int, rail: int, port: int) -> socket.socket:
        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((str(ADDRESSES[host, rail]), port))
            made.settimeout(PATIENCE_S)
            return made

        return in_host(fabric, f"h{host}", make)

    with MininetFabric(topology, log_dir=tmp_path) as fabric:
        for from_rail in (0, 1):
            for to_rail in (0, 1):
                out, into = bound(1, from_rail, 50000), bound(2, to_rail, PORT)
                flow = Flow(ADDRESSES[1, from_rail], ADDRESSES[2, to_rail], 50000)
                before = fabric.link_counters()
                out.sendto(b"x", (str(flow.dst), PORT))
                assert into.recv(10) == b"x"
                after = fabric.link_counters()
                moved = {port for port in after if after[port].tx_packets != before[port].tx_packets}
                assert moved == set(path_of(topology, flow, OvsHash())[1:])
                out.close()
                into.close()
