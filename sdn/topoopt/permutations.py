# SPDX-License-Identifier: Apache-2.0
"""Permutations of a group for its all-reduce rings and trees: TopoOpt, section 4.3 and appendix E.1.

A group's members are numbered from 0. The ring "+p" goes from position i to (i + p) mod k; it visits all k members when
p and k are coprime (theorem 2). An all-reduce can use any of these rings, or several at once.

Algorithm 2 forms groups of k out of n servers by an arithmetic rule. Here groups are given by their members, as a
placement yields them, and a stride is in positions of the group.
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb, gcd, isqrt

_EXHAUSTIVE = 100_000
"""The most combinations of strides that are all tried."""

Circuit = tuple[int, int]
"""A one-way circuit from the transmitter of one server to the receiver of another."""


def totient_perms(size: int, *, primes_only: bool = False) -> tuple[int, ...]:
    """The strides of all regular rings of `size` members, ascending: TotientPerms (Algorithm 2).

    `primes_only` keeps 1 and the primes, which the paper does for large groups. Raises ValueError below two members.
    """
    if size < 2:
        raise ValueError(f"a ring needs two servers or more, not {size}")
    strides = (p for p in range(1, size) if gcd(p, size) == 1)
    return tuple(p for p in strides if not primes_only or p == 1 or _is_prime(p))


def select_permutations(size: int, degree: int, candidates: Sequence[int]) -> tuple[int, ...]:
    """The `degree` strides that come closest to a geometric sequence: SelectPermutations (Algorithm 3).

    Any distance is then a sum of few strides, so the diameter is of order degree * size ** (1 / degree) (theorem 1).
    The sequence begins with the first of `candidates`; of equally close candidates the smaller is used. Its ratio is at
    least 2 (appendix E.2). The paper then uses fewer interfaces; here the remaining ones use the next candidates. Fewer
    strides are returned only when there are fewer candidates.

    Raises ValueError for a degree below one or no candidates.
    """
    if degree < 1 or not candidates:
        raise ValueError(f"permutations need a degree of one or more and a candidate, not degree {degree}")
    ratio = max(2.0, size ** (1 / degree))
    chosen = [candidates[0]]
    while len(chosen) < min(degree, len(candidates)):
        wish = ratio * chosen[-1]
        left = (stride for stride in candidates if stride not in chosen)
        chosen.append(min(left, key=lambda stride: (abs(stride - wish), stride)))
    return tuple(chosen)


def shortest_permutations(size: int, degree: int, candidates: Sequence[int]) -> tuple[int, ...]:
    """The `degree` strides with the fewest hops on average, the first of `candidates` among them.

    All combinations are tried where there are at most 100,000, as with four of 128 servers' 64 strides. Otherwise one
    stride after the other of `select_permutations` is exchanged until nothing is gained. Of equally good combinations
    the first is returned. Raises ValueError as `select_permutations`, and where `candidates` reach not all members.
    """
    start = select_permutations(size, degree, candidates)
    first, *others = candidates
    if comb(len(others), len(start) - 1) <= _EXHAUSTIVE:
        return min(((first, *chosen) for chosen in combinations(others, len(start) - 1)), key=lambda s: _hops(size, s))
    best, improved = start, True
    while improved:
        exchanges = (
            tuple(sorted((*best[:place], other, *best[place + 1 :])))
            for place in range(1, len(best))
            for other in others
            if other not in best
        )
        found = min(exchanges, key=lambda strides: _hops(size, strides))
        improved = _hops(size, found) < _hops(size, best)
        best = found if improved else best
    return best


def _hops(size: int, strides: Sequence[int]) -> int:
    """The sum of hops from one member to all others. Bit i of a number is member i."""
    everybody = (1 << size) - 1
    reached, total = 1, 0
    while reached != everybody:
        total += size - reached.bit_count()
        further = reached
        for stride in strides:
            further |= (reached << stride | reached >> (size - stride)) & everybody
        if further == reached:
            raise ValueError(f"the strides {tuple(strides)} do not reach all {size} servers")
        reached = further
    return total


def ring(members: Sequence[int], stride: int) -> tuple[int, ...]:
    """The members in the order of the ring "+stride". Raises ValueError when it does not visit all."""
    if gcd(stride, len(members)) != 1:
        raise ValueError(f"+{stride} is not a ring of {len(members)} servers: they have a common divisor")
    return tuple(members[i * stride % len(members)] for i in range(len(members)))


def ring_circuits(members: Sequence[int], stride: int) -> tuple[Circuit, ...]:
    """The circuits of the ring "+stride", by transmitter. Raises ValueError as `ring` does."""
    order = ring(members, stride)
    return tuple(sorted(zip(order, (*order[1:], order[0]), strict=True)))


Tree = tuple[int | None, ...]
"""The parent of every member, by position; the root has none."""


def double_binary_tree(size: int, stride: int = 1) -> tuple[Tree, Tree]:
    """Two binary trees over the same members; an inner node of one is a leaf of the other (appendix A).

    In the first tree even positions are inner nodes. The second is its mirror image, or for an odd size the first
    shifted by one, so that no member is an inner node of both. With `size` odd one member is a leaf of both. `stride`
    permutes the labels: v becomes v * stride mod size (figure 23), coprime as a ring's; with stride 1 the trees are
    NCCL's (P. Sanders, J. Speck and J. L. Traff, Parallel Computing 35, 2009). Raises ValueError below two members or
    for a common divisor.
    """
    if size < 2 or gcd(stride, size) != 1:
        raise ValueError(f"a double binary tree needs two servers and a coprime stride, not {size} and {stride}")
    first = [_parent(v, size) for v in range(size)]
    second: list[int | None] = [None] * size
    for v, parent in enumerate(first):
        if size % 2 == 0:
            second[size - 1 - v] = None if parent is None else size - 1 - parent
        else:
            second[(v + 1) % size] = None if parent is None else (parent + 1) % size
    return _relabelled(first, stride), _relabelled(second, stride)


def _parent(v: int, size: int) -> int | None:
    """The parent of v in the tree with root 0, whose odd members are leaves.

    If b is the lowest bit set in v, the parent is the next multiple of 2 b that is not a multiple of 4 b, or v - b when
    there is no such member.
    """
    if v == 0:
        return None
    low = v & -v
    above = (v ^ low) | (low << 1)
    return above if above < size else v ^ low


def _relabelled(parents: Sequence[int | None], stride: int) -> Tree:
    size = len(parents)
    labels: list[int | None] = [None] * size
    for v, parent in enumerate(parents):
        labels[v * stride % size] = None if parent is None else parent * stride % size
    return tuple(labels)


def _is_prime(p: int) -> bool:
    return p > 1 and all(p % divisor for divisor in range(2, isqrt(p) + 1))
