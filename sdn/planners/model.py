# SPDX-License-Identifier: Apache-2.0
"""The data of planners, as arrays: a two-level Clos, commodities, and a plan with its bound.

Everything is a few arrays, so that a fabric of 65,536 NICs is built in a millisecond. `sdn.planners.cabling` makes a
fabric from a `netmodel.Topology`, and converts plans to its paths.

Terms. A *commodity* goes from a source NIC to a destination NIC with a *demand*. Each NIC is connected to one ToR;
every ToR is connected to every spine by `parallel` full-duplex links. The *congestion* of a link is the demand on it
divided by its rate; the congestion of a plan is that of its worst link. Demands are relative weights: with demands of
1, congestion times rate is the number of flows on a link; with demands in bits, congestion is the time in seconds that
the worst link is busy.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sdn.planners.objective import Fairness, fairness
from sdn.planners.rates import max_min_rates

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

LOCAL = -1
"""Stands for the spine of a commodity within one ToR."""
UNREACHABLE = -2
"""Stands for the spine of a commodity whose ToRs no live spine joins. It has rate 0."""

SAME = 1e-9
"""Values whose relative difference is less than this differ by rounding only."""


@dataclass(frozen=True, eq=False)
class Clos:
    """A two-level Clos. Raises ValueError for inconsistent shapes, and for invalid numbers or rates."""

    nic_tor: Ints
    """The ToR of each NIC, from 0."""
    nic_rate_bps: Floats
    """Each NIC's rate, each way, in bit/s. Infinity: NICs are not a limit, as in the analysis of Cohen et al."""
    link_rate_bps: Floats
    """[ToR, spine, parallel link]: the rate each way in bit/s; 0 for a link that is dead or does not exist."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nic_tor", _frozen(self.nic_tor, np.int32, "nic_tor", 1))
        object.__setattr__(self, "nic_rate_bps", _frozen(self.nic_rate_bps, np.float64, "nic_rate_bps", 1))
        object.__setattr__(self, "link_rate_bps", _frozen(self.link_rate_bps, np.float64, "link_rate_bps", 3))
        if min(self.link_rate_bps.shape) < 1:
            raise ValueError(f"a Clos needs ToRs, spines and links, but {self.link_rate_bps.shape} links are given")
        if self.nic_rate_bps.shape != self.nic_tor.shape:
            raise ValueError(f"{self.nic_tor.size} NICs have {self.nic_rate_bps.size} rates; give one for each")
        if self.nic_tor.size and not 0 <= self.nic_tor.min() <= self.nic_tor.max() < self.tors:
            raise ValueError(f"the ToR of a NIC lies outside 0..{self.tors - 1}")
        if not (self.nic_rate_bps > 0).all():
            raise ValueError("the rate of a NIC is not above 0")
        if not ((self.link_rate_bps >= 0) & np.isfinite(self.link_rate_bps)).all():
            raise ValueError("the rate of a link is negative or not finite; a dead link has rate 0")

    @classmethod
    def of(
        cls,
        tors: int,
        spines: int,
        nics_per_tor: int,
        nic_rate_bps: float,
        link_rate_bps: float | None = None,
        parallel: int = 1,
    ) -> "Clos":
        """A regular Clos: NIC j of ToR i is number i * nics_per_tor + j. By default links are as fast as NICs."""
        rate = nic_rate_bps if link_rate_bps is None else link_rate_bps
        if min(tors, spines, nics_per_tor, parallel) < 1:
            raise ValueError("tors, spines, nics_per_tor and parallel must all be at least 1")
        return cls(
            nic_tor=np.repeat(np.arange(tors, dtype=np.int32), nics_per_tor),
            nic_rate_bps=np.full(tors * nics_per_tor, nic_rate_bps, dtype=np.float64),
            link_rate_bps=np.full((tors, spines, parallel), rate, dtype=np.float64),
        )

    @property
    def tors(self) -> int:
        return int(self.link_rate_bps.shape[0])

    @property
    def spines(self) -> int:
        return int(self.link_rate_bps.shape[1])

    @property
    def parallel(self) -> int:
        return int(self.link_rate_bps.shape[2])

    @property
    def nics(self) -> int:
        return self.nic_tor.size

    def without(self, links: Iterable[tuple[int, int, int]] = (), spines: Iterable[int] = ()) -> "Clos":
        """The same fabric with these links, each (ToR, spine, parallel link), and these whole spines dead.

        Raises IndexError for one that does not exist.
        """
        rate = self.link_rate_bps.copy()
        for link in links:
            rate[link] = 0
        for spine in spines:
            rate[:, spine] = 0
        return Clos(self.nic_tor, self.nic_rate_bps, rate)

    @cached_property
    def uniform_links(self) -> tuple[Ints, Ints] | None:
        """Spine and parallel index of every live link of a ToR, if they are the same for all ToRs and equally fast."""
        live = self.link_rate_bps[0] > 0
        rate = self.link_rate_bps[0][live]
        if not rate.size or (rate != rate[0]).any() or (self.link_rate_bps != self.link_rate_bps[0]).any():
            return None
        spine, link = np.nonzero(live)
        return spine.astype(np.int32), link.astype(np.int32)


@dataclass(frozen=True, eq=False)
class Commodities:
    """Commodities as arrays of equal length. Raises ValueError for unequal lengths and for demands not above 0."""

    src: Ints
    """The number of the NIC that sends."""
    dst: Ints
    """The number of the NIC that receives."""
    demand: Floats
    """The relative weight of the commodity: 1, or bytes."""
    job: Ints
    """The number of its training job; any integers."""
    phase: Ints
    """The number of its phase within the job, the third layer of fairness; any integers."""

    def __post_init__(self) -> None:
        for name in ("src", "dst", "job", "phase"):
            object.__setattr__(self, name, _frozen(getattr(self, name), np.int32, name, 1))
        object.__setattr__(self, "demand", _frozen(self.demand, np.float64, "demand", 1))
        if len({a.size for a in (self.src, self.dst, self.demand, self.job, self.phase)}) > 1:
            raise ValueError("src, dst, demand, job and phase of commodities differ in length")
        if len(self) and not 0 < self.demand.min() <= self.demand.max() < np.inf:
            raise ValueError("the demand of a commodity is not above 0, or not finite")

    @classmethod
    def of(
        cls,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        demand: npt.ArrayLike = 1.0,
        job: npt.ArrayLike = 0,
        phase: npt.ArrayLike = 0,
    ) -> "Commodities":
        """From array-likes; scalars for the last three apply to all commodities.

        Raises ValueError for a `src`, `dst`, `job` or `phase` that is not an integer of 32 bits, whatever its type.
        """
        sources = np.atleast_1d(_whole(src, "src"))
        shape = sources.shape
        return cls(
            src=sources,
            dst=np.atleast_1d(_whole(dst, "dst")),
            demand=np.broadcast_to(np.asarray(demand, dtype=np.float64), shape),
            job=np.broadcast_to(_whole(job, "job"), shape),
            phase=np.broadcast_to(_whole(phase, "phase"), shape),
        )

    def __len__(self) -> int:
        return self.src.size

    def take(self, which: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> "Commodities":
        """A selection of the commodities, in the order of `which`."""
        return Commodities(self.src[which], self.dst[which], self.demand[which], self.job[which], self.phase[which])


def tors_of(fabric: Clos, commodities: Commodities) -> tuple[Ints, Ints]:
    """Source and destination ToR of each commodity. Raises ValueError for unknown NICs and for equal ones."""
    for what, nics in (("source", commodities.src), ("destination", commodities.dst)):
        if len(commodities) and not 0 <= nics.min() <= nics.max() < fabric.nics:
            raise ValueError(f"a {what} NIC of a commodity lies outside 0..{fabric.nics - 1}")
    if (commodities.src == commodities.dst).any():
        raise ValueError(f"a commodity joins NIC {commodities.src[commodities.src == commodities.dst][0]} to itself")
    return fabric.nic_tor[commodities.src], fabric.nic_tor[commodities.dst]


@dataclass(frozen=True, eq=False)
class Plan:
    """A path for every commodity: up by link (source ToR, spine, up), down by link (destination ToR, spine, down)."""

    fabric: Clos
    commodities: Commodities
    planner: str
    spine: Ints
    """The spine of each commodity, or LOCAL or UNREACHABLE; `up` and `down` are then -1."""
    up: Ints
    """The parallel link from the source's ToR to the spine."""
    down: Ints
    """The parallel link from the spine to the destination's ToR."""
    bound: float
    """A lower bound of the congestion of all plans for these commodities on this fabric, in demand per bit/s."""
    why: str
    """The argument for `bound`, in words."""

    @cached_property
    def congestion(self) -> float:
        """The demand on the worst ToR-to-spine or spine-to-ToR link, divided by its rate; 0 without load."""
        loads = self.loads
        used = loads > 0
        rates = np.broadcast_to(self.fabric.link_rate_bps, loads.shape)[used]
        with np.errstate(divide="ignore"):
            return float(np.max(loads[used] / rates, initial=0.0))

    @cached_property
    def loads(self) -> Floats:
        """[0 up, 1 down; ToR, spine, parallel link]: the demand on every link."""
        return link_loads(self.fabric, self.commodities, self.spine, self.up, self.down)

    @property
    def gap(self) -> float:
        """The congestion over its lower bound, minus 1: 0 is proved optimal, 0.5 is half as much more."""
        return gap_of(self.congestion, self.bound)

    @property
    def proved(self) -> bool:
        """Whether the congestion is proved optimal."""
        return self.gap == 0.0

    @property
    def statement(self) -> str:
        """The plan's distance from the optimum, in one line for users."""
        return statement_of(self.gap, self.why)

    @cached_property
    def rates(self) -> Floats:
        """The rate of each commodity in bit/s: exact max-min fair shares in proportion to the demands."""
        return self.rates_weighted_by(self.commodities.demand)

    def rates_weighted_by(self, weight: npt.ArrayLike) -> Floats:
        """Max-min fair rates in bit/s with other weights; with 1 the rates of fair congestion control."""
        lost = self.spine == UNREACHABLE
        rates = max_min_rates(*links_of(self), np.broadcast_to(np.asarray(weight, dtype=np.float64), lost.shape))
        rates[lost] = 0.0
        return rates

    @cached_property
    def fairness(self) -> Fairness:
        """The layers of the objective for the predicted rates."""
        return fairness(self.commodities.job, self.commodities.phase, self.rates / self.commodities.demand)


def gap_of(congestion: float, bound: float) -> float:
    """A plan's congestion over its lower bound, minus 1; 0 where they differ by rounding only."""
    if congestion <= bound * (1 + SAME):
        return 0.0
    return congestion / bound - 1 if bound else float("inf")


def statement_of(gap: float, why: str) -> str:
    """A plan's distance from the optimum, in one line for users. `why` is the argument for its bound."""
    return f"within {gap:.1%} of the best conceivable: {why}" if gap else f"optimal: {why}"


def link_loads(fabric: Clos, commodities: Commodities, spine: Ints, up: Ints, down: Ints) -> Floats:
    """[0 up, 1 down; ToR, spine, parallel link]: the demand that these routes put on every link."""
    shape = fabric.link_rate_bps.shape
    cross = spine >= 0
    loads = np.empty((2, *shape))
    for way, (nics, link) in enumerate(((commodities.src, up), (commodities.dst, down))):
        at = (fabric.nic_tor[nics[cross]].astype(np.intp) * shape[1] + spine[cross]) * shape[2] + link[cross]
        loads[way] = np.bincount(at, commodities.demand[cross], minlength=fabric.link_rate_bps.size).reshape(shape)
    return loads


def links_of(plan: Plan) -> tuple[Floats, Ints]:
    """The plan as flows over links, for `max_min_rates`: capacities in bit/s, and four link numbers per commodity.

    The links are NICs out, NICs in, ToRs up and ToRs down, in this order; -1 stands for no link.
    """
    fabric, commodities = plan.fabric, plan.commodities
    tors = fabric.link_rate_bps.ravel()
    capacity = np.concatenate((fabric.nic_rate_bps, fabric.nic_rate_bps, tors, tors))
    links = np.empty((len(commodities), 4), dtype=np.int32)
    links[:, 0] = commodities.src
    links[:, 1] = commodities.dst
    links[:, 1] += fabric.nics
    for column, nics, link in ((2, commodities.src, plan.up), (3, commodities.dst, plan.down)):
        at = links[:, column]
        at[:] = fabric.nic_tor[nics]
        at *= fabric.spines
        at += plan.spine
        at *= fabric.parallel
        at += link
        at += 2 * fabric.nics + (column - 2) * tors.size
    links[plan.spine < 0, 2:] = -1
    return capacity, links


def _whole(values: npt.ArrayLike, name: str) -> Ints:
    """The values as integers of 32 bits. Raises ValueError where that would change one."""
    given = np.asarray(values)
    if given.dtype == np.int32:
        return given
    with np.errstate(invalid="ignore"):  # NaN, reported below
        whole = given.astype(np.int32) if given.dtype.kind in "iuf" else None
    if whole is None or (whole != given).any():
        raise ValueError(f"{name} must hold whole numbers of 32 bits")
    return whole


def _frozen(array: npt.ArrayLike, dtype: npt.DTypeLike, name: str, dimensions: int) -> npt.NDArray[np.generic]:
    """A read-only array, copied unless the argument is one. Raises ValueError."""
    frozen = np.asarray(array, dtype=dtype)
    if frozen.ndim != dimensions:
        raise ValueError(f"{name} must be an array of {dimensions} dimension{'s'[: dimensions > 1]}, not {frozen.ndim}")
    if frozen.flags.writeable or not frozen.flags.c_contiguous:
        frozen = np.array(frozen, order="C")
        frozen.setflags(write=False)
    return frozen
