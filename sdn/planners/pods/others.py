# SPDX-License-Identifier: Apache-2.0
"""The other planners on three tiers: over whole paths (`greedy`), or for one tier after the other."""

from collections.abc import Callable

import numpy as np

from sdn import _native
from sdn.planners.annealing import annealing as annealing_below
from sdn.planners.ecmp import ecmp as ecmp_below
from sdn.planners.grouping import groups
from sdn.planners.model import LOCAL, UNREACHABLE, Clos, Commodities, Ints, Plan, tors_of
from sdn.planners.pods.bounds import pod_bound
from sdn.planners.pods.model import PodClos, PodPlan, lifted


def greedy(fabric: PodClos, commodities: Commodities, *, order: Ints | None = None) -> PodPlan:
    """Puts each commodity on the path whose worst link is least congested with it; the first of equal ones.

    Paths are those through all three tiers. O(commodities * aggs * cores of a group * parallel links). See
    `sdn.planners.greedy`.
    """
    src, dst = tors_of(fabric.low, commodities)
    routes = _native.greedy_pods(
        fabric.low.link_rate_bps, fabric.high.link_rate_bps, fabric.leaf_pod, src, dst, commodities.demand, order
    )
    return PodPlan.of(
        fabric, commodities, "greedy", routes, pod_bound(fabric, commodities, src, dst, routes[:, 0] >= 0)
    )


def ecmp(fabric: PodClos, commodities: Commodities, *, seed: int = 0) -> PodPlan:
    """Puts every commodity on a random equal-cost path: a leaf chooses among its links, and an agg among its links.

    Links that lead to no path are no choice. See `sdn.planners.ecmp`.
    """

    def tier(clos: Clos, asked: Commodities) -> Plan:
        return ecmp_below(clos, asked, seed=seed)

    return _tier_by_tier(fabric, commodities, "ecmp", tier)


def annealing(fabric: PodClos, commodities: Commodities, *, seed: int = 0) -> PodPlan:
    """Simulated annealing between leaves and aggs, then between aggs and cores. See `sdn.planners.annealing`."""

    def tier(clos: Clos, asked: Commodities) -> Plan:
        return annealing_below(clos, asked, seed=seed)

    return _tier_by_tier(fabric, commodities, "annealing", tier)


def _tier_by_tier(
    fabric: PodClos, commodities: Commodities, planner: str, tier: Callable[[Clos, Commodities], Plan]
) -> PodPlan:
    """Aggs by a planner for two tiers, then cores by the same.

    Commodities that must avoid the same aggs, whose links to cores are dead, are planned together.
    """
    src, dst = tors_of(fabric.low, commodities)
    ways = fabric.ways(src, dst)
    reached = (src != dst) & ways.any(axis=1)
    table = np.full((src.size, 6), -1, dtype=np.int32)
    table[:, 0] = np.where(src == dst, LOCAL, UNREACHABLE)
    mine = np.flatnonzero(reached)
    barred = fabric.leaf_ways(src[mine], dst[mine]) & ~ways[mine]  # aggs that lead nowhere, by commodity
    kinds = np.unique(np.packbits(barred, axis=1), axis=0, return_inverse=True)[1].ravel()
    for members in groups(kinds):
        which = mine[members]
        low = Clos(
            fabric.nic_tor,
            fabric.low.nic_rate_bps,
            np.where(barred[members[0]][None, :, None], 0.0, fabric.low.link_rate_bps),
        )
        plan = tier(low, commodities.take(which))
        table[which, :3] = np.stack((plan.spine, plan.up, plan.down), axis=1)
    across = mine[fabric.leaf_pod[src[mine]] != fabric.leaf_pod[dst[mine]]]
    if across.size:
        plan = tier(fabric.high, lifted(fabric, commodities, across, table[across, 0]))
        table[across, 3:] = np.stack((plan.spine, plan.up, plan.down), axis=1)
    return PodPlan.of(fabric, commodities, planner, table, pod_bound(fabric, commodities, src, dst, reached))
