# SPDX-License-Identifier: Apache-2.0
"""The traffic of each step of common collectives, for which vClos, section 5.3, proves its routing.

Each is a list of steps, each step a list of (source rank, destination rank).
"""

from __future__ import annotations

Step = list[tuple[int, int]]


def ring(ranks: int) -> list[Step]:
    """Every step of a ring all-reduce is alike."""
    return [[(rank, (rank + 1) % ranks) for rank in range(ranks)]]


def pipeline(ranks: int) -> list[Step]:
    """Activations to the next stage, gradients to the one before."""
    forward = [(rank, rank + 1) for rank in range(ranks - 1)]
    return [forward, [(dst, src) for src, dst in forward]]


def hierarchical_ring(ranks: int, per_server: int) -> list[Step]:
    """A ring within every server, then one ring across servers for each place in a server."""
    inside = [(rank, rank - rank % per_server + (rank + 1) % per_server) for rank in range(ranks) if per_server > 1]
    return [inside, [(rank, (rank + per_server) % ranks) for rank in range(ranks)]]


def halving_doubling(ranks: int) -> list[Step]:
    """Recursive halving and doubling. Ranks beyond a power of two use a partner before and after it."""
    power = 1 << (ranks.bit_length() - 1)
    folded = [(rank, rank - power) for rank in range(power, ranks)]
    steps = [[(rank, rank ^ 1 << bit) for rank in range(power)] for bit in range(power.bit_length() - 1)]
    return [folded, *steps, [(dst, src) for src, dst in folded]]


def pairwise_alltoall(ranks: int) -> list[Step]:
    """At step t every rank sends to the one t further on."""
    return [[(rank, (rank + shift) % ranks) for rank in range(ranks)] for shift in range(1, ranks)]


def double_binary_tree(ranks: int) -> list[Step]:
    """Both trees of NCCL at once, up and down (P. Sanders, J. Speck and J. L. Traff, Parallel Computing 35, 2009)."""

    def up(rank: int) -> int | None:
        if rank == 0:
            return None
        bit = rank & -rank
        parent = (rank ^ bit) | bit << 1
        return parent if parent < ranks else rank ^ bit

    def second(rank: int) -> int:
        return (rank + 1) % ranks if ranks % 2 else ranks - 1 - rank

    edges = [(rank, parent) for rank in range(ranks) if (parent := up(rank)) is not None]
    edges += [(second(rank), second(parent)) for rank, parent in edges]
    return [edges + [(parent, rank) for rank, parent in edges]]
