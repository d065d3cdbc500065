# SPDX-License-Identifier: Apache-2.0
"""What routers are configured with, and what is read of their kernels."""

from __future__ import annotations

import json
from ipaddress import ip_address

import pytest

from emul.layout import Layout
from emul.routed.flow_set import flows_of
from emul.routed.kernel_routes import routes_of
from emul.routed.setup_lines import router_lines
from emul.shaping import shape_lines
from netmodel import IPPROTO_TCP, Flow, leaf_spine
from netmodel.router_plan import RouterPlan

TOPOLOGY = leaf_spine(2, 2, 1, 20_000_000)
PORTS = {"leaf1-eth1": 1, "leaf1-eth2": 2, "leaf1-eth3": 3}


def test_a_leaf_has_its_own_address_at_ports_of_hosts_and_a_route_to_each() -> None:
    lines = router_lines(RouterPlan(TOPOLOGY), Layout(TOPOLOGY), "leaf1")
    assert lines[:2] == ["address add 192.168.0.1/32 dev lo", "link set dev lo up"]
    at_host = [line for line in lines if "leaf1-eth1" in line]
    assert at_host[1:] == [
        "address add 192.168.0.1/32 dev leaf1-eth1",
        "link set dev leaf1-eth1 up",
        "route replace 10.0.0.1/32 dev leaf1-eth1",
    ]
    assert "address add 172.16.0.2/31 dev leaf1-eth3" in lines


def test_links_of_unnumbered_routers_have_no_addresses() -> None:
    lines = router_lines(RouterPlan(TOPOLOGY, unnumbered=True), Layout(TOPOLOGY), "leaf1")
    assert [line for line in lines if line.startswith("address") and "eth1" not in line] == [
        "address add 192.168.0.1/32 dev lo"
    ]


def test_the_order_of_next_hops_is_the_kernels() -> None:
    listed = [
        {"dst": "default", "dev": "leaf1-eth1"},
        {"dst": "10.0.0.1", "dev": "leaf1-eth1", "flags": []},
        {"dst": "10.0.0.2", "nexthops": [{"dev": "leaf1-eth3", "flags": []}, {"dev": "leaf1-eth2", "flags": []}]},
        {"dst": "10.0.0.3", "nexthops": [{"dev": "leaf1-eth2", "flags": ["dead", "linkdown"]}, {"dev": "leaf1-eth3"}]},
        {"dst": "10.0.0.4", "dev": "leaf1-eth2", "flags": ["linkdown"]},
        {"dst": "172.16.0.0/31", "dev": "leaf1-eth2", "flags": []},
        {"dst": "192.168.0.1", "dev": "lo", "flags": []},
    ]
    assert {str(address): ports for address, ports in routes_of(json.dumps(listed), PORTS).items()} == {
        "10.0.0.1": (1,),
        "10.0.0.2": (3, 2),
        "10.0.0.3": (3,),
    }
    assert routes_of("", PORTS) == {}


def test_noted_flows_have_their_port_and_the_time_since_their_last_packet() -> None:
    listed = (
        'elements = { 10.0.0.1 . 10.0.0.4 . 50000 . 4791 . "p1l1-eth2" expires 59m59s748ms counter packets 3 bytes 300,'
        ' fd00::1 . fd00::4 . 50001 . 4791 . "p1l1-eth3" timeout 1h expires 1h counter packets 1 bytes 92 }'
    )
    first, second = flows_of(listed, IPPROTO_TCP)
    assert first.flow == Flow(ip_address("10.0.0.1"), ip_address("10.0.0.4"), 50000, 4791, IPPROTO_TCP)
    assert (first.out_interface, first.packets, first.bytes) == ("p1l1-eth2", 3, 300)
    assert first.idle_s == pytest.approx(0.252)
    assert (second.flow.src, second.idle_s) == (ip_address("fd00::1"), 0.0)


def test_the_time_since_a_flows_last_packet_may_stand_behind_the_counter() -> None:
    """As nft 1.0.6 prints it for Linux 6.18."""
    listed = (
        'elements = { 10.0.0.1 . 10.0.0.4 . 50000 . 4791 . "p1l1-eth2" counter packets 3 bytes 300 expires 59m59s748ms,'
        ' 10.0.0.1 . 10.0.0.4 . 50001 . 4791 . "p1l1-eth3" counter packets 1 bytes 92 timeout 1h expires 59m58s }'
    )
    assert [seen.idle_s for seen in flows_of(listed, IPPROTO_TCP)] == pytest.approx([0.252, 2.0])


def test_queues_of_routers_let_control_traffic_leave_first() -> None:
    assert shape_lines("leaf1-eth2", 1000, 1500, 96, "bands")[-1].endswith("handle 6: pfifo_fast")
    assert shape_lines("leaf1-eth2", 1000, 1500, 96)[-1].endswith("handle 6: pfifo_head_drop limit 96")
