# SPDX-License-Identifier: Apache-2.0
"""Unequal demands: a start with a guarantee, improved by moves, and a bound.

Already between one pair of ToRs the best plan is NP-hard to find: it is the partition problem. Two starts are made and
the less congested one is kept. Greedy, the largest demand first. And colouring by layers: at each ToR, the S largest
demands form the first layer, S being its links, the next S the second, and so on; a colouring gives no link two of one
layer, so no link carries more than W / S + w, W being all that the ToR sends or takes and w its largest demand. As no
plan does better than W / S or than w, that is at most twice the optimum (on even spines with links of one rate).

Then the worst link is relieved, again and again: a commodity moves off it, pushing up to two others out of its way,
such that no link touched reaches the congestion that was. It ends at the bound, at a local optimum, or when a set
number of paths has been looked at, so that the answer does not depend on the clock.
"""

import numpy as np

from sdn import _planners
from sdn.planners.bounds import Bound, unequal_demands
from sdn.planners.grouping import occurrences
from sdn.planners.model import Clos, Floats, Ints

_EFFORT = 5_000_000  # paths looked at: about 0.2 s


def weighted(fabric: Clos, src: Ints, dst: Ints, demand: Floats) -> tuple[Ints, Ints, Ints, Bound]:
    """Spine, up, down and a bound for commodities each between two ToRs that some spine joins."""
    bound = unequal_demands(fabric, src, dst, demand)
    descending = np.argsort(-demand, kind="stable").astype(np.int32)
    best: _planners.Routing | None = None
    starts = [_planners.greedy(fabric.link_rate_bps, src, dst, demand, descending)]
    if fabric.uniform_links is not None:
        starts.append(_by_layers(fabric, src, dst, descending))
    for start in starts:
        routing = _planners.Routing(fabric.link_rate_bps)
        routing.insert_all(src, dst, demand, *start)
        if best is None or routing.congestion() < best.congestion():
            best = routing
    assert best is not None
    best.improve(bound.congestion, effort=_EFFORT)
    # A new Routing numbers commodities as they come.
    return *best.routes(np.arange(len(src), dtype=np.int32)), bound


def _by_layers(fabric: Clos, src: Ints, dst: Ints, descending: Ints) -> tuple[Ints, Ints, Ints]:
    assert fabric.uniform_links is not None
    spine_of, link_of = fabric.uniform_links
    links = spine_of.size
    layered = [_layered(tors[descending], links) for tors in (src, dst)]
    vertices = int(max(layer.max() for layer in layered)) + 1
    # Vertices of the two sides may bear equal numbers without being one ToR; apart, no edge looks like a local one.
    colour = np.empty(len(src), dtype=np.int32)
    colour[descending] = _planners.colour(2 * vertices, layered[0], layered[1] + np.int32(vertices), links)
    return spine_of[colour], link_of[colour], link_of[colour]


def _layered(tors: Ints, links: int) -> Ints:
    """A vertex for each layer of each ToR: its commodities, in the order given, `links` at a time."""
    keys = tors.astype(np.int64) * len(tors) + occurrences(tors) // links
    vertices: Ints = np.unique(keys, return_inverse=True)[1].astype(np.int32)
    return vertices
