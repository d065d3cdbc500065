# SPDX-License-Identifier: Apache-2.0
"""The exact planner: bipartite edge colouring, with extensions for links that differ or have failed.

Commodities are edges from sending to receiving ToRs. A colouring in which no vertex has two edges of one colour
gives each commodity an uplink and a downlink of its own; a colour is a spine and one of its parallel links.
König's theorem (Math. Annalen 77, 1916) says that the largest degree of a vertex is enough colours. De Werra's says
that with S colours each vertex of degree d can have each of them ceil(d / S) times at most, which is optimal.
"""

import numpy as np

from sdn import _native
from sdn.planners.bounds import CUT_OFF, NOTHING, Bound, congestion_bound, joined
from sdn.planners.grouping import groups
from sdn.planners.model import LOCAL, UNREACHABLE, Clos, Commodities, Floats, Ints, Plan, tors_of
from sdn.planners.restricted import restricted
from sdn.planners.weighted import weighted


def optimal(fabric: Clos, commodities: Commodities, *, order: Ints | None = None, threads: int = 1) -> Plan:
    """A plan of least congestion: exact, or with a bound of its distance from the optimum.

    *Equal demands, every spine alive or dead as a whole, live links equally fast, parallel or not:* exact for all ToRs
    at once. In practice linear in the commodities; at worst O(commodities * ToRs * flows per link).

    *Equal demands, single links dead or links of several rates:* see `restricted`. Exact where the uneven links all
    belong to one spine or, with equal rates, to one ToR; otherwise proved by the bound or given with a gap.

    *Unequal demands:* see `weighted`. NP-hard; a bound and a gap.

    Each connected component is planned by itself (Cohen et al., section 3.4.3), so demands need to be equal only within
    it; `threads` threads do the colouring. When a ToR has more commodities than links, those late in `order` share
    first, as far as chains allow. The result depends on the arguments alone. Raises ValueError for an `order` that is
    no permutation of the commodities.
    """
    src, dst = tors_of(fabric, commodities)
    if fabric.uniform_links is not None and len(commodities) and commodities.demand.min() == commodities.demand.max():
        spine_of, link_of = fabric.uniform_links
        colour = _native.colour(fabric.tors, src, dst, spine_of.size, order, threads)
        # Colour -1, of commodities within a ToR, selects the entry appended.
        spine = np.append(spine_of, np.int32(LOCAL))[colour]
        link = np.append(link_of, np.int32(-1))[colour]
        bound = congestion_bound(fabric, commodities)
        return Plan(fabric, commodities, "optimal", spine, link, link, bound.congestion, bound.why)
    cross = src != dst
    reached = cross & joined(fabric, src, dst)
    spine = np.where(cross & ~reached, UNREACHABLE, LOCAL).astype(np.int32)
    up, down = np.full_like(spine, -1), np.full_like(spine, -1)
    bound = CUT_OFF if cross.any() else NOTHING
    sequence = np.arange(len(commodities), dtype=np.int32) if order is None else _permutation(order, len(commodities))
    sequence = sequence[reached[sequence]]
    component = _native.components(fabric.tors, src[sequence], dst[sequence])
    for group in groups(component):
        members = sequence[group]
        planned = _component(fabric, src[members], dst[members], commodities.demand[members])
        spine[members], up[members], down[members], mine = planned
        bound = max(bound, mine, key=lambda b: b.congestion)
    return Plan(fabric, commodities, "optimal", spine, up, down, bound.congestion, bound.why)


def _permutation(order: Ints, commodities: int) -> Ints:
    """`order` if it holds each commodity once. Raises ValueError with the messages of `_native`."""
    if order.shape != (commodities,):
        raise ValueError("order is not as long as the commodities")
    if (np.sort(order) != np.arange(commodities)).any():
        raise ValueError("order must hold each commodity once")
    return order


def _component(fabric: Clos, src: Ints, dst: Ints, demand: Floats) -> tuple[Ints, Ints, Ints, Bound]:
    if demand.min() == demand.max():
        return restricted(fabric, src, dst, float(demand[0]))
    return weighted(fabric, src, dst, demand)
