# SPDX-License-Identifier: Apache-2.0
"""Live counters of devices in other processes.

Every open device publishes a snapshot of its counters. `survey` reads the snapshots that this user may read; `parse`
decodes one into a `DeviceSnapshot`.

The rest of this text is for readers in other languages. A device writes its counters into an unnamed file in memory,
which disappears with the process: the link in `/proc/PID/fd` that reads `/memfd:paralet-stats (deleted)`. The same user
and root may read it. A forked process inherits it: ignore it where the innermost `NSpid` of `/proc/PID/status` is not
the snapshot's `pid`. A device writes at most every 100 ms, and only if a counter has changed. With more than 2000 lanes
and connections the interval is 50 us times their number. Nothing is published if the kernel grants no memfd or
`ulimit -f` is too small.

1. Read the whole file. Other users' files may have that name too: `fstat` them through `O_PATH` first, for their type
   and their owner, and bound what you read of each user. The file is empty at first and never shrinks.
2. Check `magic`, `version` (1), and that `total_bytes` are there.
3. Compare `crc32` with the CRC-32 (as zlib's) of bytes 16 to `total_bytes`. If they differ, read again.
4. Find records by the sizes in the header. Later versions may append fields to a record; `version` changes if the
   meaning of existing fields does.

The header (64 bytes) is followed, after `header_bytes`, by the device: 320 bytes, then 152 for each connection under
way, 16 for the device's IPv6 address, 8 with the size and the number of the records that follow, and 40 for each
member of a fused device. Lanes follow after `device_bytes` more, with 224 bytes each. The structs in
`hostlib/native/src/engine/live_counters.cpp` name all fields in order; the classes below say what they count. Numbers
have native byte order, without padding between fields. Texts have 16 bytes of ASCII, padded with zeros. IPv4 addresses
are numbers (127.0.0.1 is 0x7F000001), 0 for IPv6. Times are those of CLOCK_MONOTONIC. A snapshot has at most 1024
connections, those that have waited longest; `(guid, id)` of one end are `(peer_guid, remote_id)` of the other. A lane's
counters begin at 0 with its first QP and vanish with the peer. For rates divide by the difference of `time_ns`; an idle
device writes none, so take at most the time between both reads plus 100 ms.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address

from hostlib.published import Budget, Budgets, LimitError, Limits, SnapshotError, command_of, identity_of, published
from hostlib.udp_owners import Endpoint, network_of, udp_owners

__all__ = [
    "ConnectionSnapshot",
    "DeviceSnapshot",
    "Discards",
    "LaneSnapshot",
    "Member",
    "Messages",
    "PathClient",
    "Process",
    "SnapshotError",
    "Survey",
    "address_order",
    "parse",
    "survey",
    "without_false_claims",
]

VERSION = 1
EVERY_S = 0.1
"""Interval at which a busy process publishes. One with thousands of lanes publishes less often, an idle one never."""

_MEMFD = "paralet-stats"
_MAGIC = b"paralet\0"
_HEADER = struct.Struct("=8sIIQQqIIIIII")
_DEVICE = struct.Struct("=16s16s16sIIII14Q")
_PATH_CLIENT = struct.Struct("=15Q")  # after the device; snapshots of an older paralet have none
_CNPS = struct.Struct("=Q")  # after the path client; snapshots of an older paralet have none
_UNDER_WAY = struct.Struct("=IIQ")  # after the former; then the connections, and what a later paralet adds
_CONNECTION = struct.Struct("=16sIIIIIIII11Q")
_STATES = ("connecting", "open", "closing")
_LANE = struct.Struct("=IIII16s16Q")
_WAITING = struct.Struct("=QQQ")  # after the lane; snapshots of an older paralet have none
_IPV6 = 16  # after the former, a connection, and the connections: zeros where the address is an IPv4 one
_MARKED = struct.Struct("=QQ")  # after a lane's IPv6 address
_LANE_MEMBER = struct.Struct("=Q")  # after the former
_MEMBERS = struct.Struct("=II")  # after the device's IPv6 address
_MEMBER = struct.Struct("=16s16sI")
_CHECKED_FROM = 16  # the CRC covers everything from here on
_MAX_BYTES = 2**24  # a hundred thousand lanes
_MOST_UNDER_WAY = 1024
_MOST_MEMBERS = 64
_MOST_SENTENCES = 3
"""Sentences about what is wrong with one process."""


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane towards one peer. Counters start with its first QP; bytes are payload."""

    peer: str
    lane: int
    qpn: int
    port: int
    """The UDP source port of the lane."""
    port_method: str
    """How the port was set: ``socket``, ``flow_label``, ``modify_qp``, or ``none`` when the driver chooses it."""
    window: float
    """Packets that may be in flight."""
    rtt_s: float
    """Smoothed round trip; 0 before the first measurement."""
    min_rtt_s: float
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
    unfinished: int = 0
    """Work posted and not finished: flowlets, receive advertisements, pings. This and the next two fields are 0 from an
    older paralet."""
    outstanding_bytes: int = 0
    """Bytes of posted flowlets."""
    waiting_since_s: float = 0.0
    """Since when nothing of the posted work was acknowledged, on the monotonic clock; 0 without posted work."""
    rx_marked: int = 0
    """Data packets received with a congestion mark (ECN). This and the next field are 0 from an older paralet."""
    tx_marked: int = 0
    """Sent packets that the peer counted as marked."""
    member: int = 0
    """Index of the lane's NIC in a fused device's `members`."""


@dataclass(frozen=True, slots=True)
class ConnectionSnapshot:
    """A connection with something under way. `(guid, id)` of one end are `(peer_guid, remote_id)` of the other.

    What is said of the oldest messages covers the first 8 of their list.
    """

    peer: str
    peer_port: int
    """UDP port on which the peer receives packets; 0 until it has answered."""
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
    """Congestion notification packets, which congestion control uses; 0 from an older paralet."""


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
    """UDP port on which packets arrive."""
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
    """None with other policies, and from an older paralet."""
    lanes: tuple[LaneSnapshot, ...]
    under_way: tuple[ConnectionSnapshot, ...] | None = None
    """Connections with something under way; None from an older paralet."""
    under_way_omitted: int = 0
    """Further ones. A snapshot has those that have waited longest."""
    members: tuple[Member, ...] = ()
    """All NICs of a fused device; empty for one NIC, and from an older paralet."""
    lanes_omitted: int = 0
    """Further lanes: a survey reads a limited number of each process, each user, and in all."""

    @property
    def name(self) -> str:
        """Address and port, unique in a network namespace."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.udp_port}"


@dataclass(frozen=True, slots=True)
class Process:
    """A process with open devices, and their counters."""

    pid: int
    command: str
    """Its command line without control characters."""
    devices: tuple[DeviceSnapshot, ...]
    state: str = ""
    """The kernel's letter for its state (proc(5)), such as ``T`` while it is stopped by a signal."""
    uid: int | None = None
    """The user who started it, as the kernel says; None from an older paralet."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a survey of this machine's processes has found."""

    processes: tuple[Process, ...]
    forbidden: tuple[int, ...]
    """Processes that this user may not read."""
    missing: tuple[int, ...]
    """Requested processes that do not exist."""
    unreadable: tuple[str, ...]
    """One sentence per device whose snapshot is invalid."""
    left_out: tuple[str, ...] = ()
    """Sentences: which limits were reached, and which users claim devices of others."""


# -- snapshots -----------------------------------------------------------------------------------------------------


def parse(data: bytes, most_lanes: int | None = None) -> DeviceSnapshot:
    """Decode a snapshot, with at most this many of its lanes. Raises SnapshotError.

    Records may be longer than in this version, and other bytes may follow, because the file of a device never shrinks.
    """
    if len(data) < _HEADER.size:
        raise SnapshotError(f"the snapshot has {len(data)} bytes, less than the {_HEADER.size} of a header")
    (magic, version, crc, total, generation, time_ns, pid, header_bytes, device_bytes, lane_bytes, lanes, _) = (
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
        ("lane", lane_bytes, _LANE.size),
    ):
        if size < least:
            raise SnapshotError(f"the snapshot's {what} record has {size} bytes, less than version {VERSION}'s {least}")
    if header_bytes + device_bytes + lanes * lane_bytes != total:
        raise SnapshotError(f"{lanes} lanes of {lane_bytes} bytes do not make a snapshot of {total} bytes")
    first_lane = header_bytes + device_bytes
    shown = lanes if most_lanes is None else min(lanes, most_lanes)
    (guid, interface, policy, address, udp_port, path_mtu, m, line_rate_bps, connections, peers, *counts) = (
        _DEVICE.unpack_from(data, header_bytes)
    )
    policy = _text(policy)
    has_path_client = policy == "controller" and device_bytes >= _DEVICE.size + _PATH_CLIENT.size
    cnps: tuple[int] = (0,)
    if device_bytes >= _DEVICE.size + _PATH_CLIENT.size + _CNPS.size:
        cnps = _CNPS.unpack_from(data, header_bytes + _DEVICE.size + _PATH_CLIENT.size)
    after_cnps = header_bytes + _DEVICE.size + _PATH_CLIENT.size + _CNPS.size
    under_way, omitted, after_connections = _connections(data, after_cnps, first_lane)
    return DeviceSnapshot(
        generation=generation,
        time_s=time_ns / 1e9,
        owner_pid=pid,
        guid=guid.hex(),
        interface=_text(interface),
        address=_address(address, data[after_connections:first_lane]),
        udp_port=_port(udp_port),
        policy=policy,
        m=m,
        path_mtu=path_mtu,
        line_rate_bps=line_rate_bps or None,
        connections=connections,
        peers=peers,
        messages=Messages(*counts[:5]),
        discards=Discards(*[*counts[5:], *cnps]),
        path_client=_path_client(data, header_bytes + _DEVICE.size) if has_path_client else None,
        lanes=tuple(_lane(data, first_lane + index * lane_bytes, lane_bytes) for index in range(shown)),
        under_way=under_way,
        under_way_omitted=omitted,
        members=tuple(_members(data, after_connections + _IPV6, first_lane)),
        lanes_omitted=lanes - shown,
    )


def address_order(address: str) -> tuple[int, int]:
    """A key that sorts addresses by number, IPv4 before IPv6."""
    parsed = ip_address(address)
    return parsed.version, int(parsed)


def _address(ipv4: int, ipv6: bytes) -> str:
    """The IPv6 address that these bytes begin with, or else the IPv4 address."""
    return str(IPv6Address(ipv6[:_IPV6])) if len(ipv6) >= _IPV6 and any(ipv6[:_IPV6]) else str(IPv4Address(ipv4))


def _members(data: bytes, start: int, end: int) -> Iterator[Member]:
    """The members of a fused device, in this part of its record."""
    if end - start < _MEMBERS.size:
        return
    size, count = _MEMBERS.unpack_from(data, start)
    first = start + _MEMBERS.size
    if count > _MOST_MEMBERS or (count and (size < _MEMBER.size or first + count * size > end)):
        raise SnapshotError(f"{count} members of {size} bytes do not fit the snapshot's device record")
    for index in range(count):
        interface, address, port = _MEMBER.unpack_from(data, first + index * size)
        parsed = IPv6Address(address)
        yield Member(_text(interface), str(parsed.ipv4_mapped or parsed), _port(port))


def _connections(data: bytes, start: int, end: int) -> tuple[tuple[ConnectionSnapshot, ...] | None, int, int]:
    """The connections under way, the number of omitted ones, and the end of both, in this part of a device's record."""
    if end - start < _UNDER_WAY.size:
        return None, 0, end
    size, count, omitted = _UNDER_WAY.unpack_from(data, start)
    first = start + _UNDER_WAY.size
    if count > _MOST_UNDER_WAY or (count and (size < _CONNECTION.size or first + count * size > end)):
        raise SnapshotError(f"{count} connections of {size} bytes do not fit the snapshot's device record")
    connections = tuple(_connection(data, first + index * size, size) for index in range(count))
    return connections, omitted, first + count * size


def _connection(data: bytes, offset: int, length: int) -> ConnectionSnapshot:
    guid, peer, port, own, remote, state, send_tag, advertised_tag, receive_tag, *counts = _CONNECTION.unpack_from(
        data, offset
    )
    if state >= len(_STATES):
        raise SnapshotError(f"the snapshot has a connection in the state {state}, which is unknown")
    *counts, progressed_ns, heard_ns = counts
    return ConnectionSnapshot(
        _address(peer, data[offset + _CONNECTION.size : offset + length]),
        _port(port),
        guid.hex(),
        own,
        remote,
        _STATES[state],
        send_tag,
        advertised_tag,
        receive_tag,
        *[*counts, progressed_ns / 1e9, heard_ns / 1e9],
    )


def _path_client(data: bytes, offset: int) -> PathClient:
    connected, since_ns, *counts = _PATH_CLIENT.unpack_from(data, offset)
    return PathClient(bool(connected), since_ns / 1e9, *counts)


def _lane(data: bytes, offset: int, size: int) -> LaneSnapshot:
    peer, lane, qpn, port, method, window, rtt, min_rtt, *counts = _LANE.unpack_from(data, offset)
    unfinished, outstanding, since_ns = (
        _WAITING.unpack_from(data, offset + _LANE.size) if size >= _LANE.size + _WAITING.size else (0, 0, 0)
    )
    marked_at = _LANE.size + _WAITING.size + _IPV6
    marked = _MARKED.unpack_from(data, offset + marked_at) if size >= marked_at + _MARKED.size else (0, 0)
    member_at = marked_at + _MARKED.size
    (member,) = _LANE_MEMBER.unpack_from(data, offset + member_at) if size >= member_at + _LANE_MEMBER.size else (0,)
    return LaneSnapshot(
        _address(peer, data[offset + _LANE.size + _WAITING.size : offset + size]),
        lane,
        qpn,
        _port(port),
        _text(method),
        window / 1e3,
        rtt / 1e9,
        min_rtt / 1e9,
        *[*counts, unfinished, outstanding, since_ns / 1e9, *marked, member],
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


# -- processes -----------------------------------------------------------------------------------------------------


def survey(pids: Iterable[int] | None = None, limits: Limits | None = None) -> Survey:
    """Read the snapshots of the given processes, or of all. Processes without devices are left out.

    Does not raise: processes and snapshots that cannot be read are listed in the result, and so is what is beyond
    `limits`. A device that another user's socket shows to be false is left out too.
    """
    processes, forbidden, missing, unreadable, left_out = [], [], [], [], []
    budgets = Budgets(limits or Limits())
    for pid in sorted({int(name) for name in os.listdir("/proc") if name.isdecimal()} if pids is None else set(pids)):
        found, wrong, beyond = [], [], []
        try:
            own = identity_of(pid)
            budget = budgets.of(own.uid)
            for device in published(pid, _MEMFD, _MAX_BYTES, budget, partial(_within, budget=budget)):
                if isinstance(device, LimitError):
                    beyond.append(f"process {pid} of user {own.uid}: {device}")
                elif isinstance(device, SnapshotError):
                    wrong.append(f"process {pid}: {device}")
                # A fork inherits its parent's devices, but they are not its own.
                elif device.owner_pid == own.inner_pid:
                    found.append(device)
        except PermissionError:
            forbidden.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            missing.append(pid)
        devices = {(device.name, device.guid): device for device in reversed(found)}  # each once
        if devices:
            ordered = sorted(devices.values(), key=lambda one: (*address_order(one.address), one.udp_port, one.guid))
            processes.append(Process(pid, command_of(pid), tuple(ordered), own.state, own.uid))
        if omitted := sum(device.lanes_omitted for device in devices.values()):
            beyond.append(f"process {pid} of user {own.uid}: {omitted:,} lanes are left out, beyond the limit")
        unreadable += _some_of(wrong, pid)
        left_out += _some_of(beyond, pid)
    true, false = without_false_claims(processes)
    found_all = tuple(true), tuple(forbidden), () if pids is None else tuple(missing)
    return Survey(*found_all, tuple(unreadable), (*left_out, *false))


def _within(data: bytes, budget: Budget) -> DeviceSnapshot:
    """The device in these bytes, with as many lanes as the budget has left."""
    device = parse(data, max(0, budget.left("lanes") - 1))
    budget.take("lanes", 1 + len(device.lanes))
    return device


def _some_of(sentences: Sequence[str], pid: int) -> list[str]:
    more = len(sentences) - _MOST_SENTENCES
    return [*sentences[:_MOST_SENTENCES], *([f"process {pid}: and {more} more like these"] if more > 0 else [])]


def without_false_claims(processes: Sequence[Process]) -> tuple[list[Process], list[str]]:
    """The processes without devices that are another user's, and a sentence for each claim that is false or disputed.

    Two users cannot have the same address and UDP port in one network namespace. Where both say so, the kernel's table
    of sockets tells who has it. It knows nothing of `verbs`, where the NIC receives: then both stay.
    """
    claims: dict[Endpoint, set[int | None]] = defaultdict(set)
    for process in processes:
        for device in process.devices:
            for endpoint in _endpoints(device):
                claims[endpoint].add(process.uid)
    disputed = {endpoint for endpoint, uids in claims.items() if len(uids) > 1}
    if not disputed:
        return list(processes), []
    claimed: dict[tuple[int | None, Endpoint], dict[int | None, int]] = defaultdict(dict)
    networks = {process.pid: network_of(process.pid) for process in processes}
    for process in processes:
        for device in process.devices:
            for endpoint in disputed.intersection(_endpoints(device)):
                claimed[networks[process.pid], endpoint][process.uid] = process.pid
    owners: dict[tuple[int | None, Endpoint], set[int | None]] = {}
    sentences = []
    for (network, endpoint), users in claimed.items():
        if len(users) > 1:
            owners[network, endpoint] = {*udp_owners(next(iter(users.values())), {endpoint}).get(endpoint, ())}
            if not owners[network, endpoint]:
                who = ", ".join(f"user {uid} (process {pid})" for uid, pid in users.items())
                sentences.append(f"{_name(endpoint)} is claimed by {who}: at most one of them is right")
    kept = []
    for process in processes:
        false = [
            device
            for device in process.devices
            if any(
                process.uid not in (owners.get((networks[process.pid], endpoint)) or {process.uid})
                for endpoint in _endpoints(device)
            )
        ]
        sentences += [
            f"process {process.pid} of user {process.uid} claims {device.name}, which is another user's: it is left out"
            for device in false[:_MOST_SENTENCES]
        ]
        if true := tuple(device for device in process.devices if device not in false):
            kept.append(replace(process, devices=true))
    return kept, sentences


def _endpoints(device: DeviceSnapshot) -> list[Endpoint]:
    return [(one.address, one.udp_port) for one in device.members or (device,)]


def _name(endpoint: Endpoint) -> str:
    address, port = endpoint
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
