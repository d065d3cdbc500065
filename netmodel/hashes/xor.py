# SPDX-License-Identifier: Apache-2.0
"""The XOR hash: the header folded into 16 bits (SAI_HASH_ALGORITHM_XOR). It is the simplest affine hash."""

from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from netmodel.flow import FlowFields, address_words
from netmodel.hashes.base import check_members, fold_seed

_U32: TypeAlias = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class XorHash:
    """XOR of the 16-bit words of src, dst, sport, dport and of proto, modulo the number of members; an `AffineHash`.

    The u64 seed, folded to 16 bits, is XORed in.
    """

    def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
        """See `EcmpHash.select`."""
        check_members(members)
        return (self.value(fields, seed) % np.uint32(members)).astype(np.intp)

    def value(self, fields: FlowFields, seed: int) -> npt.NDArray[np.uint32]:
        """See `AffineHash.value`."""
        return self.linear(fields) ^ np.uint32(fold_seed(seed, 16))

    def linear(self, delta: FlowFields) -> npt.NDArray[np.uint32]:
        """See `AffineHash.linear`."""
        addresses = reduce(xor, (*address_words(delta.src), *address_words(delta.dst)))
        folded: _U32 = (addresses >> np.uint32(16)) ^ (addresses & np.uint32(0xFFFF)) ^ delta.proto
        folded = folded ^ delta.sport ^ delta.dport
        return np.broadcast_to(folded, len(delta)).astype(np.uint32)
