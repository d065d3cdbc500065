# SPDX-License-Identifier: Apache-2.0
"""Open vSwitch select groups with `selection_method=hash` over the 5-tuple, bit-exact with its murmur build.

Sources, Open vSwitch 3.1: lib/hash.h (hash_add, hash_finish, hash_bytes, hash_int, hash_uint64),
ofproto/ofproto-dpif-xlate.c (pick_hash_fields_select_group, group_best_live_bucket). The group hashes the fields
ip_src, ip_dst, ipv6_src, ipv6_dst, ip_proto, tcp_src, tcp_dst, udp_src and udp_dst as far as a packet has them, each
with a full mask; `selection_method_param` is the switch's hash seed; `bucket_id` is the member index. OVS built with
__SSE4_2__ or ARM's CRC instructions uses another hash function, so the emulated fabric compares predictions with
`ofproto/trace` at start-up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from netmodel.flow import IPPROTO_TCP, IPPROTO_UDP, Addresses, FlowFields, address_words
from netmodel.hashes.base import check_members, check_seed

_U32: TypeAlias = npt.NDArray[np.uint32]

# Scores are computed for this many (bucket, flow) pairs at a time, so that they stay in the processor's cache.
_BLOCK_SCORES = 1 << 15


@dataclass(frozen=True, slots=True)
class OvsHash:
    """Open vSwitch's select group, `selection_method=hash`, `bucket_id` = member index.

    `weights`, one per member, default to 1 each. They are not proportional shares: with (1, 1, 1, 2) the last bucket
    takes 62.5 % of the flows, not 40 %. Raises ValueError for a weight outside 0..65535, or when all are zero.
    """

    weights: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.weights is None:
            return
        if any(not 0 <= weight <= 0xFFFF for weight in self.weights):
            raise ValueError(f"OVS bucket weights {self.weights} must lie in 0..65535")
        if not any(self.weights):
            raise ValueError(f"OVS bucket weights {self.weights} leave no bucket alive: one must be above zero")

    def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
        """See `EcmpHash.select`. All 64 bits of `seed` are used."""
        check_members(members, self.weights)
        choice = np.zeros(len(fields), dtype=np.intp)
        if members == 1:
            return choice
        weights = (1,) * members if self.weights is None else self.weights
        # In a tie OVS takes the last bucket and argmax the first, so the buckets are listed from last to first.
        live = np.array([i for i in reversed(range(members)) if weights[i] > 0])
        live_weights = np.array(weights, dtype=np.uint32)[live]
        start = np.broadcast_to(basis(fields, seed), len(fields))
        block = max(1, _BLOCK_SCORES // members)
        for first in range(0, len(fields), block):
            part = slice(first, first + block)
            choice[part] = live[np.argmax(_scores(live, live_weights, start[part]), axis=0)]
        return choice


def basis(fields: FlowFields, seed: int) -> npt.NDArray[np.uint32]:
    """The hash of each flow that all its buckets' scores start from; shape (len(fields),) or (1,)."""
    check_seed(seed)
    low = np.array([seed & 0xFFFFFFFF], dtype=np.uint32)
    high = np.array([seed >> 32], dtype=np.uint32)
    start = _finish(_add(_add(np.zeros(1, dtype=np.uint32), low), high), 8)  # hash_uint64
    # OVS hashes in the order of its field numbers (enum mf_field_id), not in the order of the OpenFlow message.
    hashed = _hash_address(fields.dst, _hash_address(fields.src, start))
    hashed = _hash_bytes(fields.proto, 1, hashed)
    with_ports = (fields.proto == IPPROTO_UDP) | (fields.proto == IPPROTO_TCP)
    if not with_ports.any():
        return hashed
    ported = _hash_bytes(fields.sport.byteswap(), 2, hashed)
    ported = _hash_bytes(fields.dport.byteswap(), 2, ported)
    # OVS leaves the ports out for a packet of another protocol.
    return ported if with_ports.all() else np.where(with_ports, ported, hashed)


def scores(fields: FlowFields, seed: int, weights: Sequence[int]) -> npt.NDArray[np.uint32]:
    """The score of each bucket for each flow, shape (len(weights), len(fields)); the highest live one wins."""
    start = np.broadcast_to(basis(fields, seed), len(fields))
    return _scores(np.arange(len(weights)), np.array(weights, dtype=np.uint32), start)


def _scores(buckets: npt.NDArray[np.intp], weights: _U32, start: _U32) -> _U32:
    """(hash_int(bucket, basis) & 0xffff) * weight: a row per bucket, a column per flow."""
    table = _finish(_add(_advance(buckets.astype(np.uint32))[:, np.newaxis], start), 8)
    table &= np.uint32(0xFFFF)
    table *= weights[:, np.newaxis]
    return table


def _hash_bytes(network_order: npt.NDArray[Any], length: int, start: _U32) -> _U32:
    """hash_bytes of `length` <= 4 bytes that read as `network_order` when loaded little-endian, zero-padded."""
    return _finish(_add(start, network_order.astype(np.uint32)), length)


def _hash_address(addresses: Addresses, state: _U32) -> _U32:
    """hash_bytes of the 4 or 16 bytes of each address."""
    words = address_words(addresses)
    for word in words:
        state = _add(state, word.byteswap())
    return _finish(state, 4 * len(words))


def _add(state: _U32, word: _U32) -> _U32:
    return _advance(state ^ _scramble(word))


def _scramble(word: _U32) -> _U32:
    # hash_add does not change the state for a word of zero. A scrambled zero is zero, so this needs no special case.
    word = word * np.uint32(0xCC9E2D51)
    word = (word << np.uint32(15)) | (word >> np.uint32(17))
    word *= np.uint32(0x1B873593)
    return word


def _advance(state: _U32) -> _U32:
    state = (state << np.uint32(13)) | (state >> np.uint32(19))
    state *= np.uint32(5)
    state += np.uint32(0xE6546B64)
    return state


def _finish(state: _U32, length: int) -> _U32:
    state = state ^ np.uint32(length)
    state ^= state >> np.uint32(16)
    state *= np.uint32(0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state *= np.uint32(0xC2B2AE35)
    state ^= state >> np.uint32(16)
    return state
