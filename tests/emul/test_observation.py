# SPDX-License-Identifier: Apache-2.0
"""The observer's reading of Open vSwitch's answers, which the test supplies."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any, cast

import pytest

from emul.layout import Layout
from emul.observation import SwitchObserver
from emul.ovs import PrivateOvs
from netmodel import Flow, Link, PortRef, leaf_spine

TOPOLOGY = leaf_spine(2, 2, 1, 10_000_000)
FLOW = Flow(IPv4Address("10.0.0.1"), IPv4Address("10.0.1.1"), 50000)
DUMP = (
    "recirc_id(0),in_port(leaf1-eth1),packet_type(ns=0,id=0),eth_type(0x0800),"
    "ipv4(src=10.0.0.1,dst=10.0.1.1,proto=17,frag=no),udp(src=50000,dst=4791), "
    "packets:7, bytes:700, used:1.5s, actions:leaf1-eth3\n"
)


class RecordedOvs:
    """Answers every command with the text for its first word."""

    def __init__(self, **answers: str) -> None:
        self._answers = {name.replace("_", "/"): text for name, text in answers.items()}

    def appctl(self, *argv: str) -> str:
        return self._answers.get(argv[0].replace("-", "/"), "")

    def command(self, *argv: str) -> str:
        return self._answers["flows"].replace("SWITCH", argv[5])


def observer(**answers: str) -> SwitchObserver:
    ovs: Any = RecordedOvs(**answers)
    return SwitchObserver(TOPOLOGY, Layout(TOPOLOGY).switch_interfaces(), cast(PrivateOvs, ovs), "user")


def test_observed_ports_are_those_of_the_switch_asked_for() -> None:
    asked = observer(dpctl_dump_flows=DUMP)
    assert asked.observed_ports("leaf1") == {FLOW: 3}
    assert asked.observed_ports("leaf2") == {}
    with pytest.raises(KeyError, match="no switch 'leaf9'"):
        asked.observed_ports("leaf9")


def test_flows_cross_a_link_only_while_they_are_recent() -> None:
    asked = observer(dpctl_dump_flows=DUMP)
    link: Link = TOPOLOGY.link_at(PortRef("leaf1", 3))
    assert [seen.flow for seen in asked.crossing(link, 2.0)] == [FLOW]
    assert asked.crossing(link, 1.0) == []
    assert asked.crossing(TOPOLOGY.link_at(PortRef("leaf1", 2)), 2.0) == []


@pytest.mark.parametrize(("actions", "port"), [("leaf1-eth2", 2), ("drop", None)])
def test_a_traced_flow_leaves_by_a_port_or_is_dropped(actions: str, port: int | None) -> None:
    assert observer(ofproto_trace=f"Datapath actions: {actions}\n").traced_port("leaf1", FLOW) == port


def test_strays_are_counted_by_ingress_port() -> None:
    counted = observer(flows=" cookie=0x1, n_packets=4, n_bytes=400, priority=1,in_port=2 actions=drop\n").strays()
    assert counted == {PortRef(switch.name, 2): 4 for switch in TOPOLOGY.switches}
