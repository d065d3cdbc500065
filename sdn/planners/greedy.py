# SPDX-License-Identifier: Apache-2.0
"""Greedy: each commodity in turn takes the path that is least congested so far (Cohen et al., section 3.4.1)."""

from sdn import _native
from sdn.planners.bounds import congestion_bound
from sdn.planners.model import Clos, Commodities, Ints, Plan, tors_of


def greedy(fabric: Clos, commodities: Commodities, *, order: Ints | None = None, threads: int = 1) -> Plan:
    """Puts each commodity on the path whose worse link is least congested with it; the first of equal ones.

    With equal demands on a full Clos of equal links, no link carries more than twice as many commodities as in the best
    plan (theorem 2 of the paper), and the slowest has at least half the rate (theorem 1); both are tight. `order` lists
    the commodities in the order in which they choose, for example by `sdn.planners.order`; by default in given order.
    Connected components are planned by `threads` threads (section 3.4.3), with the same result.
    O(commodities * spines * parallel links).
    """
    src, dst = tors_of(fabric, commodities)
    spine, up, down = _native.greedy(fabric.link_rate_bps, src, dst, commodities.demand, order, threads)
    bound = congestion_bound(fabric, commodities)
    return Plan(fabric, commodities, "greedy", spine, up, down, bound.congestion, bound.why)
