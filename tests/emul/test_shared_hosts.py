# SPDX-License-Identifier: Apache-2.0
"""Hosts that share a namespace: names, rules and routes, and where rxe listens. Nothing is configured here."""

from __future__ import annotations

import pytest

from emul import rxe, shared_hosts
from emul.layout import Layout, LayoutError
from netmodel import direct_connect, leaf_spine

LAYOUT = Layout(leaf_spine(2, 2, 1, 10_000_000), shared=True)


def test_interface_names_begin_with_the_host_name() -> None:
    host = LAYOUT.topology.host("h1")
    assert [name for _, name in LAYOUT.linked_nics(host)] == ["h1-nic0"]
    assert not [line for line in LAYOUT.host_lines(host) if line.startswith(("route", "rule"))]


def test_a_name_that_gets_too_long_is_refused() -> None:
    topology = leaf_spine(2, 2, 1, 10_000_000)
    long = topology.hosts[0].name * 6
    hosts = tuple(type(host)(long if host.name == "h1" else host.name, host.nics) for host in topology.hosts)
    links = tuple(
        type(link)(type(link.a)(long, 1) if link.a.node == "h1" else link.a, link.b, link.rate_bps)
        for link in topology.links
    )
    changed = type(topology)(topology.name, hosts, topology.switches, links, topology.mtu_bytes)
    Layout(changed)  # alone in a namespace its NIC is just nic0
    with pytest.raises(LayoutError, match="longer than 15"):
        Layout(changed, shared=True)


def test_hosts_that_would_have_to_relay_are_refused() -> None:
    topology = direct_connect(4, 1, 10_000_000)
    Layout(topology)
    with pytest.raises(LayoutError, match="hosts that share a namespace cannot"):
        Layout(topology, shared=True)


def test_packets_leave_by_their_own_nic_and_the_local_table_comes_last() -> None:
    assert shared_hosts.lines(LAYOUT) == [
        "route add 10.0.0.0/23 dev h1-nic0 src 10.0.0.1 table 100",
        "rule add pref 100 iif lo from 10.0.0.1 lookup 100",
        "route add 10.0.0.0/23 dev h2-nic0 src 10.0.1.1 table 101",
        "rule add pref 100 iif lo from 10.0.1.1 lookup 101",
        "rule add pref 200 lookup local",
        "rule del pref 0",
    ]
    undone = shared_hosts.undo_lines(LAYOUT)
    assert undone[0] == "rule add pref 0 lookup local"  # first: or nothing would be local for a moment
    assert len(undone) == 2 + 2


def test_every_nic_accepts_local_source_addresses() -> None:
    values = shared_hosts.sysctls(LAYOUT)
    for name in ("all", "h1-nic0", "h2-nic0"):
        assert f"net.ipv4.conf.{name}.accept_local=1" in values
        assert f"net.ipv4.conf.{name}.rp_filter=0" in values


@pytest.mark.parametrize(("port", "there"), [(4791, True), (4790, False)])
def test_listening_sockets_are_read_from_the_kernels_table(port: int, there: bool) -> None:
    heading = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
    entry = f"  123: 00000000:{port:04X} 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77 2"
    assert rxe.listens(f"{heading}\n{entry}\n") is there
    assert not rxe.listens(heading + "\n")
