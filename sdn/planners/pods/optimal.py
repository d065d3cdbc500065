# SPDX-License-Identifier: Apache-2.0
"""`optimal` on three tiers: colour twice. docs/planners.md has the proof of its guarantee.

First leaves are coloured into aggs, all pods at once, which gives each commodity an agg. Then pods are coloured into
the cores of each agg. Where the second step cannot keep what the first one reached, aggs take equal shares of leaves
and pods (`sdn.planners.pods.shares`). Where links differ, single commodities move off the worst link, and a greedy
start is tried too.
"""

import numpy as np

from sdn import _native
from sdn.planners.bounds import NOTHING, equal_demands
from sdn.planners.grouping import Mask
from sdn.planners.levels import dealt
from sdn.planners.model import LOCAL, SAME, UNREACHABLE, Clos, Commodities, Ints, tors_of
from sdn.planners.optimal import optimal as optimal_below
from sdn.planners.order import largest_first
from sdn.planners.pods.bounds import AGGS, pod_bound, said
from sdn.planners.pods.model import PodClos, PodPlan, lifted
from sdn.planners.pods.shares import aggs_by_shares

_EFFORT = 5_000_000  # paths examined from each start: about 0.2 s


def optimal(fabric: PodClos, commodities: Commodities, *, threads: int = 1) -> PodPlan:
    """A plan of least congestion: exact, or with a bound of its distance from the optimum.

    *Equal demands, links of each tier alike and alive, and as much capacity from each agg to cores as from leaves to
    it (full bisection):* exact. In practice linear in the commodities.

    *The same with less capacity to cores:* exact if all commodities change pods.

    *Otherwise:* the best of some starts, improved by moves, with a bound and a gap.
    """
    src, dst = tors_of(fabric.low, commodities)
    if len(commodities) and commodities.demand.min() == commodities.demand.max() and _has_full_bisection(fabric):
        return _coloured_twice(fabric, commodities, src, dst, threads)
    reached = (src != dst) & fabric.ways(src, dst).any(axis=1)
    bound = pod_bound(fabric, commodities, src, dst, reached)
    best: PodPlan | None = None
    for start in (_tier_by_tier, _by_shares, _greedy):
        routes = start(fabric, commodities, src, dst, reached)
        if routes is None:
            continue
        plan = PodPlan.of(fabric, commodities, "optimal", routes, bound)
        if not plan.proved:
            plan = PodPlan.of(fabric, commodities, "optimal", improved(plan, src, dst, _EFFORT), bound)
        if best is None or plan.congestion < best.congestion * (1 - SAME):
            best = plan
        if best.proved:
            break
    assert best is not None  # because _greedy always answers
    return best


def _has_full_bisection(fabric: PodClos) -> bool:
    """Whether links are alike within each tier, and each agg has as much capacity to cores as to its leaves.

    Where a link to a core is r times as fast as one below, it counts as the whole part of r.
    """
    low, high = fabric.low, fabric.high
    if low.uniform_links is None or high.uniform_links is None:
        return False
    below = fabric.most_leaves * int((low.link_rate_bps[0] > 0).sum(axis=1).max())  # links of an agg
    times = int(high.link_rate_bps.max() / low.link_rate_bps.max() * (1 + SAME))
    return below <= times * int((high.link_rate_bps[0] > 0).sum())


def _coloured_twice(fabric: PodClos, commodities: Commodities, src: Ints, dst: Ints, threads: int) -> PodPlan:
    """The plan for equal demands and full bisection: it reaches the bound of the leaves, so that this is proved."""
    agg, link = _coloured(fabric.low, src, dst, threads)
    by = np.maximum(agg, 0)  # within a leaf any agg will do, because no core is needed
    near, far = (fabric.leaf_pod[leaves] * np.int32(fabric.aggs) + by for leaves in (src, dst))
    core, core_link = _coloured(fabric.high, near, far, threads)
    cross = agg >= 0
    bound = NOTHING
    if cross.any():
        bound = said(equal_demands(fabric.low, src[cross], dst[cross], float(commodities.demand[0])), AGGS)
    columns = (agg, link, link, core, core_link, core_link)
    return PodPlan(fabric, commodities, "optimal", *columns, bound.congestion, bound.why)


def _coloured(fabric: Clos, src: Ints, dst: Ints, threads: int) -> tuple[Ints, Ints]:
    """Spine, or LOCAL, and parallel link of commodities of one demand on links that are alike."""
    assert fabric.uniform_links is not None
    spine_of, link_of = fabric.uniform_links
    colour = _native.colour(fabric.tors, src, dst, spine_of.size, None, threads)
    # Colour -1, of commodities within a ToR, selects the entry appended.
    return np.append(spine_of, np.int32(LOCAL))[colour], np.append(link_of, np.int32(-1))[colour]


def _tier_by_tier(fabric: PodClos, commodities: Commodities, src: Ints, dst: Ints, reached: Mask) -> Ints | None:
    """Routes by `optimal` for two tiers, twice. None where dead links to cores bar an agg that leaves have links to."""
    table = np.full((src.size, 6), -1, dtype=np.int32)
    table[:, 0] = np.where(src == dst, LOCAL, UNREACHABLE)
    mine = np.flatnonzero(reached)
    if fabric.high.uniform_links is None:
        leaves = src[mine], dst[mine]
        if (fabric.ways(*leaves) != fabric.leaf_ways(*leaves)).any():
            return None
    low = optimal_below(fabric.low, commodities.take(mine))
    table[mine, :3] = np.stack((low.spine, low.up, low.down), axis=1)
    across = mine[fabric.leaf_pod[src[mine]] != fabric.leaf_pod[dst[mine]]]
    if across.size:
        high = optimal_below(fabric.high, lifted(fabric, commodities, across, table[across, 0]))
        table[across, 3:] = np.stack((high.spine, high.up, high.down), axis=1)
    return table


def _by_shares(fabric: PodClos, commodities: Commodities, src: Ints, dst: Ints, reached: Mask) -> Ints | None:
    """Routes of equal demands where links are alike within each tier: aggs by shares, which cores then colour."""
    demand, low, high = commodities.demand, fabric.low, fabric.high
    if demand.min() != demand.max() or low.uniform_links is None or high.uniform_links is None:
        return None
    mine = np.flatnonzero(reached)
    agg = aggs_by_shares(fabric, src[mine], dst[mine])
    if agg is None:
        return None
    table = np.full((src.size, 6), -1, dtype=np.int32)
    table[:, 0] = np.where(src == dst, LOCAL, UNREACHABLE)
    table[mine, 0] = agg
    table[mine, 1], table[mine, 2] = (dealt(low.link_rate_bps, leaves[mine], agg) for leaves in (src, dst))
    across = mine[fabric.leaf_pod[src[mine]] != fabric.leaf_pod[dst[mine]]]
    if across.size:
        plan = optimal_below(high, lifted(fabric, commodities, across, table[across, 0]))
        table[across, 3:] = np.stack((plan.spine, plan.up, plan.down), axis=1)
    return table


def _greedy(fabric: PodClos, commodities: Commodities, src: Ints, dst: Ints, reached: Mask) -> Ints:
    order = largest_first(commodities)
    return _native.greedy_pods(
        fabric.low.link_rate_bps, fabric.high.link_rate_bps, fabric.leaf_pod, src, dst, commodities.demand, order
    )


def improved(plan: PodPlan, src: Ints, dst: Ints, effort: int) -> Ints:
    """The routes of a plan after single moves off the worst link, which examine at most `effort` paths."""
    fabric, demand = plan.fabric, plan.commodities.demand
    rates = fabric.low.link_rate_bps, fabric.high.link_rate_bps
    return _native.improve_pods(*rates, fabric.leaf_pod, src, dst, demand, plan.routes, plan.bound, effort)
