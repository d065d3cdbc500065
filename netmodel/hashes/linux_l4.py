# SPDX-License-Identifier: Apache-2.0
"""Linux multipath routing on layer 4, bit-exact for forwarded packets whose hash the kernel computes itself.

It models `net.ipv4.fib_multipath_hash_policy=1` (`net.ipv6.` for IPv6) with a set `net.ipv4.fib_multipath_hash_seed`
(Linux 6.11 or later). Sources: net/ipv4/route.c (fib_multipath_hash, case 1), net/ipv6/route.c (rt6_multipath_hash,
case 1), net/core/flow_dissector.c (flow_hash_from_keys_seed, __flow_hash_consistentify), net/ipv4/fib_semantics.c
(fib_rebalance, fib_select_multipath); SipHash-2-4: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.
Packets that already carry a layer-4 hash (skb->l4_hash, which packets of connected sockets keep across a veth pair) are
placed by that hash, which cannot be predicted. For packets of its own, a kernel from 6.15 on prefers the nexthop whose
device owns the source address.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from netmodel.flow import Addresses, FlowFields, address_words
from netmodel.hashes.base import check_members, check_seed

_U64: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class LinuxL4Hash:
    """Linux multipath nexthops, hash policy 1. `weights`, one per nexthop, default to 1 each (kernel range 1..256).

    The hash is symmetric: both directions of a flow get the same value. Raises ValueError for a weight out of range.
    """

    weights: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and any(not 1 <= weight <= 256 for weight in self.weights):
            raise ValueError(f"Linux nexthop weights {self.weights} must lie in 1..256")

    def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
        """See `EcmpHash.select`. The kernel's seed has 32 bits: the low half of `seed` is used."""
        check_members(members, self.weights)
        chosen = nexthops_of(flow_hash(fields, seed), (1,) * members if self.weights is None else self.weights)
        return np.broadcast_to(chosen, len(fields)).astype(np.intp)


def nexthops_of(hashes: npt.NDArray[np.uint32], weights: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """The nexthop, by its number, that the kernel selects for each hash of a packet."""
    cumulative = np.cumsum(weights, dtype=np.int64)
    total = int(cumulative[-1])
    bounds = (cumulative * 2**31 + total // 2) // total - 1  # DIV_ROUND_CLOSEST_ULL(w << 31, total) - 1
    return np.searchsorted(bounds, hashes.astype(np.int64) >> 1, side="left")


def flow_hash(fields: FlowFields, seed: int) -> npt.NDArray[np.uint32]:
    """The kernel's flow hash (u32, never 0) of each flow, shape (len(fields),) or (1,)."""
    check_seed(seed)
    sport, dport = fields.sport.byteswap(), fields.dport.byteswap()
    port_a, port_b = np.minimum(sport, dport).astype(np.uint64), np.maximum(sport, dport).astype(np.uint64)
    none = np.zeros(1, dtype=np.uint64)
    halves = (none, *_ordered(fields.src, fields.dst), none)  # of 64-bit words; addresses begin in the middle of one
    words = (  # the part of struct flow_keys that is hashed
        fields.proto.astype(np.uint64) << np.uint64(16),  # the caller leaves n_proto at 0
        none,
        none,
        (port_a << np.uint64(32)) | (port_b << np.uint64(48)),
        *(low | (high << np.uint64(32)) for low, high in zip(halves[::2], halves[1::2], strict=True)),
    )
    seed32 = seed & 0xFFFFFFFF
    key = np.array([seed32 << 32 | seed32], dtype=np.uint64)
    hashed = (_siphash(words, key, key) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    hashed[hashed == 0] = 1  # 0 stands for "no hash" in the kernel
    return hashed


def _ordered(src: Addresses, dst: Addresses) -> tuple[_U64, ...]:
    """The little-endian loads of both addresses, the lesser first: by the load in IPv4, by the number in IPv6."""
    words = [(a.byteswap(), b.byteswap()) for a, b in zip(address_words(src), address_words(dst), strict=True)]
    swap = np.zeros(1, dtype=bool)
    if src.ndim == 1:
        swap = words[0][1] < words[0][0]
    else:
        for a, b in reversed(list(zip(address_words(src), address_words(dst), strict=True))):
            swap = (b < a) | ((b == a) & swap)
    first = [np.where(swap, b, a).astype(np.uint64) for a, b in words]
    second = [np.where(swap, a, b).astype(np.uint64) for a, b in words]
    return (*first, *second)


def _siphash(words: tuple[_U64, ...], key0: _U64, key1: _U64) -> _U64:
    """SipHash-2-4 of a message of whole little-endian 64-bit words."""
    v0 = key0 ^ np.uint64(0x736F6D6570736575)
    v1 = key1 ^ np.uint64(0x646F72616E646F6D)
    v2 = key0 ^ np.uint64(0x6C7967656E657261)
    v3 = key1 ^ np.uint64(0x7465646279746573)
    length = np.array([8 * len(words) << 56], dtype=np.uint64)
    for word in (*words, length):
        v3 = v3 ^ word
        v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3))
        v0 = v0 ^ word
    v2 = v2 ^ np.uint64(0xFF)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _round(v0: _U64, v1: _U64, v2: _U64, v3: _U64) -> tuple[_U64, _U64, _U64, _U64]:
    v0 = v0 + v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 = v2 + v3
    v3 = _rotated(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _rotated(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


def _rotated(word: _U64, bits: int) -> _U64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))
