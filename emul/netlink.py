# SPDX-License-Identifier: Apache-2.0
"""Interface and queue counters of a network namespace, read fast enough to sample a fabric many times per second.

`tc -s -j qdisc` would start a process per sample, and pyroute2 parses every attribute of every message. One rtnetlink
dump, of which only the drop counters are parsed, and one read of /proc/net/dev take about one millisecond.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NLMSGHDR = struct.Struct("=IHHII")  # linux/netlink.h: length, type, flags, sequence, port
_TCMSG = struct.Struct("=BxxxiIII")  # linux/rtnetlink.h: family, ifindex, handle, parent, info
_RTATTR = struct.Struct("=HH")  # length, type
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_RTM_NEWQDISC, _RTM_GETQDISC = 36, 38
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_TC_H_ROOT = 0xFFFFFFFF
_TCA_STATS2, _TCA_STATS_QUEUE = 7, 3
_GNET_STATS_QUEUE = struct.Struct("=IIIII")  # linux/gen_stats.h: qlen, backlog, drops, requeues, overlimits
_ATTRIBUTE_TYPE_MASK = 0x3FFF
_RECEIVE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """The kernel's receive and transmit counters of an interface since its creation."""

    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int


def interface_counters(text: str) -> dict[str, InterfaceCounters]:
    """Counters by interface name, from the text of /proc/net/dev."""
    result = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        values = numbers.split()
        result[name.strip()] = InterfaceCounters(
            rx_bytes=int(values[0]), rx_packets=int(values[1]), tx_bytes=int(values[8]), tx_packets=int(values[9])
        )
    return result


def read_interface_counters() -> dict[str, InterfaceCounters]:
    """Counters of every interface of this network namespace."""
    return interface_counters(Path("/proc/self/net/dev").read_text())


def root_qdisc_drops(messages: bytes) -> tuple[dict[int, int], bool]:
    """Parse one datagram of a qdisc dump: (packets dropped by root qdiscs, by interface index; whether it is the last).

    Raises OSError when the kernel reports an error.
    """
    drops: dict[int, int] = {}
    offset = 0
    while offset + _NLMSGHDR.size <= len(messages):
        length, kind, _flags, _sequence, _port = _NLMSGHDR.unpack_from(messages, offset)
        if length < _NLMSGHDR.size or offset + length > len(messages):
            break
        if kind == _NLMSG_DONE:
            return drops, True
        if kind == _NLMSG_ERROR:
            (code,) = struct.unpack_from("=i", messages, offset + _NLMSGHDR.size)
            raise OSError(-code, "the kernel refused to list qdiscs")
        if kind == _RTM_NEWQDISC:
            _family, index, _handle, parent, _info = _TCMSG.unpack_from(messages, offset + _NLMSGHDR.size)
            if parent == _TC_H_ROOT:
                body = messages[offset + _NLMSGHDR.size + _TCMSG.size : offset + length]
                drops[index] = _drops_of(body)
        offset += (length + 3) & ~3
    return drops, False


def read_root_qdisc_drops() -> dict[int, int]:
    """Packets dropped by the root qdiscs of this network namespace, by interface index. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        return _ask_for_drops(netlink)


class QdiscDrops:
    """Reads the drops of the root qdiscs in the network namespace in which it was made, from any other too."""

    def __init__(self) -> None:
        self._names = dict(socket.if_nameindex())
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

    def read(self) -> dict[str, int]:
        """Packets dropped, by the name of each interface that there was at the start. Raises OSError."""
        drops = _ask_for_drops(self._netlink)
        return {self._names[index]: count for index, count in drops.items() if index in self._names}

    def close(self) -> None:
        """Close the socket."""
        self._netlink.close()


def _ask_for_drops(netlink: socket.socket) -> dict[int, int]:
    request = _NLMSGHDR.pack(
        _NLMSGHDR.size + _TCMSG.size, _RTM_GETQDISC, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0
    ) + _TCMSG.pack(0, 0, 0, 0, 0)
    drops: dict[int, int] = {}
    netlink.send(request)
    done = False
    while not done:
        part, done = root_qdisc_drops(netlink.recv(_RECEIVE_BYTES))
        drops |= part
    return drops


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _RTATTR.size <= len(data):
        length, kind = _RTATTR.unpack_from(data, offset)
        if length < _RTATTR.size:
            return
        yield kind & _ATTRIBUTE_TYPE_MASK, data[offset + _RTATTR.size : offset + length]
        offset += (length + 3) & ~3


def _drops_of(attributes: bytes) -> int:
    for kind, value in _attributes(attributes):
        if kind == _TCA_STATS2:
            for inner_kind, inner in _attributes(value):
                if inner_kind == _TCA_STATS_QUEUE:
                    return int(_GNET_STATS_QUEUE.unpack_from(inner)[2])
    return 0
