# SPDX-License-Identifier: Apache-2.0
"""Reading OVS's flow table and tracer; the samples are of OVS 3.1.0."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from math import inf

import pytest

from emul.flow_dump import ObservedFlow, counted_by_port, observed_flows, single_output, traced_output
from netmodel import IPPROTO_TCP, IPPROTO_UDP, Flow

EXACT = (
    "recirc_id(0),in_port(leaf1-eth1),packet_type(ns=0,id=0),eth_type(0x0800),"
    "ipv4(src=10.0.0.1,dst=10.0.1.2,proto=17,frag=no),udp(src=50000,dst=4791), "
    "packets:3, bytes:12450, used:0.5s, actions:leaf1-eth3"
)
IPV6 = EXACT.replace("0x0800", "0x86dd").replace(
    "ipv4(src=10.0.0.1,dst=10.0.1.2,proto=17", "ipv6(src=fd00::a00:1,dst=fd00::a00:101,proto=17"
)
WILD = (
    "recirc_id(0),in_port(spine1-eth1),packet_type(ns=0,id=0),eth_type(0x0800),ipv4(dst=10.0.1.2,frag=no), "
    "packets:3, bytes:12450, used:0.5s, actions:spine1-eth2"
)
DROP = EXACT.replace("actions:leaf1-eth3", "actions:drop")
REWRITE = EXACT.replace("actions:leaf1-eth3", "actions:set(eth(dst=02:00:0a:00:01:02)),leaf1-eth4")
TRACE = """Flow: udp,in_port=LOCAL,nw_src=10.0.0.1
bridge("leaf1")
 0. ip,nw_dst=10.0.1.2, priority 100
    group:2
     -> using bucket 0
    output:3

Final flow: unchanged
Megaflow: recirc_id=0,eth,udp,in_port=LOCAL
Datapath actions: {}
"""


def test_exact_udp_flows_are_found_and_others_left_out() -> None:
    flow = Flow(IPv4Address("10.0.0.1"), IPv4Address("10.0.1.2"), 50000)
    assert list(observed_flows("\n".join(("flow-dump from the main thread:", EXACT, WILD, DROP, REWRITE)))) == [
        ObservedFlow(flow, "leaf1-eth1", "leaf1-eth3", packets=3, bytes=12450, idle_s=0.5),
        ObservedFlow(flow, "leaf1-eth1", "leaf1-eth4", packets=3, bytes=12450, idle_s=0.5),
    ]


def test_a_flow_of_tcp_is_told_from_one_of_udp() -> None:
    tcp = EXACT.replace("proto=17", "proto=6").replace("udp(", "tcp(")
    assert [seen.flow.protocol for seen in observed_flows("\n".join((tcp, EXACT)))] == [IPPROTO_TCP, IPPROTO_UDP]


def test_a_flow_of_ipv6_is_found() -> None:
    assert [seen.flow for seen in observed_flows(IPV6)] == [
        Flow(IPv6Address("fd00::a00:1"), IPv6Address("fd00::a00:101"), 50000)
    ]


def test_a_flow_without_counted_packets_has_infinite_idle_time() -> None:
    (seen,) = observed_flows(EXACT.replace("packets:3, bytes:12450, used:0.5s", "packets:0, bytes:0, used:never"))
    assert (seen.packets, seen.bytes, seen.idle_s) == (0, 0, inf)


@pytest.mark.parametrize(
    ("actions", "out"),
    [
        ("leaf1-eth3", "leaf1-eth3"),
        ("drop", None),
        ("leaf1-eth3,leaf1-eth4", None),
        ("set(eth(dst=02:00:0a:00:01:02)),leaf1-eth4", "leaf1-eth4"),
        ("userspace(pid=0,slow_path(action))", None),
    ],
)
def test_only_a_single_output_counts(actions: str, out: str | None) -> None:
    assert single_output(actions) == out


def test_a_trace_names_its_output() -> None:
    assert traced_output(TRACE.format("leaf1-eth3")) == "leaf1-eth3"
    assert traced_output(TRACE.format("drop")) is None
    assert traced_output("ovs-appctl: no such bridge") is None


def test_rule_counters_are_read_by_ingress_port() -> None:
    text = """
 cookie=0x57a4, duration=4.206s, table=0, n_packets=0, n_bytes=0, priority=170,ip,in_port=1 actions=drop
 cookie=0x57a4, duration=4.206s, table=0, n_packets=12, n_bytes=504, priority=170,ip,in_port=5 actions=drop
 cookie=0x0, duration=4.206s, table=0, n_packets=3, n_bytes=30, priority=0 actions=drop
"""
    assert list(counted_by_port(text)) == [(1, 0), (5, 12)]
