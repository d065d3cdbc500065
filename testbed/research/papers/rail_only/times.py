# SPDX-License-Identifier: Apache-2.0
"""Equations 1 to 3: the duration of collectives on HB domains connected by rails (sections III-B and IV-B, Table I).

A grid of x GPUs in each HB domain by y domains; `hb_bps` (the paper's C_F) and `nic_bps` (C_S) are a GPU's rates into
its HB domain and into its rail. Latency and headers are neglected. Our copy of the paper lacks
the fractions of Equation 1. They follow from its text: every GPU first gathers the y shards of D / (x y) of its rail
over the rail, then the x shards of D / x over the HB domain.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """x GPUs in each of y HB domains, and their rates in bit/s."""

    x: int
    y: int
    hb_bps: float
    nic_bps: float

    def __post_init__(self) -> None:
        if self.x < 1 or self.y < 1 or self.hb_bps <= 0 or self.nic_bps <= 0:
            raise ValueError(f"{self} needs one GPU and one domain or more, and rates above 0")


def all_gather_s(grid: Grid, total_bytes: float) -> float:
    """Equation 1: seconds until all x y GPUs have all of `total_bytes` (D). A reduce-scatter takes equally long."""
    over_rail = (grid.y - 1) * total_bytes / (grid.x * grid.y)
    in_domain = (grid.x - 1) * total_bytes / grid.x
    return 8 * (over_rail / grid.nic_bps + in_domain / grid.hb_bps)


def all_reduce_s(grid: Grid, total_bytes: float) -> float:
    """Seconds of an all-reduce: a reduce-scatter, then an all-gather (section III-B)."""
    return 2 * all_gather_s(grid, total_bytes)


def rail_optimised_alltoall_s(grid: Grid, pair_bytes: float) -> float:
    """Equation 2: seconds of a uniform all-to-all of `pair_bytes` (D) between any two GPUs, each sent directly."""
    in_domain = (grid.x - 1) * pair_bytes / grid.hb_bps
    between = grid.x * (grid.y - 1) * pair_bytes / grid.nic_bps
    return 8 * max(in_domain, between)


def rail_only_alltoall_s(grid: Grid, pair_bytes: float) -> float:
    """Equation 3: seconds of the same all-to-all in two consecutive steps.

    Over the HB domain, y D goes to each GPU of the domain. Over the rail, x D goes to each GPU of the rail. The order
    of the steps does not matter.
    """
    forwarding = grid.y * (grid.x - 1) * pair_bytes / grid.hb_bps
    between = grid.x * (grid.y - 1) * pair_bytes / grid.nic_bps
    return 8 * (forwarding + between)


def alltoall_slowdown(grid: Grid) -> float:
    """Equation 3 divided by Equation 2, minus 1."""
    return rail_only_alltoall_s(grid, 1) / rail_optimised_alltoall_s(grid, 1) - 1


def all_reduce_hb_share(grid: Grid) -> float:
    """The fraction of a hierarchical all-reduce's bytes, over all GPUs, that the HB domains carry (section III-B)."""
    in_domains, over_rails = (grid.x - 1) * grid.y, grid.y - 1
    return in_domains / (in_domains + over_rails)
