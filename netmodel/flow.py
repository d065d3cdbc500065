# SPDX-License-Identifier: Apache-2.0
"""Flows: the five header fields by which switches distinguish packet streams."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

IPPROTO_TCP = 6
IPPROTO_UDP = 17
ROCE_PORT = 4791
"""UDP destination port of RoCEv2 (InfiniBand Architecture Specification, Annex A17). Lanes over TCP connect to the TCP
port with this number."""
ENTROPY_PORTS = range(0xC000, 0x10000)
"""Source ports of lanes, and of RoCEv2 in general: the dynamic range of RFC 6335, which Linux uses as well
(rdma_flow_label_to_udp_sport in include/rdma/ib_verbs.h)."""

Address: TypeAlias = IPv4Address | IPv6Address
Addresses: TypeAlias = npt.NDArray[np.uint32]
"""Addresses of one family: shape (n,) for IPv4; (n, 4) for IPv6, four 32-bit words each, the first word first."""

_IPV6_WORDS = 4


def address_array(addresses: Iterable[Address]) -> Addresses:
    """Addresses as an array. Raises ValueError when IPv4 and IPv6 addresses are mixed."""
    listed = list(addresses)
    if len(set(map(type, listed))) > 1:
        raise ValueError("IPv4 and IPv6 addresses cannot be mixed")
    if listed and listed[0].version == 6:
        words = np.frombuffer(b"".join(address.packed for address in listed), dtype=">u4")
        return words.astype(np.uint32).reshape(-1, _IPV6_WORDS)
    return np.fromiter(map(int, listed), dtype=np.uint32, count=len(listed))


def address_at(addresses: Addresses, index: int) -> Address:
    """The address at a position of an array."""
    packed = addresses[index : index + 1].astype(">u4").tobytes()  # a slice, because scalars have no byte order
    return IPv4Address(packed) if addresses.ndim == 1 else IPv6Address(packed)


def address_words(addresses: Addresses) -> tuple[npt.NDArray[np.uint32], ...]:
    """The 32-bit words of addresses as one-dimensional arrays, the most significant first: one, or four for IPv6."""
    return (addresses,) if addresses.ndim == 1 else tuple(addresses[:, word] for word in range(_IPV6_WORDS))


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow from `src`:`src_port` to `dst`:`dst_port`. Raises ValueError for a port outside 0..65535."""

    src: Address
    dst: Address
    src_port: int
    dst_port: int = ROCE_PORT
    protocol: int = IPPROTO_UDP
    """The IP protocol: UDP, or TCP."""

    def __post_init__(self) -> None:
        check_ports((self.src_port, self.dst_port))

    def fields(self) -> "FlowFields":
        """The flow as arrays of length one, for an `EcmpHash`."""
        sports = np.array([self.src_port], dtype=np.uint16)
        return FlowFields.over_ports(self.src, self.dst, sports, self.dst_port, self.protocol)


@dataclass(frozen=True, slots=True)
class FlowFields:
    """The hashed fields of many flows, in host byte order, as arrays.

    Each array has length n, or length one for n equal values, so that work on fields shared by all flows is done once.
    `src` and `dst` are `Addresses` of one family; the others have one dimension. dtypes: `sport` and `dport` uint16,
    `proto` (IP protocol) uint8. Raises ValueError for other shapes.
    """

    src: Addresses
    dst: Addresses
    sport: npt.NDArray[np.uint16]
    dport: npt.NDArray[np.uint16]
    proto: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.src.shape[1:] != self.dst.shape[1:] or self.src.shape[1:] not in ((), (_IPV6_WORDS,)):
            raise ValueError("addresses must be arrays of one family: (n,) for IPv4, (n, 4) for IPv6")
        if any(array.ndim != 1 for array in (self.sport, self.dport, self.proto)):
            raise ValueError("ports and protocols must be one-dimensional arrays")
        lengths = self._lengths()
        if len(lengths) > 1:
            raise ValueError(f"flow fields have lengths {sorted(lengths)}, but must agree or be 1")

    @classmethod
    def over_ports(
        cls,
        src: Address,
        dst: Address,
        sports: npt.NDArray[np.uint16],
        dst_port: int = ROCE_PORT,
        protocol: int = IPPROTO_UDP,
    ) -> "FlowFields":
        """The flows of one pair of addresses, one per source port. Raises ValueError for a bad `dst_port`."""
        check_ports((dst_port,))
        return cls(
            src=address_array([src]),
            dst=address_array([dst]),
            sport=sports,
            dport=np.array([dst_port], dtype=np.uint16),
            proto=np.array([protocol], dtype=np.uint8),
        )

    def reversed(self) -> "FlowFields":
        """The flows of the answers: addresses and ports change places."""
        return FlowFields(src=self.dst, dst=self.src, sport=self.dport, dport=self.sport, proto=self.proto)

    def __len__(self) -> int:
        lengths = self._lengths()
        return lengths.pop() if lengths else 1

    def _lengths(self) -> set[int]:
        """The lengths other than one."""
        arrays: tuple[npt.NDArray[Any], ...] = (self.src, self.dst, self.sport, self.dport, self.proto)
        return {len(array) for array in arrays} - {1}

    def take(self, index: npt.NDArray[np.intp]) -> "FlowFields":
        """The flows at positions `index`. Fields that all flows share keep length one."""
        shared = len(self) > 1
        return FlowFields(
            src=self.src if shared and len(self.src) == 1 else self.src[index],
            dst=self.dst if shared and len(self.dst) == 1 else self.dst[index],
            sport=self.sport if shared and self.sport.size == 1 else self.sport[index],
            dport=self.dport if shared and self.dport.size == 1 else self.dport[index],
            proto=self.proto if shared and self.proto.size == 1 else self.proto[index],
        )


def check_ports(ports: Iterable[int]) -> None:
    """Raises ValueError for a port outside 0..65535."""
    for port in ports:
        if not 0 <= port <= 0xFFFF:
            raise ValueError(f"port {port} is not in 0..65535")
