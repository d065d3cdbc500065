# SPDX-License-Identifier: Apache-2.0
"""Flows: the five header fields by which switches distinguish packet streams."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

import numpy as np
import numpy.typing as npt

IPPROTO_UDP = 17
ROCE_PORT = 4791
"""UDP destination port of RoCEv2 (InfiniBand Architecture Specification, Annex A17)."""
ENTROPY_PORTS = range(0xC000, 0x10000)
"""UDP source ports of RoCEv2 flows: the dynamic range of RFC 6335, which Linux uses as well
(rdma_flow_label_to_udp_sport in include/rdma/ib_verbs.h)."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A UDP flow from `src`:`src_port` to `dst`:`dst_port`. Raises ValueError for a port outside 0..65535."""

    src: IPv4Address
    dst: IPv4Address
    src_port: int
    dst_port: int = ROCE_PORT

    def __post_init__(self) -> None:
        check_ports((self.src_port, self.dst_port))

    def fields(self) -> "FlowFields":
        """The flow as arrays of length one, for an `EcmpHash`."""
        return FlowFields.over_ports(self.src, self.dst, np.array([self.src_port], dtype=np.uint16), self.dst_port)


@dataclass(frozen=True, slots=True)
class FlowFields:
    """The hashed fields of many flows, in host byte order, as one-dimensional arrays.

    Each array has length n, or length one for n equal values, so that work on fields shared by all flows is done once.
    dtypes: `src` and `dst` uint32, `sport` and `dport` uint16, `proto` (IP protocol) uint8. Raises ValueError for other
    shapes.
    """

    src: npt.NDArray[np.uint32]
    dst: npt.NDArray[np.uint32]
    sport: npt.NDArray[np.uint16]
    dport: npt.NDArray[np.uint16]
    proto: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        arrays: tuple[npt.NDArray[Any], ...] = (self.src, self.dst, self.sport, self.dport, self.proto)
        if any(array.ndim != 1 for array in arrays):
            raise ValueError("flow fields must be one-dimensional arrays")
        lengths = {array.size for array in arrays} - {1}
        if len(lengths) > 1:
            raise ValueError(f"flow fields have lengths {sorted(lengths)}, but must agree or be 1")

    @classmethod
    def over_ports(
        cls, src: IPv4Address, dst: IPv4Address, sports: npt.NDArray[np.uint16], dst_port: int = ROCE_PORT
    ) -> "FlowFields":
        """The UDP flows of one pair of addresses, one per source port. Raises ValueError for a bad `dst_port`."""
        check_ports((dst_port,))
        return cls(
            src=np.array([int(src)], dtype=np.uint32),
            dst=np.array([int(dst)], dtype=np.uint32),
            sport=sports,
            dport=np.array([dst_port], dtype=np.uint16),
            proto=np.array([IPPROTO_UDP], dtype=np.uint8),
        )

    def __len__(self) -> int:
        lengths = {array.size for array in (self.src, self.dst, self.sport, self.dport, self.proto)} - {1}
        return lengths.pop() if lengths else 1

    def take(self, index: npt.NDArray[np.intp]) -> "FlowFields":
        """The flows at positions `index`. Fields that all flows share keep length one."""
        shared = len(self) > 1
        return FlowFields(
            src=self.src if shared and self.src.size == 1 else self.src[index],
            dst=self.dst if shared and self.dst.size == 1 else self.dst[index],
            sport=self.sport if shared and self.sport.size == 1 else self.sport[index],
            dport=self.dport if shared and self.dport.size == 1 else self.dport[index],
            proto=self.proto if shared and self.proto.size == 1 else self.proto[index],
        )


def check_ports(ports: Iterable[int]) -> None:
    """Raises ValueError for a UDP port outside 0..65535."""
    for port in ports:
        if not 0 <= port <= 0xFFFF:
            raise ValueError(f"UDP port {port} is not in 0..65535")
