# SPDX-License-Identifier: Apache-2.0
"""Reference implementations of the bit-exact hashes: one flow at a time, in Python integers, after the C sources."""

import struct
from typing import Literal

M32 = 0xFFFFFFFF
M64 = 0xFFFFFFFFFFFFFFFF


def rotl(value: int, bits: int, width: int) -> int:
    return (value << bits | value >> (width - bits)) & ((1 << width) - 1)


def ovs_add(h: int, data: int) -> int:
    if data:
        data = data * 0xCC9E2D51 & M32
        data = rotl(data, 15, 32)
        data = data * 0x1B873593 & M32
        h ^= data
    return (rotl(h, 13, 32) * 5 + 0xE6546B64) & M32


def ovs_finish(h: int, final: int) -> int:
    h ^= final
    h ^= h >> 16
    h = h * 0x85EBCA6B & M32
    h ^= h >> 13
    h = h * 0xC2B2AE35 & M32
    return h ^ h >> 16


def ovs_bytes(data: bytes, basis: int) -> int:
    h = basis
    for i in range(0, len(data), 4):
        h = ovs_add(h, int.from_bytes(data[i : i + 4], "little"))
    return ovs_finish(h, len(data))


def ovs_scores(src: bytes, dst: bytes, proto: int, sport: int, dport: int, seed: int, weights: list[int]) -> list[int]:
    basis = ovs_finish(ovs_add(ovs_add(0, seed & M32), seed >> 32), 8)
    ports = (sport.to_bytes(2, "big"), dport.to_bytes(2, "big")) if proto in (6, 17) else ()
    for value in (src, dst, bytes([proto]), *ports):
        basis = ovs_bytes(value, basis)
    return [
        (ovs_finish(ovs_add(ovs_add(bucket, 0), basis), 8) & 0xFFFF) * weight for bucket, weight in enumerate(weights)
    ]


def ovs_bucket(src: bytes, dst: bytes, proto: int, sport: int, dport: int, seed: int, weights: list[int]) -> int:
    best, chosen = 0, -1
    for bucket, score in enumerate(ovs_scores(src, dst, proto, sport, dport, seed, weights)):
        if weights[bucket] and score >= best:
            best, chosen = score, bucket
    return chosen


def siphash24(key: bytes, message: bytes) -> int:
    """SipHash-2-4 of any bytes, after the pseudocode of its paper."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def sip_round() -> None:
        for a, b, c, d, first, second in ((0, 1, 2, 3, 13, 16), (2, 1, 0, 3, 17, 21)):
            v[a] = (v[a] + v[b]) & M64
            v[b] = rotl(v[b], first, 64) ^ v[a]
            v[a] = rotl(v[a], 32, 64)
            v[c] = (v[c] + v[d]) & M64
            v[d] = rotl(v[d], second, 64) ^ v[c]

    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        sip_round()
        sip_round()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(4):
        sip_round()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def linux_hash(src: bytes, dst: bytes, proto: int, sport: int, dport: int, seed: int) -> int:
    a, b = src, dst
    order: Literal["big", "little"] = "big" if len(a) == 16 else "little"
    if int.from_bytes(b, order) < int.from_bytes(a, order):
        a, b = b, a
    p, q = (value.to_bytes(2, "big") for value in (sport, dport))
    if int.from_bytes(q, "little") < int.from_bytes(p, "little"):
        p, q = q, p
    keys = bytes([0, 0, proto, 0]) + bytes(24) + p + q + bytes(4) + a + b + bytes(4)
    return siphash24(struct.pack("<IIII", *[seed & M32] * 4), keys) & M32 or 1


def linux_nexthop(src: bytes, dst: bytes, proto: int, sport: int, dport: int, seed: int, weights: list[int]) -> int:
    h = linux_hash(src, dst, proto, sport, dport, seed) >> 1
    total, cumulative = sum(weights), 0
    for i, weight in enumerate(weights):
        cumulative += weight
        if h <= ((cumulative << 31) + total // 2) // total - 1:
            return i
    raise AssertionError("the last bound is 2**31 - 1")


def crc16(data: bytes, start: int) -> int:
    """CCITT, bit by bit."""
    register = start
    for byte in data:
        register ^= byte << 8
        for _ in range(8):
            register = (register << 1 ^ (0x1021 if register & 0x8000 else 0)) & 0xFFFF
    return register
