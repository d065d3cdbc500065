# SPDX-License-Identifier: Apache-2.0
"""All links between switches by one number each, for fabrics of two tiers and of three.

First come those of leaves, in the order of `Clos.link_rate_bps`, then those between aggs and cores, in the order of
`PodClos.core_rate_bps`.
"""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sdn.planners.bounds import Bound
from sdn.planners.model import Clos, Floats, Plan
from sdn.planners.pods.model import PodClos, PodPlan

AnyClos: TypeAlias = Clos | PodClos
AnyPlan: TypeAlias = Plan | PodPlan
Way: TypeAlias = tuple[int, ...]
"""The links of a commodity: the columns of a `Plan` (spine, up, down), or of a `PodPlan` (agg, up, down, core, core_up,
core_down)."""


def leaf_links(fabric: AnyClos) -> Clos:
    """The part of a fabric that has the links of leaves."""
    return fabric if isinstance(fabric, Clos) else fabric.low


def rates(fabric: AnyClos) -> Floats:
    """The rate of every link in bit/s; 0 for a dead one, and where there is none."""
    if isinstance(fabric, Clos):
        return fabric.link_rate_bps.ravel()
    return np.concatenate((fabric.low.link_rate_bps.ravel(), fabric.core_rate_bps.ravel()))


def without(fabric: AnyClos, dead: Iterable[int]) -> AnyClos:
    """The fabric with these links dead. Raises IndexError for a number that it does not have."""
    low = leaf_links(fabric)
    rate = rates(fabric).copy()
    rate[list(dead)] = 0
    below = Clos(low.nic_tor, low.nic_rate_bps, rate[: low.link_rate_bps.size].reshape(low.link_rate_bps.shape))
    if isinstance(fabric, Clos):
        return below
    return PodClos(below, fabric.leaf_pod, rate[low.link_rate_bps.size :].reshape(fabric.core_rate_bps.shape))


def loads(plan: AnyPlan) -> Floats:
    """[0 up, 1 down; link]: the demand on every link."""
    if isinstance(plan, Plan):
        return plan.loads.reshape(2, -1)
    return np.concatenate((plan.low.loads.reshape(2, -1), plan.high.loads.reshape(2, -1)), axis=1)


def ways(plan: AnyPlan) -> list[Way]:
    """The way of every commodity."""
    columns = (plan.spine, plan.up, plan.down) if isinstance(plan, Plan) else tuple(plan.routes.T)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def with_ways(plan: AnyPlan, fabric: AnyClos, own: list[Way]) -> AnyPlan:
    """A plan for the same commodities with these ways, and the bound of `plan`."""
    if isinstance(plan, Plan):
        assert isinstance(fabric, Clos)
        spine, up, down = np.array(own, dtype=np.int32).reshape(-1, 3).T
        return Plan(fabric, plan.commodities, plan.planner, spine, up, down, plan.bound, plan.why)
    assert isinstance(fabric, PodClos)
    bound = Bound(plan.bound, plan.why)
    return PodPlan.of(fabric, plan.commodities, plan.planner, np.array(own, dtype=np.int32).reshape(-1, 6), bound)


def reversed_way(way: Way) -> Way:
    """The way back over the same links."""
    middle, up, down, *above = way
    return (middle, down, up, *above) if len(above) < 3 else (middle, down, up, above[0], above[2], above[1])


def on_way(fabric: AnyClos, src: int, dst: int, way: Way) -> tuple[int, ...]:
    """The numbers of the links that lead from NIC `src` to NIC `dst`; none within a leaf or without a path."""
    low = leaf_links(fabric)
    middle, up, down, *above = way
    if middle < 0:
        return ()
    near, far = int(low.nic_tor[src]), int(low.nic_tor[dst])
    found = tuple((leaf * low.spines + middle) * low.parallel + link for leaf, link in ((near, up), (far, down)))
    if isinstance(fabric, Clos) or above[0] < 0:
        return found
    core, *ends = above
    high, first = fabric.high, low.link_rate_bps.size
    pods = (int(fabric.leaf_pod[leaf]) for leaf in (near, far))
    return found + tuple(
        first + (((pod * fabric.aggs + middle) * high.spines) + core) * high.parallel + link
        for pod, link in zip(pods, ends, strict=True)
    )


def of_switches(fabric: AnyClos) -> list[list[int]]:
    """The live links of each switch above the leaves that has any: of spines, or of aggs and then of cores."""
    low = leaf_links(fabric)
    live = rates(fabric) > 0
    number = np.arange(live.size)
    below = number[: low.link_rate_bps.size].reshape(low.link_rate_bps.shape)
    if isinstance(fabric, Clos):
        switches = [below[:, spine].ravel() for spine in range(fabric.spines)]
    else:
        above = number[low.link_rate_bps.size :].reshape(fabric.core_rate_bps.shape)
        switches = [
            np.concatenate((below[fabric.leaf_pod == pod, agg].ravel(), above[pod, agg].ravel()))
            for pod in range(fabric.pods)
            for agg in range(fabric.aggs)
        ]
        switches += [above[:, agg, core].ravel() for agg in range(fabric.aggs) for core in range(fabric.cores)]
    return [found for links in switches if (found := links[live[links]].tolist())]


def touched_nics(before: AnyClos, after: AnyClos) -> npt.NDArray[np.bool_]:
    """[NIC]: whether a link of its leaf, or between its pod and cores, has died or come back."""
    low, other = leaf_links(before), leaf_links(after)
    leaves = np.any(low.link_rate_bps != other.link_rate_bps, axis=(1, 2))
    if isinstance(before, PodClos) and isinstance(after, PodClos):
        pods = np.any(before.core_rate_bps != after.core_rate_bps, axis=(1, 2, 3))
        leaves |= pods[before.leaf_pod]
        # Within its pod a leaf's traffic goes down by an agg to a leaf whose links have changed; that is an end of it.
    return np.asarray(leaves[low.nic_tor])
