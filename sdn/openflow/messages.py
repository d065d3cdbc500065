# SPDX-License-Identifier: Apache-2.0
"""OpenFlow 1.5 messages for programs: the typed boundary around os-ken's untyped parser. It builds and never sends.

os-ken ships no types, so a datapath and its messages are `Any` here and nowhere else.
"""

import struct
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address
from typing import Any, TypeAlias

from netmodel import ROCE_PORT
from netmodel.flow import IPPROTO_TCP, IPPROTO_UDP, Address
from sdn.openflow.networks import Network
from sdn.openflow.program import Change, Group, IngressMatch, Output, Program, Route
from sdn.openflow.source_rules import SourceMatch

Datapath: TypeAlias = Any
"""os_ken.controller.controller.Datapath with the OpenFlow 1.5 parser."""
Message: TypeAlias = Any
"""A message that `Datapath.send_msg` takes."""

ROUTE_PRIORITY = 100
PIN_PRIORITY = 150
CLOSED_PRIORITY = 170
STEER_PRIORITY = 180
ARP_PRIORITY = 200

STRAY_COOKIE = 0x57A4
"""The cookie of rules that drop and count packets that a closed port does not let through."""

_ETH_TYPE_IPV4 = 0x0800
_ETH_TYPE_ARP = 0x0806
_ETH_TYPE_IPV6 = 0x86DD
_ARP_REQUEST, _ARP_REPLY = 1, 2

# OpenFlow 1.5.1, 7.2.3.8: basic-class OXM headers are class (16 bits), field (7), has-mask (1), payload length (8).
_OXM_CLASS_BASIC = 0x8000
_HASH_FIELDS = (  # OXM field number: bytes
    (11, 4),  # ipv4_src
    (12, 4),  # ipv4_dst
    (26, 16),  # ipv6_src
    (27, 16),  # ipv6_dst
    (10, 1),  # ip_proto
    (13, 2),  # tcp_src
    (14, 2),  # tcp_dst
    (15, 2),  # udp_src
    (16, 2),  # udp_dst
)

_GROUP_PROPERTY_EXPERIMENTER = 0xFFFF
_NETRONOME_VENDOR = 0x0000154D
_SELECTION_METHOD = 1
_PROPERTY_HEADER = struct.Struct("!HHII4x16sQ")  # type, length, experimenter, its type, method name, parameter


class HashSelection:
    """The group property "selection_method=hash" over all bits of the addresses, ip_proto and the ports of TCP and UDP.

    A Netronome extension, documented in OVS's Documentation/group-selection-method-property.txt. os-ken's own
    experimenter property packs 32-bit words only and cannot carry the one-byte ip_proto.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def serialize(self) -> bytearray:
        """The property's bytes, padded to 8; the length field excludes padding (OpenFlow 1.5.1, 7.3.4.3)."""
        fields = b"".join(
            struct.pack("!HBB", _OXM_CLASS_BASIC, number << 1, length) + b"\xff" * length
            for number, length in _HASH_FIELDS
        )
        length = _PROPERTY_HEADER.size + len(fields)
        header = _PROPERTY_HEADER.pack(
            _GROUP_PROPERTY_EXPERIMENTER, length, _NETRONOME_VENDOR, _SELECTION_METHOD, b"hash", self.seed
        )
        return bytearray(header + fields + bytes(-length % 8))


def wipe(datapath: Datapath) -> Iterator[Message]:
    """Messages that delete all state of a switch, which an earlier OpenFlow app may have left."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    yield parser.OFPFlowMod(
        datapath,
        table_id=protocol.OFPTT_ALL,
        command=protocol.OFPFC_DELETE,
        out_port=protocol.OFPP_ANY,
        out_group=protocol.OFPG_ANY,
    )
    yield parser.OFPGroupMod(
        datapath, command=protocol.OFPGC_DELETE, type_=protocol.OFPGT_SELECT, group_id=protocol.OFPG_ALL
    )


def base(datapath: Datapath, program: Program) -> Iterator[Message]:
    """Messages for rules that do not depend on links: the table miss, which drops, and the ARP answers."""
    parser = datapath.ofproto_parser
    yield _put_flow(datapath, 0, parser.OFPMatch(), [])
    for address, mac in program.arp.items():
        if isinstance(address, IPv4Address):  # hosts of an IPv6 fabric have permanent neighbours
            yield _arp_answer(datapath, address, mac)


def change(datapath: Datapath, steps: Change) -> Iterator[Message]:
    """Messages that carry out `steps` in order, with a barrier wherever the order matters to packets."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    for group in steps.add_groups:
        yield _group(datapath, protocol.OFPGC_ADD, group)
    for group in steps.modify_groups:
        yield _group(datapath, protocol.OFPGC_MODIFY, group)
    if steps.add_groups or steps.modify_groups:
        yield barrier(datapath)
    for port in steps.close:
        for entering in _from(datapath, port):
            yield _put_flow(datapath, CLOSED_PRIORITY, entering, [], cookie=STRAY_COOKIE)
    for address, route in steps.put_routes:
        yield _put_flow(datapath, ROUTE_PRIORITY, _to(datapath, address), _route_actions(datapath, route))
    for address in steps.delete_routes:
        yield _delete_flow(datapath, ROUTE_PRIORITY, _to(datapath, address))
    for match in steps.delete_pins:
        for pinned in _pinned(datapath, match):
            yield _delete_flow(datapath, PIN_PRIORITY, pinned)
    for match, port in steps.put_pins:
        for pinned in _pinned(datapath, match):
            yield _put_flow(datapath, PIN_PRIORITY, pinned, [parser.OFPActionOutput(port, 0)])
    for steer in steps.delete_steers:
        yield _delete_flow(datapath, STEER_PRIORITY, _entering(datapath, steer))
    for steer, route in steps.put_steers:
        yield _put_flow(datapath, STEER_PRIORITY, _entering(datapath, steer), _route_actions(datapath, route))
    for port in steps.open:
        for entering in _from(datapath, port):
            yield _delete_flow(datapath, CLOSED_PRIORITY, entering)
    if steps.delete_groups:
        yield barrier(datapath)
    for group_id in steps.delete_groups:
        yield parser.OFPGroupMod(
            datapath, command=protocol.OFPGC_DELETE, type_=protocol.OFPGT_SELECT, group_id=group_id
        )


def barrier(datapath: Datapath) -> Message:
    """A request that the switch answers when it has carried out all messages before it."""
    return datapath.ofproto_parser.OFPBarrierRequest(datapath)


def describe_ports(datapath: Datapath) -> Message:
    """A request for the state of every port."""
    return datapath.ofproto_parser.OFPPortDescStatsRequest(datapath, 0, datapath.ofproto.OFPP_ANY)


def port_is_down(datapath: Datapath, port: Any) -> bool:
    """Whether a port description says that the port is down, administratively or by its link."""
    protocol = datapath.ofproto
    return bool(port.state & protocol.OFPPS_LINK_DOWN or port.config & protocol.OFPPC_PORT_DOWN)


def error_text(message: Any) -> str:
    """A switch's error message in words."""
    return f"OpenFlow error type {message.type}, code {message.code}"


def _put_flow(datapath: Datapath, priority: int, match: Any, actions: Sequence[Any], cookie: int = 0) -> Message:
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    instructions = [parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, list(actions))] if actions else []
    return parser.OFPFlowMod(
        datapath,
        cookie=cookie,
        command=protocol.OFPFC_ADD,
        priority=priority,
        match=match,
        instructions=instructions,
    )


def _delete_flow(datapath: Datapath, priority: int, match: Any) -> Message:
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPFlowMod(
        datapath,
        command=protocol.OFPFC_DELETE_STRICT,
        priority=priority,
        out_port=protocol.OFPP_ANY,
        out_group=protocol.OFPG_ANY,
        match=match,
    )


def _pinned(datapath: Datapath, match: SourceMatch) -> list[Any]:
    """Matches of the same source ports for both protocols of lanes: OpenFlow has other fields for the ports of each."""
    return [
        datapath.ofproto_parser.OFPMatch(
            **_destination(match.network),
            ip_proto=protocol,
            **{f"{name}_src": (match.src_port, match.mask), f"{name}_dst": ROCE_PORT},
        )
        for protocol, name in ((IPPROTO_UDP, "udp"), (IPPROTO_TCP, "tcp"))
    ]


def _from(datapath: Datapath, port: int) -> list[Any]:
    """Matches of all IP packets that enter by a port."""
    return [
        datapath.ofproto_parser.OFPMatch(in_port=port, eth_type=eth_type)
        for eth_type in (_ETH_TYPE_IPV4, _ETH_TYPE_IPV6)
    ]


def _entering(datapath: Datapath, match: IngressMatch) -> Any:
    return datapath.ofproto_parser.OFPMatch(in_port=match.port, **_destination(match.network))


def _to(datapath: Datapath, address: Address) -> Any:
    if isinstance(address, IPv4Address):
        return datapath.ofproto_parser.OFPMatch(eth_type=_ETH_TYPE_IPV4, ipv4_dst=str(address))
    return datapath.ofproto_parser.OFPMatch(eth_type=_ETH_TYPE_IPV6, ipv6_dst=str(address))


def _destination(network: Network) -> dict[str, Any]:
    """The fields of a match for packets to a network."""
    masked = str(network.network_address), str(network.netmask)
    if network.version == 4:
        return {"eth_type": _ETH_TYPE_IPV4, "ipv4_dst": masked}
    return {"eth_type": _ETH_TYPE_IPV6, "ipv6_dst": masked}


def _route_actions(datapath: Datapath, route: Route) -> list[Any]:
    parser = datapath.ofproto_parser
    actions = [] if route.rewrite_mac is None else [parser.OFPActionSetField(eth_dst=route.rewrite_mac)]
    if isinstance(route.target, Output):
        return [*actions, parser.OFPActionOutput(route.target.port, 0)]
    return [*actions, parser.OFPActionGroup(route.target.group_id)]


def _group(datapath: Datapath, command: int, group: Group) -> Message:
    protocol, parser = datapath.ofproto, datapath.ofproto_parser
    buckets = [
        parser.OFPBucket(
            bucket_id=member,
            actions=[parser.OFPActionOutput(port, 0)],
            properties=[parser.OFPGroupBucketPropWeight(type_=protocol.OFPGBPT_WEIGHT, weight=1)],
        )
        for member, port in enumerate(group.ports)
    ]
    return parser.OFPGroupMod(
        datapath,
        command=command,
        type_=protocol.OFPGT_SELECT,
        group_id=group.group_id,
        buckets=buckets,
        properties=[HashSelection(group.hash_seed)],
    )


def _arp_answer(datapath: Datapath, address: IPv4Address, mac: str) -> Message:
    """A rule that turns a request for `address` into its reply and sends it back: the OpenFlow app sees no packet."""
    protocol, parser = datapath.ofproto, datapath.ofproto_parser

    def copy(bits: int, source: str, destination: str) -> Any:
        return parser.OFPActionCopyField(n_bits=bits, oxm_ids=[parser.OFPOxmId(source), parser.OFPOxmId(destination)])

    actions = [
        copy(48, "eth_src", "eth_dst"),
        parser.OFPActionSetField(eth_src=mac),
        parser.OFPActionSetField(arp_op=_ARP_REPLY),
        copy(48, "arp_sha", "arp_tha"),
        copy(32, "arp_spa", "arp_tpa"),
        parser.OFPActionSetField(arp_sha=mac),
        parser.OFPActionSetField(arp_spa=str(address)),
        parser.OFPActionOutput(protocol.OFPP_IN_PORT, 0),
    ]
    match = parser.OFPMatch(eth_type=_ETH_TYPE_ARP, arp_op=_ARP_REQUEST, arp_tpa=str(address))
    return _put_flow(datapath, ARP_PRIORITY, match, actions)
