# SPDX-License-Identifier: Apache-2.0
"""Relative path control: source ports that take different paths at a switch with an affine hash, for any seed.

Source: Y. Zhang et al., "Hashing Linearity Enables Relative Path Control in Data Centers" (RePaC, USENIX ATC 2021). An
affine hash has h(p ^ d) = h(p) ^ L(d): XORing d into the source port XORs L(d) into the hash value, and into the member
where the number of members is a power of two. The seed and all other fields cancel out. If the path of one port is
known, for example from a probe, the paths of all other ports follow.
"""

import numpy as np
import numpy.typing as npt

from netmodel.flow import ENTROPY_PORTS, FlowFields
from netmodel.hashes.base import AffineHash


def port_offsets(ecmp_hash: AffineHash, members: int) -> tuple[npt.NDArray[np.uint16], ...]:
    """For each XOR change x of the member, 0 .. members - 1: all port offsets in 0..0x3FFF that cause it, ascending.

    For every seed, address, port p and offset d in entry x: select(p ^ d) = select(p) ^ x. An entry is empty where the
    hash cannot make that change. Raises ValueError unless `members` is a power of two up to 2**14; for other numbers
    the remainder is not linear over XOR.
    """
    if members < 1 or members & (members - 1) or members > len(ENTROPY_PORTS):
        raise ValueError(f"relative paths need a power of two of members, up to {len(ENTROPY_PORTS)}, not {members}")
    offsets = np.arange(len(ENTROPY_PORTS), dtype=np.uint16)
    zero = np.zeros(1, dtype=np.uint32)
    none = zero.astype(np.uint16)
    delta = FlowFields(src=zero, dst=zero, sport=offsets, dport=none, proto=zero.astype(np.uint8))
    change = ecmp_hash.linear(delta) & np.uint32(members - 1)
    return tuple(offsets[change == member] for member in range(members))


def parted_ports(base_port: int, ecmp_hash: AffineHash, members: int, count: int) -> npt.NDArray[np.uint16]:
    """`count` different source ports, `base_port` first, spread evenly over all members that such ports can reach.

    If the hash can reach all members, ports k * members .. (k + 1) * members - 1 of the result all take different
    members, for every k; the seed determines which port takes which member. Raises ValueError as `port_offsets` does,
    for a base outside 0xC000..0xFFFF, and for a `count` above the number of such ports.
    """
    if base_port not in ENTROPY_PORTS:
        raise ValueError(f"base port {base_port} is not in {ENTROPY_PORTS.start}..{ENTROPY_PORTS.stop - 1}")
    reached = [offsets for offsets in port_offsets(ecmp_hash, members) if offsets.size]
    most = len(reached) * min(offsets.size for offsets in reached)  # a linear map reaches each equally often
    if not 0 <= count <= most:
        raise ValueError(f"{count} ports are not in 0..{most}")
    turns = -(-count // len(reached))
    table = np.stack([offsets[:turns] for offsets in reached], axis=1)
    return (table.ravel()[:count] ^ np.uint16(base_port)).astype(np.uint16)
