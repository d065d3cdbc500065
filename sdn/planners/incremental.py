# SPDX-License-Identifier: Apache-2.0
"""`optimal`, kept up while commodities arrive and depart: a change reroutes few others, and no more than allowed.

With equal demands and links of one rate, the colouring of `sdn.planners.optimal` is kept balanced at every ToR: each
link of a ToR that sends d commodities over S links carries floor(d / S) or ceil(d / S). Then an arrival needs one
alternating chain at most, a departure two. Without single dead links the congestion is optimal after each change. With
one commodity per link an arrival moves at most ToRs - 1 others (M. Paull, "Reswitching of connection networks", BSTJ
41, 1962).

Unequal demands, or links of several rates, are handled by single moves, and the plan has a bound of its distance from
the optimum.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from sdn import _native
from sdn.planners.bounds import congestion_bound
from sdn.planners.grouping import Index
from sdn.planners.model import LOCAL, SAME, UNREACHABLE, Clos, Commodities, Floats, Ints, Plan, tors_of
from sdn.planners.optimal import optimal

_TRIES = 4  # chains tried for a change; the shortest one is used
_Way: TypeAlias = tuple[int, int, int]  # spine, up and down
_Moved: TypeAlias = tuple[int, int, int, int]  # the number of a route, and its new way
_Item: TypeAlias = tuple[int, int, float, int, int, int | None]
"""Source, destination, demand, job, phase, and its number in the state; None within a ToR or without a path."""
_EFFORT = 2_000  # paths examined per change when chains do not apply


class Route(NamedTuple):
    """The links that one commodity takes."""

    commodity: int
    spine: int
    """The spine, or LOCAL or UNREACHABLE, with which `up` and `down` are -1."""
    up: int
    down: int


class Incremental:
    """Commodities on a fabric, each with a number that is never reused.

    `max_reroutes` limits how many others an arrival or departure may reroute; None: as many as the optimum needs. When
    the limit is too low for a change, congestion stays above the optimum, as `plan().gap` shows, until later changes
    correct it. Not for several threads at once.
    """

    def __init__(
        self, fabric: Clos, commodities: Commodities | None = None, *, max_reroutes: int | None = None
    ) -> None:
        """Starts from the optimal plan for `commodities`, numbered from 0, or without any."""
        self.max_reroutes = max_reroutes
        self._next = 0
        start = Commodities.of((), ()) if commodities is None else commodities
        self._load(optimal(fabric, start), range(len(start)))

    @classmethod
    def of(cls, plan: Plan, *, max_reroutes: int | None = None) -> "Incremental":
        """Starts from any plan; its commodities are numbered from 0."""
        made = cls(plan.fabric, max_reroutes=max_reroutes)
        made._load(plan, range(len(plan.commodities)))
        return made

    @property
    def fabric(self) -> Clos:
        return self._fabric

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, commodity: object) -> bool:
        return commodity in self._items

    def arrive(
        self, src: int, dst: int, demand: float = 1.0, job: int = 0, phase: int = 0
    ) -> tuple[Route, tuple[Route, ...]]:
        """Adds a commodity from NIC `src` to NIC `dst`: its route, and the new routes of others that made room.

        Raises ValueError for arguments that `Commodities` refuses.
        """
        tor = self._tor
        if not (0 <= src < len(tor) and 0 <= dst < len(tor)) or src == dst:
            raise ValueError(f"a commodity needs two different NICs of 0..{self._fabric.nics - 1}, not {src} and {dst}")
        if demand not in self._demands:
            self._begin_demand(demand)
        self._demands[demand] += 1
        commodity = self._next
        self._next += 1
        here, there = tor[src], tor[dst]
        placed = None if here == there else self._state.arrive(here, there, demand, self.max_reroutes)
        if placed is None:
            self._items[commodity] = src, dst, demand, job, phase, None
            return Route(commodity, LOCAL if here == there else UNREACHABLE, -1, -1), ()
        edge, (spine, up, down), moved = placed
        self._items[commodity] = src, dst, demand, job, phase, edge
        self._owner[edge] = commodity
        return Route(commodity, spine, up, down), self._of_owners(moved) if moved else ()

    def depart(self, commodity: int) -> tuple[Route, ...]:
        """Removes a commodity. Returns the routes of others that changed. Raises KeyError for an unknown commodity."""
        try:
            _, _, demand, _, _, edge = self._items.pop(commodity)
        except KeyError:
            raise KeyError(f"there is no commodity {commodity}") from None
        self._demands[demand] -= 1
        if not self._demands[demand]:
            del self._demands[demand]
        if edge is None:
            return ()
        moved = self._state.depart(edge, self.max_reroutes)
        return self._of_owners(moved) if moved else ()

    def put(self, commodity: int, spine: int, up: int, down: int) -> None:
        """Moves a commodity that has a path to these live links, whatever that does to the congestion.

        Raises KeyError for an unknown commodity, ValueError for one without a path.
        """
        src, dst, demand, *_, edge = self._items[commodity]
        if edge is None:
            raise ValueError(f"commodity {commodity} has no path")
        self._state.depart(edge, 0)
        numbers = (self._tor[src], self._tor[dst], spine, up, down)
        near, far, *way = (np.array([number], dtype=np.int32) for number in numbers)
        (placed,) = self._state.load(near, far, np.array([demand]), *way).tolist()
        self._items[commodity] = (*self._items[commodity][:5], placed)
        self._owner[placed] = commodity

    def route(self, commodity: int) -> Route:
        """The route of a commodity. Raises KeyError for an unknown commodity."""
        src, dst, _, _, _, edge = self._items[commodity]
        if edge is not None:
            return Route(commodity, *self._state.route(edge))
        local = self._tor[src] == self._tor[dst]
        return Route(commodity, LOCAL if local else UNREACHABLE, -1, -1)

    def refit(self, fabric: Clos) -> tuple[Route, ...]:
        """Changes to the same fabric with other links dead. Returns the routes that changed. See `repair`."""
        numbers = self.numbers()
        before = self.plan()
        after = repair(before, fabric, max_reroutes=self.max_reroutes)
        self._load(after, numbers)
        changed = (before.spine != after.spine) | (before.up != after.up) | (before.down != after.down)
        return tuple(self.route(numbers[i]) for i in np.flatnonzero(changed))

    def copied(self) -> "Incremental":
        """A plan of its own, with the same commodities on the same routes."""
        made = copy(self)
        made._state, made._items = self._state.copied(), dict(self._items)
        made._demands, made._owner = dict(self._demands), dict(self._owner)
        return made

    def numbers(self) -> list[int]:
        """The commodities' numbers, in the order of `plan()`."""
        return list(self._items)

    def plan(self) -> Plan:
        """The present routes, with their bound."""
        columns = list(zip(*self._items.values(), strict=True)) or [()] * 6
        commodities = Commodities.of(*columns[:5])
        src, dst = tors_of(self._fabric, commodities)
        spine = np.where(src == dst, LOCAL, UNREACHABLE).astype(np.int32)
        up, down = np.full_like(spine, -1), np.full_like(spine, -1)
        edges = np.array([-1 if edge is None else edge for edge in columns[5]], dtype=np.int32)
        placed = np.flatnonzero(edges >= 0)
        spine[placed], up[placed], down[placed] = self._state.routes(edges[placed])
        bound = congestion_bound(self._fabric, commodities)
        return Plan(self._fabric, commodities, "optimal", spine, up, down, bound.congestion, bound.why)

    def _load(self, plan: Plan, numbers: Iterable[int]) -> None:
        """Takes over a plan's fabric, commodities and routes."""
        self._fabric = plan.fabric
        self._tor: list[int] = plan.fabric.nic_tor.tolist()
        c = plan.commodities
        columns = (c.src.tolist(), c.dst.tolist(), c.demand.tolist(), c.job.tolist(), c.phase.tolist())
        self._items: dict[int, _Item] = {
            n: (*row, None) for n, row in zip(numbers, zip(*columns, strict=True), strict=True)
        }
        self._next = max(self._next, max(self._items, default=-1) + 1)
        demands, counts = np.unique(c.demand, return_counts=True)
        self._demands: dict[float, int] = dict(zip(demands.tolist(), counts.tolist(), strict=True))
        chains = demands.size <= 1 and _one_rate(plan.fabric)
        self._take_over(_Chains(plan.fabric) if chains else _Moves(plan.fabric), plan)

    def _begin_demand(self, demand: float) -> None:
        """Prepares for the first commodity of this demand."""
        if not 0 < demand < float("inf"):
            raise ValueError(f"the demand {demand} is not above 0, or not finite")
        self._demands[demand] = 0
        if len(self._demands) > 1 and isinstance(self._state, _Chains):
            self._take_over(_Moves(self._fabric), self.plan())

    def _take_over(self, state: "_State", plan: Plan) -> None:
        src, dst = tors_of(plan.fabric, plan.commodities)
        placed = np.flatnonzero(plan.spine >= 0)
        edges = _loaded(state, plan, src, dst, placed)
        self._state = state
        self._owner: dict[int, int] = {}  # by edge; entries of removed edges stay until their number is reused
        numbers = list(self._items)
        for i, edge in zip(placed.tolist(), edges.tolist(), strict=True):
            number = numbers[i]
            self._items[number] = (*self._items[number][:5], edge)
            self._owner[edge] = number

    def _of_owners(self, moved: Sequence[_Moved]) -> tuple[Route, ...]:
        return tuple(Route(self._owner[edge], *way) for edge, *way in moved)


def repair(plan: Plan, fabric: Clos, *, max_reroutes: int | None = None) -> Plan:
    """A plan for the same commodities on the same fabric with other links dead, with few routes changed.

    Routes whose links are alive are kept. Each other commodity gets a new route, which may move `max_reroutes` others;
    then ToRs are balanced, with as many moves for all. If the result is not proved optimal and reroutes are not
    limited, `optimal` plans from scratch, and its plan is used if it is better. Raises ValueError when the fabrics
    differ in shape.
    """
    if fabric.link_rate_bps.shape != plan.fabric.link_rate_bps.shape or fabric.nics != plan.fabric.nics:
        raise ValueError("a plan can only be repaired for the same fabric with other links dead")
    commodities = plan.commodities
    src, dst = tors_of(fabric, commodities)
    alive = plan.spine >= 0
    for tors, link in ((src, plan.up), (dst, plan.down)):
        alive[alive] &= fabric.link_rate_bps[tors[alive], plan.spine[alive], link[alive]] > 0
    chains = _one_rate(fabric) and len(np.unique(commodities.demand)) <= 1
    state: _State = _Chains(fabric) if chains else _Moves(fabric)
    edges = np.full(len(commodities), -1, dtype=np.int32)
    edges[alive] = _loaded(state, plan, src, dst, np.flatnonzero(alive))
    spine = np.where(src == dst, LOCAL, UNREACHABLE).astype(np.int32)
    for i in np.flatnonzero((src != dst) & ~alive):
        edge = state.insert(int(src[i]), int(dst[i]), float(commodities.demand[i]), max_reroutes)
        edges[i] = -1 if edge is None else edge
    state.even_out(max_reroutes)
    up, down = np.full_like(spine, -1), np.full_like(spine, -1)
    known = np.flatnonzero(edges >= 0)
    spine[known], up[known], down[known] = state.routes(edges[known])
    bound = congestion_bound(fabric, commodities)
    mended = Plan(fabric, commodities, plan.planner, spine, up, down, bound.congestion, bound.why)
    if mended.proved or max_reroutes is not None:
        return mended
    afresh = optimal(fabric, commodities)
    if afresh.congestion < mended.congestion * (1 - SAME):
        return afresh
    # The bound of the new plan holds for this one too.
    return Plan(fabric, commodities, plan.planner, spine, up, down, afresh.bound, afresh.why)


def _loaded(state: "_State", plan: Plan, src: Ints, dst: Ints, which: Index) -> Ints:
    """Loads some of a plan's routes into a state. Returns their numbers there."""
    demand, spine, up, down = plan.commodities.demand, plan.spine, plan.up, plan.down
    return state.load(src[which], dst[which], demand[which], spine[which], up[which], down[which])


def _one_rate(fabric: Clos) -> bool:
    live = fabric.link_rate_bps[fabric.link_rate_bps > 0]
    return bool(live.size and (live == live[0]).all())


class _State(Protocol):
    """Routes between ToRs; the state numbers them."""

    def load(self, src: Ints, dst: Ints, demand: Floats, spine: Ints, up: Ints, down: Ints) -> Ints:
        """Adds routes whose links are alive. Returns their numbers."""
        ...

    def insert(self, src: int, dst: int, demand: float, max_moves: int | None) -> int | None:
        """Adds a route between two ToRs. Returns its number, or None when no spine joins them."""
        ...

    def even_out(self, max_moves: int | None) -> None:
        """Balances ToRs after a change; the moves of both together are at most `max_moves`."""
        ...

    def arrive(
        self, src: int, dst: int, demand: float, max_moves: int | None
    ) -> tuple[int, _Way, Sequence[_Moved]] | None:
        """`insert` and `even_out`: the number, its way, and the routes that were moved."""
        ...

    def depart(self, edge: int, max_moves: int | None) -> Sequence[_Moved]:
        """Removes a route and balances its ToRs. Returns the routes that were moved."""
        ...

    def route(self, edge: int) -> _Way: ...

    def routes(self, edges: Ints) -> tuple[Ints, Ints, Ints]: ...

    def copied(self) -> Self:
        """A state of its own, with the same routes by the same numbers."""
        ...


class _Chains:
    """The state for equal demands on links of one rate: an edge colouring.

    A colour is a spine and the rank of a link among the live ones between the spine and a ToR; a ToR with fewer live
    links lacks the last ranks.
    """

    def __init__(self, fabric: Clos) -> None:
        live = fabric.link_rate_bps > 0
        self._link_at = np.argsort(~live, axis=2, kind="stable").astype(np.int32)
        ranked = np.take_along_axis(live, self._link_at, axis=2)
        self._spine_of, self._rank_of = np.nonzero(ranked.any(axis=0))
        self._colour_at = np.full(live.shape, -1, dtype=np.int32)  # [ToR, spine, link]
        tors = np.arange(fabric.tors)[:, None]
        links = self._link_at[tors, self._spine_of, self._rank_of]
        self._colour_at[tors, self._spine_of, links] = np.arange(self._spine_of.size)
        self._links = links  # [ToR, colour]
        self._decoder: tuple[list[int], list[list[int]]] = (self._spine_of.tolist(), links.tolist())
        self._colouring = _native.Colouring(fabric.tors, self._spine_of.size)
        for tor, colour in np.argwhere(~ranked[:, self._spine_of, self._rank_of]):
            for way in (0, 1):
                self._colouring.forbid(way, int(tor), int(colour))

    def load(self, src: Ints, dst: Ints, demand: Floats, spine: Ints, up: Ints, down: Ints) -> Ints:
        return self._colouring.insert_coloured(
            src, dst, self._colour_at[src, spine, up], self._colour_at[dst, spine, down]
        )

    def insert(self, src: int, dst: int, demand: float, max_moves: int | None) -> int | None:
        edge = self._colouring.insert(src, dst, max_moves, _TRIES)
        return None if edge < 0 else edge

    def even_out(self, max_moves: int | None) -> None:
        self._colouring.even_out(max_moves)

    def arrive(
        self, src: int, dst: int, demand: float, max_moves: int | None
    ) -> tuple[int, _Way, Sequence[_Moved]] | None:
        edge, out, into, moved = self._colouring.arrive(src, dst, max_moves, _TRIES)
        if edge < 0:
            return None
        spine_of, links = self._decoder
        return edge, (spine_of[out], links[src][out], links[dst][into]), self._ways(moved) if moved else ()

    def depart(self, edge: int, max_moves: int | None) -> Sequence[_Moved]:
        moved = self._colouring.depart(edge, max_moves)
        return self._ways(moved) if moved else ()

    def route(self, edge: int) -> _Way:
        return self._decoded(edge, *self._colouring.colours(edge))

    def routes(self, edges: Ints) -> tuple[Ints, Ints, Ints]:
        out, into = self._colouring.colours_of(edges)
        src, dst = self._colouring.tors_of(edges)
        return self._spine_of[out].astype(np.int32), self._links[src, out], self._links[dst, into]

    def copied(self) -> Self:
        made = copy(self)
        made._colouring = self._colouring.copied()
        return made

    def _ways(self, moved: Sequence[tuple[int, int, int]]) -> Sequence[_Moved]:
        return [(edge, *self._decoded(edge, out, into)) for edge, out, into in moved]

    def _decoded(self, edge: int, out: int, into: int) -> _Way:
        src, dst = self._colouring.tors(edge)
        spine_of, links = self._decoder
        return spine_of[out], links[src][out], links[dst][into]


class _Moves:
    """The state for any demands and links: the least congested path, and single moves off the worst link."""

    def __init__(self, fabric: Clos) -> None:
        self._routing = _native.Routing(fabric.link_rate_bps)
        rate = fabric.link_rate_bps.sum(axis=(1, 2))
        self._least_per_unit = np.divide(1.0, rate, out=np.zeros_like(rate), where=rate > 0)
        self._carried = np.zeros((2, fabric.tors))

    def load(self, src: Ints, dst: Ints, demand: Floats, spine: Ints, up: Ints, down: Ints) -> Ints:
        for way, tors in enumerate((src, dst)):
            self._carried[way] += np.bincount(tors, demand, minlength=self._least_per_unit.size)
        return self._routing.insert_all(src, dst, demand, spine, up, down)

    def insert(self, src: int, dst: int, demand: float, max_moves: int | None) -> int | None:
        edge = self._routing.insert(src, dst, demand)
        if self._routing.route(edge)[0] < 0:
            self._routing.remove(edge)
            return None
        self._carried[0, src] += demand
        self._carried[1, dst] += demand
        return edge

    def arrive(
        self, src: int, dst: int, demand: float, max_moves: int | None
    ) -> tuple[int, _Way, Sequence[_Moved]] | None:
        edge = self.insert(src, dst, demand, max_moves)
        if edge is None:
            return None
        if max_moves != 0:
            self.even_out(max_moves)
        return edge, self._routing.route(edge), [moved for moved in self._routing.moved() if moved[0] != edge]

    def depart(self, edge: int, max_moves: int | None) -> Sequence[_Moved]:
        src, dst = self._routing.tors(edge)
        demand = self._routing.demand(edge)
        self._routing.remove(edge)
        self._carried[0, src] -= demand
        self._carried[1, dst] -= demand
        if max_moves != 0:
            self.even_out(max_moves)
        return self._routing.moved()

    def even_out(self, max_moves: int | None) -> None:
        target = float((self._carried * self._least_per_unit).max())
        self._routing.improve(target, max_moves, _EFFORT)

    def route(self, edge: int) -> _Way:
        return self._routing.route(edge)

    def routes(self, edges: Ints) -> tuple[Ints, Ints, Ints]:
        return self._routing.routes(edges)

    def copied(self) -> Self:
        made = copy(self)
        made._routing, made._carried = self._routing.copied(), self._carried.copy()
        return made
