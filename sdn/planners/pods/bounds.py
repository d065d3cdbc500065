# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of congestion on three tiers.

Every plan puts the same demand on the links between leaves and aggs as some plan of two tiers would, in which agg a of
all pods is one spine; and the same on the links to cores as some plan in which a pod is one ToR. So a bound for either
fabric of two tiers holds.
"""

import numpy as np

from sdn.planners.bounds import CUT_OFF, NOTHING, Bound, congestion_bound
from sdn.planners.grouping import Mask
from sdn.planners.model import Clos, Commodities, Floats, Ints
from sdn.planners.pods.model import PodClos

AGGS = "leaves as ToRs and aggs as spines"
CORES = "pods as ToRs and cores as spines"
LEADING = "leaves as ToRs and those aggs as spines that lead to a core"


def pod_bound(fabric: PodClos, commodities: Commodities, src: Ints, dst: Ints, reached: Mask) -> Bound:
    """The highest of the cheap bounds, for the commodities that are `reached`, from leaf `src` to leaf `dst`."""
    if not reached.any():
        return CUT_OFF if (src != dst).any() else NOTHING
    asked = commodities if reached.all() else commodities.take(reached)
    bounds = [said(congestion_bound(fabric.low, asked), AGGS)]
    src, dst = (fabric.leaf_pod[leaves[reached]] for leaves in (src, dst))
    across = src != dst
    if across.any():
        between = Commodities(src[across], dst[across], asked.demand[across], asked.job[across], asked.phase[across])
        bounds.append(said(congestion_bound(fabric.between_pods, between), CORES))
        rate = _towards_cores(fabric)
        if rate is not None:
            leaving = Clos(fabric.nic_tor, fabric.low.nic_rate_bps, rate)
            bounds.append(said(congestion_bound(leaving, asked.take(across)), LEADING))
    return max(bounds, key=lambda bound: bound.congestion)


def _towards_cores(fabric: PodClos) -> Floats | None:
    """The rates between leaves and aggs without those aggs that have no live link to a core; None if all have one."""
    leads = np.asarray((fabric.core_rate_bps > 0).any(axis=(2, 3)))
    if leads.all():
        return None
    return np.where(leads[fabric.leaf_pod][:, :, None], fabric.low.link_rate_bps, 0.0)


def said(bound: Bound, how: str) -> Bound:
    """A bound for two tiers, as one for three of which these are two."""
    return Bound(bound.congestion, f"{bound.why} (with {how})")
