# SPDX-License-Identifier: Apache-2.0
"""The counters of one device at one moment: the bytes that it publishes, and what `parse` makes of them.

The rest of this text is for readers in other languages. A device writes its counters into an unnamed file in memory,
which disappears with the process: the link in `/proc/PID/fd` that reads `/memfd:paralet-stats (deleted)`. The same user
and root may read it. A forked process inherits it: ignore it where the innermost `NSpid` of `/proc/PID/status` is not
the snapshot's `pid`. A device writes at most every 100 ms, and only if a counter has changed. With more than 2000 lanes
and connections the interval is 50 us times their number. Nothing is published if the kernel grants no memfd or
`ulimit -f` is too small.

1. Read the whole file. Other users' files may have that name too: `fstat` them through `O_PATH` first, for their type
   and their owner, and bound what you read of each user. The file is empty at first and never shrinks.
2. Check `magic`, `version` (2), and that `total_bytes` are there.
3. Compare `crc32` with the CRC-32 (as zlib's) of bytes 16 to `total_bytes`. If they differ, read again.
4. Find records by the sizes in the header. Later versions may append fields to the header, to a connection and to a
   member, and counters to a group; `version` changes if anything else does.

The header (64 bytes; the last four are 0, or paralet's version in three bytes and the back end) is followed, after
`header_bytes`, by the device: 160 bytes, then its counters of messages, discards and the path client, 152 bytes for
each connection under way, and 40 for each member of a fused device. Lanes follow after `device_bytes` more: 104 bytes
each, then their counters. The structs in
`hostlib/native/src/engine/live_counters.cpp` name all fields in order, `hostlib/native/src/base/counters.inc` all
counters, of which each has 8 bytes; the classes below say what the fields count. Numbers have native byte order,
without padding between fields. Texts have 16 bytes of ASCII, padded with zeros. IPv4 addresses are numbers (127.0.0.1
is 0x7F000001), 0 for IPv6, which has 16 bytes of its own. Times are those of CLOCK_MONOTONIC. A snapshot has at most
1024 connections, those that have waited longest; `(guid, id)` of one end are `(peer_guid, remote_id)` of the other. A
lane's counters begin at 0 with its first QP and vanish with the peer. For rates divide by the difference of `time_ns`;
an idle device writes none, so take at most the time between both reads plus 100 ms.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import IPPROTO_TCP

from hostlib import _engine
from hostlib.port_owners import Protocol
from hostlib.published import SnapshotError

__all__ = [
    "COUNTERS",
    "ConnectionSnapshot",
    "DeviceSnapshot",
    "Discards",
    "LaneSnapshot",
    "Member",
    "Messages",
    "PathClient",
    "address_order",
    "parse",
]

COUNTERS: Mapping[str, Mapping[str, str]] = _engine.counters()
"""All counters by group (``lane``, ``messages``, ``discards``, ``path_client``): name and meaning, in the order of
snapshots. Each is a field of the class of its group."""

VERSION = 2
_MAGIC = b"paralet\0"
_HEADER = struct.Struct("=8sIIQQqIIIIII")
_DEVICE = struct.Struct("=16s16s16sIIIIQQQ16sQQ8IQ")
_CONNECTION = struct.Struct("=16sIIIIIIII11Q16s")
_BACK_ENDS = {1: "soft", 2: "tcp", 3: "verbs"}
_STATES = ("connecting", "open", "closing")
_MEMBER = struct.Struct("=16s16sII")
_LANE = struct.Struct("=IIII16s16s7Q")
_COUNTER_BYTES = 8
_LANE_NAMES = tuple(COUNTERS["lane"])
_LANE_COUNTERS = struct.Struct(f"={len(_LANE_NAMES)}Q")
_CHECKED_FROM = 16  # the CRC covers everything from here on
_MOST_UNDER_WAY = 1024
_MOST_MEMBERS = 64


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane towards one peer. Counters start with its first QP; bytes are payload."""

    peer: str
    lane: int
    qpn: int
    port: int
    """The source port of the lane."""
    port_method: str
    """How the port was set: ``socket``, ``flow_label``, ``modify_qp``, or ``none`` when the driver chooses it."""
    window: float
    """Packets that may be in flight."""
    rtt_s: float
    """Smoothed round trip; 0 before the first measurement."""
    min_rtt_s: float
    unfinished: int
    """Work posted and not finished: flowlets, receive advertisements, pings."""
    outstanding_bytes: int
    """Bytes of posted flowlets."""
    waiting_since_s: float
    """Since when nothing of the posted work was acknowledged, on the monotonic clock; 0 without posted work."""
    member: int
    """Index of the lane's NIC in a fused device's `members`."""
    flowlets: int
    """Flowlets that were sent and acknowledged."""
    moves: int
    """How often the lane has changed its port."""
    tx_packets: int
    tx_bytes: int
    """Payload bytes sent, retransmissions included."""
    rx_packets: int
    rx_bytes: int
    retransmits: int
    """Retransmitted packets."""
    timeouts: int
    naks: int
    """NAKs that the peer has sent."""
    rnr: int
    """Received NAKs of the kind receiver not ready."""
    duplicates: int
    """Packets received twice."""
    out_of_order: int
    """Packets received ahead of a gap."""
    stale_acks: int
    """Received acknowledgements of packets that were acknowledged before."""
    rx_marked: int
    """Data packets received with a congestion mark (ECN)."""
    tx_marked: int
    """Sent packets that the peer counted as marked."""


@dataclass(frozen=True, slots=True)
class ConnectionSnapshot:
    """A connection with something under way. `(guid, id)` of one end are `(peer_guid, remote_id)` of the other.

    What is said of the oldest messages covers the first 8 of their list.
    """

    peer: str
    peer_port: int
    """Port on which the peer receives packets; 0 until it has answered."""
    peer_guid: str
    id: int
    """This side's name for the connection."""
    remote_id: int
    """The peer's name for it; 0 until it has answered."""
    state: str
    """``connecting``, ``open`` or ``closing``."""
    send_tag: int
    """Tag of the oldest send without a receive."""
    advertised_tag: int
    """Tag of the peer's oldest receive without a send."""
    receive_tag: int
    """Tag of the oldest open receive."""
    sends: int
    """Sends that were matched with no receive of the peer yet."""
    advertisements: int
    """Receives of the peer that were matched with no send yet."""
    early: int
    """Advertisements of receives that wait for an earlier advertisement."""
    in_flight: int
    """Sends that were matched with a receive and are not finished."""
    posted: int
    """Flowlets of the oldest sends in flight that lanes have taken and the peer has not acknowledged."""
    unposted: int
    """Flowlets of the oldest sends in flight that no lane has taken."""
    unfinished_bytes: int
    """Bytes of the oldest sends in flight."""
    receives: int
    """Receives that are posted and not done."""
    arrived_bytes: int
    """Bytes that arrived for the oldest open receives."""
    progressed_s: float
    """When a message last moved, or the wait began, on the monotonic clock."""
    heard_s: float
    """When something last came from the peer, on the monotonic clock; 0: never."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Finished requests. Bytes are those of messages, without retransmissions."""

    sends: int
    send_bytes: int
    receives: int
    receive_bytes: int
    failed: int
    eager_sends: int
    """Messages sent eagerly, before their receive was advertised or in place of a WRITE to it."""
    eager_kept: int
    """Eager messages received before their receive was posted, and kept for it."""
    eager_waits: int
    """Short messages that waited for a receive because the peer had not given credits."""


@dataclass(frozen=True, slots=True)
class Discards:
    """Discarded packets, by reason."""

    malformed: int
    icrc: int
    unknown_qp: int
    wrong_source: int
    send_errors: int
    injected: int
    cnps: int
    """Congestion notification packets, which congestion control uses."""


@dataclass(frozen=True, slots=True)
class PathClient:
    """Counters of policy ``controller``: the device's exchange with the path service."""

    connected: bool
    since_s: float
    """Start of the present connected or disconnected time, on the monotonic clock."""
    connections: int
    """Connections to the service so far; those after the first are reconnections."""
    announced: int
    """Elephants that were announced. This and the next three fields count each elephant once."""
    assigned: int
    """Elephants that got ports, in time or later."""
    ecmp_starts: int
    """Elephants that started on random ports, because assigned ones came later or never."""
    released: int
    """Elephants that have ended."""
    announces: int
    """Announcements sent, including those of growth and those repeated after a reconnection."""
    assigns: int
    """Assignments that were accepted."""
    pushes: int
    """Accepted assignments that did not answer an announcement."""
    stale: int
    """Assignments that were too old."""
    invalid: int
    """Invalid messages."""
    dropped: int
    """Events lost because the queue to the client's thread was full."""
    reverted: int
    """Times that a lane left its assigned port because of its round trips or losses."""
    unbound: int
    """Moves to ports that another program holds."""
    probes_sent: int
    """Probes of paths that the service asked for."""
    probes_answered: int
    """Those that a router or the peer answered."""
    probes_limited: int
    """Those that waited because a router answers no faster."""
    probes_mismatched: int
    """ICMP messages that quote no probe of this device."""
    ports_moved: int
    """Changes of watched ports: another router, none, or one again."""


@dataclass(frozen=True, slots=True)
class Member:
    """A NIC of a fused device."""

    interface: str
    address: str
    udp_port: int


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """A device at one moment."""

    generation: int
    """Number of the snapshot, from 1."""
    time_s: float
    """Time of the snapshot on the monotonic clock."""
    owner_pid: int
    """The process that opened the device, in its own PID namespace."""
    guid: str
    interface: str
    """This and the next two fields are of the first member of a fused device."""
    address: str
    udp_port: int
    """Port on which packets arrive: of UDP, or of TCP by `protocol`."""
    policy: str
    m: int
    """The number of lanes towards each peer."""
    path_mtu: int
    line_rate_bps: int | None
    """The rate to which the device paces itself, in bit/s; None: it is not paced."""
    connections: int
    peers: int
    messages: Messages
    discards: Discards
    path_client: PathClient | None
    """None with other policies."""
    lanes: tuple[LaneSnapshot, ...]
    under_way: tuple[ConnectionSnapshot, ...] = ()
    """Connections with something under way."""
    under_way_omitted: int = 0
    """Further ones. A snapshot has those that have waited longest."""
    members: tuple[Member, ...] = ()
    """All NICs of a fused device; empty for one NIC."""
    protocol: Protocol = "udp"
    """Of the lanes: RoCEv2 over UDP, or TCP."""
    lanes_omitted: int = 0
    """Further lanes: a survey reads a limited number of each process, each user, and in all."""
    version: str = ""
    """Of the paralet that the process runs; empty where it is older than this field."""
    back_end: str = ""
    """``soft``, ``tcp`` or ``verbs``; empty likewise."""

    @property
    def name(self) -> str:
        """Address and port, unique in a network namespace."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.udp_port}"


def parse(data: bytes, most_lanes: int | None = None) -> DeviceSnapshot:
    """Decode a snapshot, with at most this many of its lanes. Raises SnapshotError.

    Records may be longer than in this version, and other bytes may follow, because the file of a device never shrinks.
    """
    if len(data) < _HEADER.size:
        raise SnapshotError(f"the snapshot has {len(data)} bytes, less than the {_HEADER.size} of a header")
    (magic, version, crc, total, generation, time_ns, pid, header_bytes, device_bytes, lane_bytes, lanes, build) = (
        _HEADER.unpack_from(data)
    )
    if magic != _MAGIC:
        raise SnapshotError("the snapshot does not begin with paralet's magic bytes")
    if version != VERSION:
        raise SnapshotError(
            f"the snapshot has version {version} and this paralet reads {VERSION}: use the paralet of that process"
        )
    if not _HEADER.size <= total <= len(data):
        raise SnapshotError(f"the snapshot claims {total} bytes and has {len(data)}")
    if zlib.crc32(memoryview(data)[_CHECKED_FROM:total]) != crc:
        raise SnapshotError("the snapshot's checksum is wrong: it is damaged, or changed while it was read")
    for what, size, least in (
        ("header", header_bytes, _HEADER.size),
        ("device", device_bytes, _DEVICE.size),
        ("lane", lane_bytes, _LANE.size + _LANE_COUNTERS.size),
    ):
        if size < least:
            raise SnapshotError(f"the snapshot's {what} record has {size} bytes, less than version {VERSION}'s {least}")
    if header_bytes + device_bytes + lanes * lane_bytes != total:
        raise SnapshotError(f"{lanes} lanes of {lane_bytes} bytes do not make a snapshot of {total} bytes")
    first_lane = header_bytes + device_bytes
    shown = lanes if most_lanes is None else min(lanes, most_lanes)
    (guid, interface, policy, ipv4, udp_port, path_mtu, m, line_rate_bps, connections, peers, ipv6, *rest) = (
        _DEVICE.unpack_from(data, header_bytes)
    )
    (
        connected,
        since_ns,
        *counters,
        connection_bytes,
        connection_count,
        member_bytes,
        member_count,
        protocol,
        omitted,
    ) = rest
    place, groups = header_bytes + _DEVICE.size, {}
    for group, count in zip(("messages", "discards", "path_client"), counters, strict=True):
        _fits(f"counters of {group}", place, _COUNTER_BYTES, _COUNTER_BYTES, count, first_lane)
        groups[group] = _counts(data, place, count, group)
        place += count * _COUNTER_BYTES
    policy = _text(policy)
    _fits("connections", place, connection_bytes, _CONNECTION.size, connection_count, first_lane, _MOST_UNDER_WAY)
    first_member = place + connection_count * connection_bytes
    _fits("members", first_member, member_bytes, _MEMBER.size, member_count, first_lane, _MOST_MEMBERS)
    under_way = (_connection(data, place + index * connection_bytes) for index in range(connection_count))
    return DeviceSnapshot(
        generation=generation,
        time_s=time_ns / 1e9,
        owner_pid=pid,
        guid=guid.hex(),
        interface=_text(interface),
        address=_address(ipv4, ipv6),
        udp_port=_port(udp_port),
        policy=policy,
        m=m,
        path_mtu=path_mtu,
        line_rate_bps=line_rate_bps or None,
        connections=connections,
        peers=peers,
        messages=Messages(**groups["messages"]),
        discards=Discards(**groups["discards"]),
        path_client=(
            PathClient(bool(connected), since_ns / 1e9, **groups["path_client"]) if policy == "controller" else None
        ),
        lanes=tuple(_lane(data, first_lane + index * lane_bytes) for index in range(shown)),
        under_way=tuple(under_way),
        under_way_omitted=omitted,
        members=tuple(_member(data, first_member + index * member_bytes) for index in range(member_count)),
        protocol="tcp" if protocol == IPPROTO_TCP else "udp",
        lanes_omitted=lanes - shown,
        version=".".join(str(build >> shift & 0xFF) for shift in (24, 16, 8)) if build else "",
        back_end=_BACK_ENDS.get(build & 0xFF, ""),
    )


def address_order(address: str) -> tuple[int, int]:
    """A key that sorts addresses by number, IPv4 before IPv6."""
    parsed = ip_address(address)
    return parsed.version, int(parsed)


def _fits(what: str, start: int, size: int, least: int, count: int, end: int, most: int | None = None) -> None:
    """Raise SnapshotError unless so many records of this size are in this part of the device's record."""
    if count and (size < least or start + count * size > end or (most is not None and count > most)):
        raise SnapshotError(f"{count} {what} of {size} bytes do not fit the snapshot's device record")


def _counts(data: bytes, place: int, count: int, group: str) -> dict[str, int]:
    """The counters of a group by name. A later paralet may have more."""
    names = COUNTERS[group]
    if count < len(names):
        raise SnapshotError(
            f"the snapshot has {count} counters of {group} and this paralet reads {len(names)}: "
            "use the paralet of that process"
        )
    return dict(zip(names, struct.unpack_from(f"={len(names)}Q", data, place), strict=True))


def _address(ipv4: int, ipv6: bytes) -> str:
    """The IPv6 address, or else the IPv4 address."""
    return str(IPv6Address(ipv6)) if any(ipv6) else str(IPv4Address(ipv4))


def _member(data: bytes, offset: int) -> Member:
    interface, address, port, _ = _MEMBER.unpack_from(data, offset)
    parsed = IPv6Address(address)
    return Member(_text(interface), str(parsed.ipv4_mapped or parsed), _port(port))


def _connection(data: bytes, offset: int) -> ConnectionSnapshot:
    guid, peer, port, own, remote, state, *tags_and_counts, ipv6 = _CONNECTION.unpack_from(data, offset)
    if state >= len(_STATES):
        raise SnapshotError(f"the snapshot has a connection in the state {state}, which is unknown")
    *counts, progressed_ns, heard_ns = tags_and_counts
    return ConnectionSnapshot(
        _address(peer, ipv6),
        _port(port),
        guid.hex(),
        own,
        remote,
        _STATES[state],
        *[*counts, progressed_ns / 1e9, heard_ns / 1e9],
    )


def _lane(data: bytes, offset: int) -> LaneSnapshot:
    peer, lane, qpn, port, method, ipv6, window, rtt, min_rtt, unfinished, outstanding, since_ns, member = (
        _LANE.unpack_from(data, offset)
    )
    return LaneSnapshot(
        peer=_address(peer, ipv6),
        lane=lane,
        qpn=qpn,
        port=_port(port),
        port_method=_text(method),
        window=window / 1e3,
        rtt_s=rtt / 1e9,
        min_rtt_s=min_rtt / 1e9,
        unfinished=unfinished,
        outstanding_bytes=outstanding,
        waiting_since_s=since_ns / 1e9,
        member=member,
        **dict(zip(_LANE_NAMES, _LANE_COUNTERS.unpack_from(data, offset + _LANE.size), strict=True)),
    )


def _text(field: bytes) -> str:
    """Decode text padded with zeros. It must be printable: other users may have written it, and terminals show it."""
    words, _, rest = field.partition(b"\0")
    if rest.strip(b"\0") or len(words) == len(field) or not (words.isascii() and words.decode("ascii").isprintable()):
        raise SnapshotError("a name in the snapshot is not printable text padded with zeros")
    return words.decode("ascii")


def _port(number: int) -> int:
    if number > 0xFFFF:
        raise SnapshotError(f"the snapshot has the port {number}, which is above 65535")
    return number
