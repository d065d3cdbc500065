# SPDX-License-Identifier: Apache-2.0
"""Simulated annealing, as Hedera schedules flows (M. Al-Fares et al., NSDI 2010, section 4.3)."""

import numpy as np

from sdn import _native
from sdn.planners.bounds import congestion_bound
from sdn.planners.model import Clos, Commodities, Plan, tors_of


def annealing(
    fabric: Clos,
    commodities: Commodities,
    *,
    seed: int = 0,
    hot: float = 1000.0,
    cold: float = 0.1,
    cooling: float = 0.99,
    steps_per_temperature: int = 1,
) -> Plan:
    """Gives each destination NIC one link to the spines, and improves that by random swaps.

    As in Hedera, destinations instead of flows are assigned, a step swaps two of them, often of one ToR, and the energy
    is the demand beyond the capacity of links. Here the capacity of a link is its load at the lower bound of
    congestion, so energy 0 is an optimum and ends the search. Temperatures fall from `hot` to `cold` (in commodities
    beyond capacity) by the factor `cooling`. The schedule, with one step per temperature, is that of the code released
    with Cohen et al. The plan is the best state seen. The same `seed` gives the same plan.
    """
    src, dst = tors_of(fabric, commodities)
    bound = congestion_bound(fabric, commodities)
    alive_at = (fabric.link_rate_bps > 0).reshape(fabric.tors, -1).sum(axis=0)
    everywhere = np.flatnonzero(alive_at == alive_at.max()).astype(np.int32)
    spine, up, down = _native.anneal(
        fabric.link_rate_bps,
        src,
        dst,
        commodities.demand,
        dst_nic=commodities.dst,
        slots=everywhere,
        capacity=bound.congestion,
        unit=float(commodities.demand.mean()) if len(commodities) else 1.0,
        hot=hot,
        cold=cold,
        cooling=cooling,
        steps_per_temperature=steps_per_temperature,
        seed=seed,
    )
    return Plan(fabric, commodities, "annealing", spine, up, down, bound.congestion, bound.why)
