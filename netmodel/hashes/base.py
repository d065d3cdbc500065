# SPDX-License-Identifier: Apache-2.0
"""The interface of all ECMP hashes, and the stronger one of affine hashes."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from netmodel.flow import FlowFields


class EcmpHash(Protocol):
    """How a switch chooses a member of an ECMP group. Implementations are immutable values."""

    def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
        """The member index, 0 .. members - 1, of each flow; shape (len(fields),).

        `seed` is the switch's `hash_seed` (u64); a hash that uses fewer bits documents which ones. Raises ValueError
        when `members` is below one, or differs from the number of the hash's weights.
        """
        ...


class AffineHash(EcmpHash, Protocol):
    """A hash whose value is affine over GF(2): value(x ^ d, seed) = value(x, seed) ^ linear(d), for any seed.

    The change of a header field alone thus determines the change of the hash value, for every switch and seed. Relative
    path control is based on this property (RePaC: Zhang et al., "Hashing Linearity Enables Relative Path Control in
    Data Centers", USENIX ATC 2021). It holds for the member too where the number of members is a power of two.
    """

    def value(self, fields: FlowFields, seed: int) -> npt.NDArray[np.uint32]:
        """The hash value of each flow, before the reduction to a member; shape (len(fields),)."""
        ...

    def linear(self, delta: FlowFields) -> npt.NDArray[np.uint32]:
        """L(d): the XOR change of the hash value when the header changes by XOR with `delta`; shape (len(delta),)."""
        ...


def check_members(members: int, weights: Sequence[int] | None = None) -> None:
    """Raises ValueError when there is no member, or when there is not one weight per member."""
    if members < 1:
        raise ValueError(f"an ECMP group has {members} members, but needs at least one")
    if weights is not None and len(weights) != members:
        raise ValueError(f"the hash has {len(weights)} weights, but the ECMP group has {members} members")


def fold_seed(seed: int, bits: int) -> int:
    """The XOR of all `bits`-bit pieces of a u64 seed. Raises ValueError when `seed` is not a u64."""
    check_seed(seed)
    folded = 0
    while seed:
        folded ^= seed & ((1 << bits) - 1)
        seed >>= bits
    return folded


def check_seed(seed: int) -> None:
    """Raises ValueError when `seed` is not a u64."""
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"hash seed {seed} is not in 0..2**64-1")
