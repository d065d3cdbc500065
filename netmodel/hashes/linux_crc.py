# SPDX-License-Identifier: Apache-2.0
"""Linux multipath routing by a CRC of the header: routers of Linux that choose as switch ASICs do.

A program of traffic control gives every packet that comes in the hash of `CrcHash("crc32")` (bpf_set_hash of
bpf-helpers(7)), and the kernel selects the nexthop by the upper bits of it. Linux has no such hash of its own: fabric
`routed` has the program (`emul.routed.crc_hash`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from netmodel.flow import FlowFields
from netmodel.hashes.base import check_members
from netmodel.hashes.crc import CrcHash
from netmodel.hashes.linux_l4 import nexthops_of
from netmodel.topology import Role, Topology

HASH_BITS = 32

_CRC = CrcHash("crc32")


@dataclass(frozen=True, slots=True)
class LinuxCrcHash:
    """Linux multipath nexthops by the CRC-32 of the 5-tuple, rotated left by the switch's offset.

    `offsets` has the offset by hash seed, 0 for others, in bits. All choices of a flow follow from one CRC, so switches
    with equal offsets choose alike, whatever their seeds are (hash polarisation); an offset of one tier ends that. It
    is what ASICs have as hash offset (SAI_SWITCH_ATTR_ECMP_DEFAULT_HASH_OFFSET).
    """

    offsets: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, topology: Topology, by_role: Mapping[Role, int]) -> "LinuxCrcHash":
        """The hash of a topology whose switches have the offsets of their roles.

        Raises ValueError for an offset outside 0..31, and for switches of one seed with different offsets.
        """
        for role, bits in by_role.items():
            if not 0 <= bits < HASH_BITS:
                raise ValueError(f"the offset of {role} switches is {bits} bits, but must lie in 0..{HASH_BITS - 1}")
        offsets: dict[int, int] = {}
        for switch in topology.switches:
            bits = by_role.get(switch.role, 0)
            if offsets.setdefault(switch.hash_seed, bits) != bits:
                raise ValueError(
                    f"hash seed {switch.hash_seed} of switch {switch.name!r} is also that of a switch with another "
                    "offset; give them different seeds"
                )
        return cls(MappingProxyType({seed: bits for seed, bits in offsets.items() if bits}))

    def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
        """See `EcmpHash.select`."""
        check_members(members)
        return np.broadcast_to(nexthops_of(self.value(fields, seed), (1,) * members), len(fields)).astype(np.intp)

    def value(self, fields: FlowFields, seed: int) -> npt.NDArray[np.uint32]:
        """The hash of each flow that the kernel gets; shape (len(fields),). For one seed it is affine over GF(2)."""
        crc, bits = _CRC.value(fields, seed), self.offsets.get(seed, 0)
        return crc if bits == 0 else (crc << np.uint32(bits)) | (crc >> np.uint32(HASH_BITS - bits))
