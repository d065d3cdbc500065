# SPDX-License-Identifier: Apache-2.0
"""Strides of rings, their selection, and double binary trees, beside the examples of the paper."""

from __future__ import annotations

from itertools import combinations
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.topoopt import (
    double_binary_tree,
    ring,
    ring_circuits,
    ring_path_lengths,
    select_permutations,
    shortest_permutations,
    totient_perms,
)


def test_the_papers_examples() -> None:
    assert totient_perms(12) == (1, 5, 7, 11)
    assert select_permutations(16, 3, totient_perms(16)) == (1, 3, 7)


@pytest.mark.parametrize(
    ("degree", "strides", "mean", "diameter"),
    [(4, (1, 3, 11, 37), 4.52, 8), (8, (1, 3, 5, 11, 23, 47, 97, 127), 3.06, 5)],
)
def test_one_way_circuits_make_shorter_paths_among_128_servers_than_figure_14_prints(
    degree: int, strides: tuple[int, ...], mean: float, diameter: int
) -> None:
    """Figure 14 has mean lengths of 5.7 and 3: those of circuits in both directions, as in the next test."""
    chosen = select_permutations(128, degree, totient_perms(128, primes_only=True))
    lengths = ring_path_lengths(128, chosen)
    assert chosen == strides
    assert round(lengths.mean, 2) == mean
    assert lengths.diameter == diameter


@pytest.mark.parametrize(("steps", "mean"), [((1, 13), 5.62), ((1, 3, 11, 37), 2.93)])
def test_circuits_in_both_directions_have_the_path_lengths_of_figure_14(steps: tuple[int, ...], mean: float) -> None:
    """The code released with the paper mirrors every circuit: half of the interfaces are for the way back."""
    lengths = ring_path_lengths(128, (*steps, *(128 - step for step in steps)))
    assert round(lengths.mean, 2) == mean


@given(st.integers(2, 200))
def test_strides_are_all_those_that_visit_every_member(size: int) -> None:
    def visited(stride: int) -> int:
        return len({i * stride % size for i in range(size)})

    assert totient_perms(size) == tuple(p for p in range(1, size) if visited(p) == size)
    assert set(totient_perms(size, primes_only=True)) <= set(totient_perms(size))


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40, unique=True), st.integers(1, 6))
def test_rings_visit_every_member_once_over_circuits_of_their_own(members: list[int], degree: int) -> None:
    strides = select_permutations(len(members), degree, totient_perms(len(members)))
    assert len(strides) == len(set(strides)) == min(degree, len(totient_perms(len(members))))
    seen: set[tuple[int, int]] = set()
    for stride in strides:
        order, circuits = ring(members, stride), ring_circuits(members, stride)
        assert sorted(order) == sorted(members)
        assert {(a, order[(i + 1) % len(order)]) for i, a in enumerate(order)} == set(circuits)
        assert seen.isdisjoint(circuits)
        seen.update(circuits)


@given(st.integers(2, 130), st.integers(1, 130))
def test_double_binary_trees_are_trees_and_no_member_is_an_inner_node_of_both(size: int, stride: int) -> None:
    if gcd(size, stride) != 1:
        with pytest.raises(ValueError, match="coprime"):
            double_binary_tree(size, stride)
        return
    inside: list[set[int]] = []
    for tree in double_binary_tree(size, stride):
        assert sum(parent is None for parent in tree) == 1
        for v in range(size):
            steps, at = 0, v
            while (above := tree[at]) is not None:
                at, steps = above, steps + 1
                assert steps <= size.bit_length()  # no cycle, and balanced
        children = [parent for parent in tree if parent is not None]
        assert max(children.count(v) for v in range(size)) <= 2
        inside.append({v for v in range(size) if children.count(v) == 2})
    assert inside[0].isdisjoint(inside[1])


@given(ranks=st.integers(2, 300))
def test_the_children_in_the_trees_match_nccl(ranks: int) -> None:
    """NCCL's `src/graph/trees.cc` computes children separately: at half a rank's lowest set bit, or nearer."""

    def children(rank: int) -> set[int]:
        bit = rank & -rank if rank else 1 << (ranks - 1).bit_length()
        half = bit >> 1
        found = {rank - half} if rank and half else set()
        while half and rank + half >= ranks:
            half >>= 1
        return found | {rank + half} if half else found

    mirrored = {rank: {ranks - 1 - child for child in children(ranks - 1 - rank)} for rank in range(ranks)}
    shifted = {rank: {(child + 1) % ranks for child in children((rank - 1) % ranks)} for rank in range(ranks)}
    expected = ({rank: children(rank) for rank in range(ranks)}, shifted if ranks % 2 else mirrored)
    for parents, of_nccl in zip(double_binary_tree(ranks), expected, strict=True):
        assert {r: {c for c in range(ranks) if parents[c] == r} for r in range(ranks)} == of_nccl


@given(ranks=st.integers(3, 300))
def test_a_leaf_of_one_tree_is_an_inner_node_of_the_other(ranks: int) -> None:
    inner = [{parent for parent in parents if parent is not None} for parents in double_binary_tree(ranks)]
    leaves_of_both = set(range(ranks)) - inner[0] - inner[1]
    # With an odd number of ranks the shifted tree has another rank in the root's place.
    assert len(leaves_of_both) <= ranks % 2


def test_bad_groups_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="two servers or more, not 1"):
        totient_perms(1)
    with pytest.raises(ValueError, match="degree of one or more"):
        select_permutations(8, 0, (1,))
    with pytest.raises(ValueError, match=r"\+4 is not a ring of 8 servers"):
        ring(range(8), 4)


def test_four_shortest_rings_of_128_servers() -> None:
    chosen = shortest_permutations(128, 4, totient_perms(128))
    assert chosen == (1, 5, 23, 57)
    lengths = ring_path_lengths(128, chosen)
    assert (round(lengths.mean, 2), lengths.diameter) == (4.28, 7)


@pytest.mark.parametrize(("size", "degree"), [(7, 2), (12, 3), (16, 3), (30, 4)])
def test_no_rings_have_fewer_hops_than_the_shortest(size: int, degree: int) -> None:
    strides = totient_perms(size)
    found = ring_path_lengths(size, shortest_permutations(size, degree, strides)).mean
    others = (ring_path_lengths(size, (1, *rest)).mean for rest in combinations(strides[1:], degree - 1))
    assert found == pytest.approx(min(others))


def test_many_rings_are_improved_one_by_one() -> None:
    """C(63, 5) is more than are all tried."""
    strides = totient_perms(128)
    improved = ring_path_lengths(128, shortest_permutations(128, 6, strides)).mean
    assert improved < ring_path_lengths(128, select_permutations(128, 6, strides)).mean
