# SPDX-License-Identifier: Apache-2.0
"""Unequal demands: a start with a guarantee, improved by moves, and a bound.

Even between one pair of ToRs the optimum is NP-hard: it is the partition problem. Two starts are computed, and the less
congested one is used. The first is greedy, the largest demand first. The second is colouring by layers. At each ToR
with S links, the S largest demands form the first layer, the next S the second, and so on. A colouring gives no link
two demands of one layer, so no link carries more than W / S + w, where W is the ToR's total demand and w its largest
one. No plan is better than W / S or than w, so this is at most twice the optimum (on even spines with links of one
rate).

Then the worst link is relieved repeatedly: a commodity moves off it, and may displace up to two others, such that no
link concerned reaches the previous congestion. This ends at the bound, at a local optimum, or after a fixed number of
paths, so that the result does not depend on the clock.
"""

import numpy as np

from sdn import _native
from sdn.planners.bounds import Bound, unequal_demands
from sdn.planners.grouping import occurrences
from sdn.planners.model import Clos, Floats, Ints

_EFFORT = 5_000_000  # paths examined: about 0.2 s


def weighted(fabric: Clos, src: Ints, dst: Ints, demand: Floats) -> tuple[Ints, Ints, Ints, Bound]:
    """Spine, up, down and a bound, for commodities each between two ToRs that some spine joins."""
    bound = unequal_demands(fabric, src, dst, demand)
    descending = np.argsort(-demand, kind="stable").astype(np.int32)
    best: _native.Routing | None = None
    starts = [_native.greedy(fabric.link_rate_bps, src, dst, demand, descending)]
    if fabric.uniform_links is not None:
        starts.append(_by_layers(fabric, src, dst, descending))
    for start in starts:
        routing = _native.Routing(fabric.link_rate_bps)
        routing.insert_all(src, dst, demand, *start)
        if best is None or routing.congestion() < best.congestion():
            best = routing
    assert best is not None
    best.improve(bound.congestion, effort=_EFFORT)
    # A new Routing numbers commodities in order of arrival.
    return *best.routes(np.arange(len(src), dtype=np.int32)), bound


def _by_layers(fabric: Clos, src: Ints, dst: Ints, descending: Ints) -> tuple[Ints, Ints, Ints]:
    assert fabric.uniform_links is not None
    spine_of, link_of = fabric.uniform_links
    links = spine_of.size
    layered = [_layered(tors[descending], links) for tors in (src, dst)]
    vertices = int(max(layer.max() for layer in layered)) + 1
    # Vertices of both sides may have equal numbers; an offset prevents an edge from looking local.
    colour = np.empty(len(src), dtype=np.int32)
    colour[descending] = _native.colour(2 * vertices, layered[0], layered[1] + np.int32(vertices), links)
    return spine_of[colour], link_of[colour], link_of[colour]


def _layered(tors: Ints, links: int) -> Ints:
    """The vertex of each commodity: one per layer of a ToR, `links` commodities each, in the order given."""
    keys = tors.astype(np.int64) * len(tors) + occurrences(tors) // links
    vertices: Ints = np.unique(keys, return_inverse=True)[1].astype(np.int32)
    return vertices
