# SPDX-License-Identifier: Apache-2.0
"""CRC hashes of switch ASICs. They are affine over GF(2): equal header changes have the same effect on all flows.

The key is src, dst (4 bytes each, or 16), proto (1), sport, dport (2 each), every field in network order. The member is
the CRC modulo the number of members. The seed only XORs a constant into the value. A leaf and a spine with the same
CRC therefore make the same choices up to a permutation, for any seeds (hash polarisation). Real switches behave so too.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from netmodel.flow import FlowFields, address_words
from netmodel.hashes.base import check_members, fold_seed

CrcKind: TypeAlias = Literal["crc16", "crc32"]

_U32: TypeAlias = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class CrcHash:
    """A CRC of the 5-tuple modulo the number of members; an `AffineHash`.

    "crc16" is the CCITT polynomial 0x1021, most significant bit first, with the seed as start value (as Python's
    `binascii.crc_hqx`; SAI_HASH_ALGORITHM_CRC_CCITT). "crc32" is IEEE 802.3's, with the seed as the CRC of a preceding
    message (as Python's `zlib.crc32`). The u64 seed is folded by XOR to 16 or 32 bits. Raises ValueError for other
    kinds.
    """

    kind: CrcKind

    def __post_init__(self) -> None:
        if self.kind not in get_args(CrcKind):
            raise ValueError(f"CRC kind {self.kind!r} is none of {', '.join(get_args(CrcKind))}")

    def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
        """See `EcmpHash.select`."""
        check_members(members)
        return (self.value(fields, seed) % np.uint32(members)).astype(np.intp)

    def value(self, fields: FlowFields, seed: int) -> npt.NDArray[np.uint32]:
        """See `AffineHash.value`."""
        if self.kind == "crc16":
            return self._register(fields, fold_seed(seed, 16))
        ones = 0xFFFFFFFF  # CRC-32 inverts its register before and after
        return self._register(fields, fold_seed(seed, 32) ^ ones) ^ np.uint32(ones)

    def linear(self, delta: FlowFields) -> npt.NDArray[np.uint32]:
        """See `AffineHash.linear`: the polynomial division without start value and inversions."""
        return self._register(delta, 0)

    def _register(self, fields: FlowFields, start: int) -> _U32:
        """The shift register after the whole key, with start value `start`."""
        table = _table(self.kind)
        register = np.array([start], dtype=np.uint32)
        # The source port comes second to last, so only four table look-ups differ between the flows of one host pair.
        key: list[tuple[npt.NDArray[Any], int]]
        key = [(word, 4) for end in (fields.src, fields.dst) for word in address_words(end)]
        key += [(fields.proto, 1), (fields.sport, 2), (fields.dport, 2)]
        for field, size in key:
            for shift in range(8 * (size - 1), -1, -8):
                byte = _byte(field, shift)
                if self.kind == "crc16":
                    register = ((register << np.uint32(8)) & np.uint32(0xFFFF)) ^ table[
                        (register >> np.uint32(8)) ^ byte
                    ]
                else:
                    register = (register >> np.uint32(8)) ^ table[(register & np.uint32(0xFF)) ^ byte]
        return np.broadcast_to(register, len(fields)).copy()


def _byte(field: npt.NDArray[Any], shift: int) -> _U32:
    return (field.astype(np.uint32) >> np.uint32(shift)) & np.uint32(0xFF)


@lru_cache(maxsize=2)
def _table(kind: CrcKind) -> _U32:
    """The change of the register for each byte value: 256 entries."""
    register = np.arange(256, dtype=np.uint32)
    if kind == "crc16":
        register <<= np.uint32(8)
        for _ in range(8):
            carry = (register >> np.uint32(15)).astype(bool)
            register = np.where(carry, (register << np.uint32(1)) ^ np.uint32(0x1021), register << np.uint32(1))
            register &= np.uint32(0xFFFF)
    else:
        for _ in range(8):
            carry = (register & np.uint32(1)).astype(bool)
            register = np.where(carry, (register >> np.uint32(1)) ^ np.uint32(0xEDB88320), register >> np.uint32(1))
    register.setflags(write=False)
    return register
