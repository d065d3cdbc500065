# SPDX-License-Identifier: Apache-2.0
"""What a network driver says about an interface: the ioctl SIOCETHTOOL (linux/ethtool.h), without privileges.

The program ethtool need not be there: hosts that only send traffic may lack it.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from dataclasses import dataclass

_SIOCETHTOOL = 0x8946
_GRXFH, _GSTRINGS, _GSSET_INFO, _GFEATURES, _GCHANNELS = 0x29, 0x1B, 0x37, 0x3A, 0x3C
_SS_FEATURES = 4  # ETH_SS_FEATURES: the names of features
_NAME_BYTES = 32  # ETH_GSTRING_LEN
_FLOWS = {"udp4": 0x02, "udp6": 0x06}  # UDP_V4_FLOW, UDP_V6_FLOW
_PORTS_HASHED = 0xC0  # RXH_L4_B_0_1 and RXH_L4_B_2_3: source and destination port
_RXNFC_BYTES = 192  # of struct ethtool_rxnfc, for answers without rules


@dataclass(frozen=True, slots=True)
class Feature:
    """An offload. `fixed`: neither the driver nor the user can change it."""

    active: bool
    fixed: bool


@dataclass(frozen=True, slots=True)
class Queues:
    """Receive queues that are in use, and the most that the driver offers."""

    used: int
    most: int


def features(interface: str) -> dict[str, Feature]:
    """The interface's features by name, such as ``tx-udp-segmentation``. Empty where the driver does not tell."""
    names = _feature_names(interface)
    blocks = (len(names) + 31) // 32
    answer = _ask(interface, struct.pack("=II", _GFEATURES, blocks) + bytes(16 * blocks)) if names else None
    if answer is None:
        return {}
    out = {}
    for place, name in enumerate(names):
        available, _requested, active, never_changed = struct.unpack_from("=IIII", answer, 8 + 16 * (place // 32))
        bit = 1 << place % 32
        out[name] = Feature(active=bool(active & bit), fixed=not available & bit or bool(never_changed & bit))
    return out


def queues(interface: str) -> Queues | None:
    """The interface's receive queues, alone or combined with send queues. None where the driver does not tell."""
    answer = _ask(interface, struct.pack("=9I", _GCHANNELS, *[0] * 8))
    if answer is None:
        return None
    _, most_receive, _, _, most_combined, receive, _, _, combined = struct.unpack("=9I", answer)
    return Queues(used=receive + combined, most=max(most_receive, most_combined))


def hashes_ports(interface: str) -> dict[str, bool]:
    """Whether receive queues are chosen by ports, of UDP over IPv4 (``udp4``) and IPv6 (``udp6``).

    A protocol of which the driver does not tell is absent.
    """
    out = {}
    for name, flow in _FLOWS.items():
        answer = _ask(interface, struct.pack("=IIQ", _GRXFH, flow, 0) + bytes(_RXNFC_BYTES - 16))
        if answer is not None:
            (fields,) = struct.unpack_from("=Q", answer, 8)
            out[name] = fields & _PORTS_HASHED == _PORTS_HASHED
    return out


def _feature_names(interface: str) -> list[str]:
    answer = _ask(interface, struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_FEATURES, 0))
    if answer is None:
        return []
    (count,) = struct.unpack_from("=I", answer, 16)
    answer = _ask(interface, struct.pack("=III", _GSTRINGS, _SS_FEATURES, count) + bytes(_NAME_BYTES * count))
    if answer is None:
        return []
    return [
        answer[start : start + _NAME_BYTES].split(b"\0", 1)[0].decode("ascii", "replace")
        for start in range(12, 12 + _NAME_BYTES * count, _NAME_BYTES)
    ]


def _ask(interface: str, command: bytes) -> bytes | None:
    """The command with the kernel's answer in it. None where the driver, or this kernel, does not know the command."""
    place = ctypes.create_string_buffer(command, len(command))
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(place))  # struct ifreq
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
        except OSError:
            return None
    return place.raw
