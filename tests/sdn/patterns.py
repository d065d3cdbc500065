# SPDX-License-Identifier: Apache-2.0
"""The traffic of each step of common collectives, for which vClos, section 5.3, proves its routing.

Each is a list of steps, each step a list of (source rank, destination rank).
"""

from __future__ import annotations

from sdn import topoopt

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
    """Both trees at once, up and down."""
    trees = topoopt.double_binary_tree(ranks)
    edges = [(rank, parent) for tree in trees for rank, parent in enumerate(tree) if parent is not None]
    return [edges + [(parent, rank) for rank, parent in edges]]
