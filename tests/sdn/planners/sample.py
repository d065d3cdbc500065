# SPDX-License-Identifier: Apache-2.0
"""Random small fabrics and commodities, the optimum by exhaustive search, and the invariants of every plan."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sdn.planners import LOCAL, UNREACHABLE, Clos, Commodities, Plan

RATE = 1e11


@st.composite
def fabrics(
    draw: st.DrawFn,
    *,
    dead_links: int = 0,
    rates: tuple[float, ...] = (RATE,),
    tors: int = 4,
    spines: int = 3,
    parallel: int = 2,
    nics: int = 3,
) -> Clos:
    """A Clos of at most these sizes, each link's rate drawn from `rates`, with at most `dead_links` links dead."""
    shape = draw(st.tuples(st.integers(2, tors), st.integers(1, spines), st.integers(1, parallel)))
    fabric = Clos.of(shape[0], shape[1], draw(st.integers(1, nics)), RATE, parallel=shape[2])
    rate = fabric.link_rate_bps.copy()
    if len(rates) > 1:
        rate[:] = np.reshape(draw(st.lists(st.sampled_from(rates), min_size=rate.size, max_size=rate.size)), shape)
    for link in draw(st.lists(st.tuples(*(st.integers(0, n - 1) for n in shape)), max_size=dead_links)):
        rate[link] = 0
    return Clos(fabric.nic_tor, fabric.nic_rate_bps, rate)


@st.composite
def commodities(
    draw: st.DrawFn, fabric: Clos, *, most: int = 10, demands: tuple[float, ...] = (1.0,), crossing: bool = False
) -> Commodities:
    """Up to `most` commodities with demands from `demands`; with `crossing` all are between different ToRs."""
    pairs = [
        (a, b)
        for a in range(fabric.nics)
        for b in range(fabric.nics)
        if a != b and not (crossing and fabric.nic_tor[a] == fabric.nic_tor[b])
    ]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=most)) if pairs else []
    n = len(chosen)
    return Commodities.of(
        [a for a, _ in chosen],
        [b for _, b in chosen],
        draw(st.lists(st.sampled_from(demands), min_size=n, max_size=n)),
        draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)),
        draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)),
    )


def check_routes(plan: Plan) -> None:
    """Every commodity that can be routed is, over live links between its ToRs; the others are marked as they should."""
    fabric = plan.fabric
    live = fabric.link_rate_bps > 0
    for i in range(len(plan.commodities)):
        src, dst = fabric.nic_tor[plan.commodities.src[i]], fabric.nic_tor[plan.commodities.dst[i]]
        spine, up, down = plan.spine[i], plan.up[i], plan.down[i]
        if src == dst:
            assert (spine, up, down) == (LOCAL, -1, -1)
        elif not (live[src].any(axis=1) & live[dst].any(axis=1)).any():
            assert (spine, up, down) == (UNREACHABLE, -1, -1)
        else:
            assert spine >= 0
            assert up >= 0
            assert down >= 0
            assert live[src, spine, up]
            assert live[dst, spine, down]


def congestion_by_hand(plan: Plan) -> float:
    """The definition, link by link."""
    load: dict[tuple[str, int, int, int], float] = {}
    for i in range(len(plan.commodities)):
        if plan.spine[i] >= 0:
            tors = plan.fabric.nic_tor[plan.commodities.src[i]], plan.fabric.nic_tor[plan.commodities.dst[i]]
            for way, tor, link in (("up", tors[0], plan.up[i]), ("down", tors[1], plan.down[i])):
                key = way, int(tor), int(plan.spine[i]), int(link)
                load[key] = load.get(key, 0.0) + float(plan.commodities.demand[i])
    return max((demand / plan.fabric.link_rate_bps[key[1:]] for key, demand in load.items()), default=0.0)


def least_congestion(fabric: Clos, commodities: Commodities) -> float:
    """The optimum, by trying every path of every commodity and giving up what is no better than the best so far."""
    rate = fabric.link_rate_bps
    src, dst = fabric.nic_tor[commodities.src], fabric.nic_tor[commodities.dst]
    load = np.zeros((2, *rate.shape))
    best = np.inf
    # The largest demands first: what cannot be bettered shows early.
    order = [int(i) for i in np.argsort(-commodities.demand, kind="stable") if src[i] != dst[i]]

    def place(nth: int, worst: float) -> None:
        nonlocal best
        if worst >= best * (1 - 1e-9):
            return
        if nth == len(order):
            best = worst
            return
        i = order[nth]
        demand = commodities.demand[i]
        tried = set()
        anywhere = False
        for spine in range(fabric.spines):
            for up in np.flatnonzero(rate[src[i], spine] > 0):
                for down in np.flatnonzero(rate[dst[i], spine] > 0):
                    anywhere = True
                    a, b = (0, src[i], spine, up), (1, dst[i], spine, down)
                    # Parallel links of one rate and load are alike.
                    alike = spine, load[a], rate[a[1:]], load[b], rate[b[1:]]
                    if alike in tried:
                        continue
                    tried.add(alike)
                    load[a] += demand
                    load[b] += demand
                    place(nth + 1, max(worst, load[a] / rate[a[1:]], load[b] / rate[b[1:]]))
                    load[a] -= demand
                    load[b] -= demand
        if not anywhere:
            place(nth + 1, worst)

    place(0, 0.0)
    return float(best)
