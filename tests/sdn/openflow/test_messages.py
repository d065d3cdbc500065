# SPDX-License-Identifier: Apache-2.0
"""Messages for switches, byte for byte where os-ken does not know the format."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest

ofproto = pytest.importorskip("os_ken.ofproto.ofproto_v1_5")
parser = pytest.importorskip("os_ken.ofproto.ofproto_v1_5_parser")

from netmodel import leaf_spine  # noqa: E402 - after the skip
from sdn.openflow import messages as openflow  # noqa: E402
from sdn.openflow.program import EMPTY, Change, difference, programs  # noqa: E402
from sdn.openflow.source_rules import Pinning  # noqa: E402


class Datapath:
    """The part of a connection that message builders need."""

    ofproto = ofproto
    ofproto_parser = parser


def serialized(message: Any) -> bytes:
    message.set_xid(1)
    message.serialize()
    return bytes(message.buf)


def test_the_selection_property_is_laid_out_as_ovs_documents_it() -> None:
    # ntr_group_property_selection_method of OVS's group-selection-method-property.txt, then one OXM per field
    assert openflow.HashSelection(0x1122334455667788).serialize().hex() == (
        "ffff007d" + "0000154d" + "00000001" + "00000000" + b"hash".ljust(16, b"\0").hex() + "1122334455667788"
        "80001604ffffffff"
        + "80001804ffffffff"
        + "80003410"
        + "ff" * 16
        + "80003610"
        + "ff" * 16
        + "80001401ff"
        + "80001a02ffff"
        + "80001c02ffff"
        + "80001e02ffff"
        + "80002002ffff"
        + "000000"
    )


def test_buckets_have_their_index_as_id_and_equal_weights() -> None:
    program = programs(leaf_spine(2, 3, 1, 1_000_000))["leaf1"]
    messages = list(openflow.change(Datapath(), difference(EMPTY, program)))
    group = next(message for message in messages if isinstance(message, parser.OFPGroupMod))
    assert [bucket.bucket_id for bucket in group.buckets] == [0, 1, 2]
    assert [bucket.actions[0].port for bucket in group.buckets] == [2, 3, 4]
    assert {bucket.properties[0].weight for bucket in group.buckets} == {1}
    assert len(serialized(group)) % 8 == 0


def test_groups_come_before_the_routes_that_use_them_and_go_after() -> None:
    old, new = (programs(leaf_spine(2, spines, 1, 1_000_000))["leaf1"] for spines in (2, 1))
    kinds = [type(m).__name__ for m in openflow.change(Datapath(), difference(EMPTY, old))]
    assert kinds == ["OFPGroupMod", "OFPBarrierRequest", "OFPFlowMod", "OFPFlowMod"]
    kinds = [type(m).__name__ for m in openflow.change(Datapath(), difference(old, new))]
    assert kinds == ["OFPFlowMod", "OFPBarrierRequest", "OFPGroupMod"]


def test_no_change_is_no_message() -> None:
    assert list(openflow.change(Datapath(), Change((), (), (), (), ()))) == []


@pytest.mark.parametrize("ipv6", [False, True])
@pytest.mark.parametrize("pinning", ["hash", "rules"])
def test_every_message_can_be_serialized(ipv6: bool, pinning: Pinning) -> None:
    program = programs(leaf_spine(2, 2, 2, 1_000_000, ipv6=ipv6), pinning=pinning)["leaf1"]
    datapath = Datapath()
    gone = difference(program, EMPTY)
    assert gone.delete_routes
    assert gone.delete_groups
    for message in (
        *openflow.wipe(datapath),
        *openflow.base(datapath, program),
        *openflow.change(datapath, difference(EMPTY, program)),
        *openflow.change(datapath, gone),
        openflow.describe_ports(datapath),
    ):
        assert serialized(message)


def test_an_arp_answer_exists_for_every_address() -> None:
    program = programs(leaf_spine(2, 2, 2, 1_000_000))["leaf1"]
    flows = [m for m in openflow.base(Datapath(), program) if m.priority == openflow.ARP_PRIORITY]
    assert {IPv4Address(flow.match["arp_tpa"]) for flow in flows} == set(program.arp)


def test_routes_of_an_ipv6_fabric_match_ipv6_packets_and_need_no_arp() -> None:
    program = programs(leaf_spine(2, 2, 2, 1_000_000, ipv6=True))["leaf1"]
    flows = [m for m in openflow.change(Datapath(), difference(EMPTY, program)) if isinstance(m, parser.OFPFlowMod)]
    assert {flow.match["eth_type"] for flow in flows} == {0x86DD}
    assert {IPv6Address(flow.match["ipv6_dst"]) for flow in flows} == set(program.routes)
    assert [m.priority for m in openflow.base(Datapath(), program)] == [0]


@pytest.mark.parametrize(
    ("config", "state", "down"),
    [(0, ofproto.OFPPS_LIVE, False), (0, ofproto.OFPPS_LINK_DOWN, True), (ofproto.OFPPC_PORT_DOWN, 0, True)],
)
def test_a_port_is_down_by_its_link_or_by_order(config: int, state: int, down: bool) -> None:
    port = parser.OFPPort(1, 0, "02:00:00:00:00:01", b"p", config, state, [])
    assert openflow.port_is_down(Datapath(), port) == down
