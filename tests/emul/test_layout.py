# SPDX-License-Identifier: Apache-2.0
"""Interface names and host configuration of a topology."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest

from emul.layout import Layout, LayoutError, common_network, switch_end
from netmodel import Host, Link, Nic, PortRef, Switch, Topology, leaf_spine

TOPOLOGY = leaf_spine(2, 2, 1, 20_000_000, 40_000_000)


def renamed(topology: Topology, old: str, new: str) -> Topology:
    def end(port: PortRef) -> PortRef:
        return PortRef(new, port.port) if port.node == old else port

    return replace(
        topology,
        switches=tuple(replace(s, name=new) if s.name == old else s for s in topology.switches),
        links=tuple(Link(end(link.a), end(link.b), link.rate_bps) for link in topology.links),
    )


def test_switch_ports_are_named_by_number_and_nics_keep_their_names() -> None:
    layout = Layout(TOPOLOGY)
    assert layout.interface(PortRef("leaf2", 3)) == "leaf2-eth3"
    assert layout.interface(PortRef("h1", 1)) == "nic0"
    assert set(layout.switch_interfaces()) == {p for p in TOPOLOGY.linked_ports() if not p.node.startswith("h")}


def test_names_too_long_for_the_kernel_are_refused_with_the_port() -> None:
    with pytest.raises(LayoutError, match=r"port averylongname:\d would be .* longer than 15 characters"):
        Layout(renamed(TOPOLOGY, "leaf1", "averylongname"))
    with pytest.raises(LayoutError, match="switch name 'averyverylongname' is longer"):
        Layout(renamed(TOPOLOGY, "leaf1", "averyverylongname"))


def test_switch_ports_are_shaped_at_their_links_rates() -> None:
    lines = Layout(TOPOLOGY).switch_shape_lines()
    assert any("dev leaf1-eth1 root" in line and "rate 20000000bit" in line for line in lines)
    assert any("dev leaf1-eth2 root" in line and "rate 40000000bit" in line for line in lines)
    assert sum("root" in line for line in lines) == 2 + 8


def test_a_host_has_all_neighbours_and_routes_by_source_address() -> None:
    two = Host(
        "h1",
        (
            Nic("nic0", IPv4Address("10.0.0.1"), "02:00:00:00:00:01"),
            Nic("nic1", IPv4Address("10.0.0.2"), "02:00:00:00:00:02"),
        ),
    )
    host = Host("h2", (Nic("nic0", IPv4Address("10.0.0.3"), "02:00:00:00:00:03"),))
    topology = Topology(
        "pair",
        (two, host),
        (Switch("leaf1", "leaf", 1, 1),),
        tuple(
            Link(PortRef("leaf1", number), port, 1_000_000)
            for number, port in enumerate((PortRef("h1", 1), PortRef("h1", 2), PortRef("h2", 1)), start=1)
        ),
        1500,
    )
    lines = Layout(topology).host_lines(two)
    assert "rule add from 10.0.0.2 lookup 101" in lines
    assert "route add 10.0.0.0/30 dev nic1 src 10.0.0.2 table 101" in lines
    assert "neighbour replace 10.0.0.3 lladdr 02:00:00:00:00:03 nud permanent dev nic1" in lines
    assert not any("neighbour replace 10.0.0.1 " in line for line in lines)
    assert len(Layout(topology).host_shape_lines(two)) == 4


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["10.0.0.1", "10.0.3.4"], "10.0.0.0/22"),
        (["10.0.0.1"], "10.0.0.0/30"),
        (["10.0.0.1", "192.168.0.1"], "0.0.0.0/0"),
        (["fd00::a00:1", "fd00::a00:101"], "fd00::a00:0/119"),
        (["fd00::1"], "fd00::/126"),
    ],
)
def test_the_common_network_holds_all_addresses(addresses: list[str], network: str) -> None:
    assert common_network([ip_address(address) for address in addresses]) == ip_network(network)


def test_ipv6_addresses_are_used_at_once() -> None:
    topology = leaf_spine(2, 2, 1, 10**7, ipv6=True)
    lines = Layout(topology).host_lines(topology.host("h1"))
    assert "address add fd00::a00:1/128 nodad dev nic0" in lines
    assert "neighbour replace fd00::a00:101 lladdr 02:00:0a:00:01:01 nud permanent dev nic0" in lines


def test_what_ipv6_hosts_cannot_do_is_refused() -> None:
    with pytest.raises(LayoutError, match="mtu_bytes is 1000, but IPv6 needs at least 1280"):
        Layout(leaf_spine(2, 2, 1, 10**7, mtu_bytes=1000, ipv6=True))
    with pytest.raises(LayoutError, match="hosts that share a namespace have IPv4 addresses only"):
        Layout(leaf_spine(2, 2, 1, 10**7, ipv6=True), shared=True)
    cable = Link(PortRef("h1", 1), PortRef("ocs1", 1), 10**7)
    host = Host("h1", (Nic("nic0", IPv6Address("fd00::1"), "02:00:00:00:00:01"),))
    with pytest.raises(LayoutError, match="link h1:1 to ocs1:1 needs a host that relays, which hosts do for IPv4 only"):
        Layout(Topology("optical", (host,), (Switch("ocs1", "ocs", 1, 1),), (cable,), 9000))


def test_every_link_has_a_switch_end() -> None:
    layout = Layout(TOPOLOGY)
    assert all(layout.is_switch(switch_end(layout, link)) for link in TOPOLOGY.links)


def test_a_host_with_one_nic_needs_no_policy_routing() -> None:
    lines = Layout(TOPOLOGY).host_lines(TOPOLOGY.host("h1"))
    assert not any("rule" in line or "table" in line for line in lines)
    assert "link set dev nic0 address 02:00:0a:00:00:01 mtu 9000 up" in lines
