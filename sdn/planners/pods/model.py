# SPDX-License-Identifier: Apache-2.0
"""The data of planners for three tiers: a Clos of pods, and a plan on it.

Terms, beside those of `sdn.planners.model`. A ToR is a *leaf* here. A *pod* has leaves and *aggs*, every leaf linked to
every agg of its pod. Agg a of every pod is linked to the same *cores*, those of group a. Aggs are numbered within their
pod, cores within their group.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sdn.planners.bounds import Bound
from sdn.planners.grouping import Index, Mask
from sdn.planners.model import UNREACHABLE, Clos, Commodities, Floats, Ints, Plan, gap_of, links_of, statement_of
from sdn.planners.objective import Fairness, fairness
from sdn.planners.rates import max_min_rates


@dataclass(frozen=True, eq=False)
class PodClos:
    """A Clos of three tiers. Raises ValueError for inconsistent shapes and invalid numbers."""

    low: Clos
    """NICs, leaves and aggs: ToRs are all leaves, and spine a of a leaf is agg a of its pod."""
    leaf_pod: Ints
    """The pod of each leaf, from 0."""
    core_rate_bps: Floats
    """[pod, agg, core, parallel link]: the rate each way in bit/s; 0 for a link that is dead or does not exist."""

    def __post_init__(self) -> None:
        if self.leaf_pod.shape != (self.low.tors,):
            raise ValueError(f"{self.low.tors} leaves have {self.leaf_pod.size} pods; give one for each")
        if self.core_rate_bps.ndim != 4 or self.core_rate_bps.shape[1] != self.low.spines:
            raise ValueError(f"core_rate_bps must have dimensions for pods, {self.low.spines} aggs, cores and links")
        if self.leaf_pod.size and not 0 <= self.leaf_pod.min() <= self.leaf_pod.max() < self.pods:
            raise ValueError(f"the pod of a leaf lies outside 0..{self.pods - 1}")

    @classmethod
    def of(
        cls,
        pods: int,
        leaves: int,
        aggs: int,
        cores_per_agg: int,
        nics_per_leaf: int,
        nic_rate_bps: float,
        agg_rate_bps: float | None = None,
        core_rate_bps: float | None = None,
        parallel: int = 1,
    ) -> "PodClos":
        """A regular one: each pod has `leaves` and `aggs`. By default links are as fast as NICs, and cores as aggs."""
        if min(pods, cores_per_agg) < 1:
            raise ValueError("pods and cores_per_agg must be at least 1")
        low = Clos.of(pods * leaves, aggs, nics_per_leaf, nic_rate_bps, agg_rate_bps, parallel)
        rate = float(low.link_rate_bps[0, 0, 0]) if core_rate_bps is None else core_rate_bps
        leaf_pod = np.repeat(np.arange(pods, dtype=np.int32), leaves)
        return cls(low, leaf_pod, np.full((pods, aggs, cores_per_agg, parallel), rate, dtype=np.float64))

    @property
    def pods(self) -> int:
        return int(self.core_rate_bps.shape[0])

    @property
    def aggs(self) -> int:
        """Aggs of a pod."""
        return self.low.spines

    @property
    def cores(self) -> int:
        """Cores of a group."""
        return int(self.core_rate_bps.shape[2])

    @property
    def nics(self) -> int:
        return self.low.nics

    @property
    def nic_tor(self) -> Ints:
        """The leaf of each NIC."""
        return self.low.nic_tor

    @cached_property
    def most_leaves(self) -> int:
        """The number of leaves of the largest pod."""
        return int(np.bincount(self.leaf_pod).max())

    @cached_property
    def high(self) -> Clos:
        """Aggs and cores: ToR pod * aggs + a is agg a of that pod, and spine c of it is core c of group a.

        Each ToR has one NIC, of its own number, which stands for the pod's leaves.
        """
        return _whole(self.core_rate_bps.reshape(self.pods * self.aggs, self.cores, -1))

    @cached_property
    def between_pods(self) -> Clos:
        """Pods and cores, as if a pod were one switch: ToRs are pods, each with one NIC; spines are all cores."""
        return _whole(self.core_rate_bps.reshape(self.pods, self.aggs * self.cores, -1))

    def without(
        self, agg_links: Iterable[tuple[int, ...]] = (), core_links: Iterable[tuple[int, ...]] = ()
    ) -> "PodClos":
        """The same fabric with these links dead: (leaf, agg, link) and (pod, agg, core, link).

        Raises IndexError for one that does not exist.
        """
        low, high = self.low.link_rate_bps.copy(), self.core_rate_bps.copy()
        for rate, links in ((low, agg_links), (high, core_links)):
            for link in links:
                rate[link] = 0
        return PodClos(Clos(self.nic_tor, self.low.nic_rate_bps, low), self.leaf_pod, high)

    @cached_property
    def joined(self) -> Mask:
        """[pod, pod, agg]: whether some core of group a has live links to both pods; within a pod always."""
        live = np.packbits((self.core_rate_bps > 0).any(axis=3), axis=2)
        joined: Mask = np.asarray((live[:, None] & live[None, :]).any(axis=3))
        joined[np.arange(self.pods), np.arange(self.pods)] = True
        return joined

    def ways(self, src: Ints, dst: Ints) -> Mask:
        """[commodity, agg]: whether a path from leaf `src[i]` to another leaf `dst[i]` leads through agg a."""
        ways: Mask = self.leaf_ways(src, dst) & self.joined[self.leaf_pod[src], self.leaf_pod[dst]]
        return ways

    def leaf_ways(self, src: Ints, dst: Ints) -> Mask:
        """[commodity, agg]: whether leaves `src[i]` and `dst[i]` have live links to agg a of their pods."""
        live = np.asarray((self.low.link_rate_bps > 0).any(axis=2))
        ways: Mask = live[src] & live[dst]
        return ways


def _whole(rate: Floats) -> Clos:
    tors = len(rate)
    return Clos(np.arange(tors, dtype=np.int32), np.full(tors, np.inf), rate)


@dataclass(frozen=True, eq=False)
class PodPlan:
    """A path for every commodity of a `PodClos`: by an agg of both pods, and between pods by a core."""

    fabric: PodClos
    commodities: Commodities
    planner: str
    agg: Ints
    """The agg of each commodity, or LOCAL within a leaf, or UNREACHABLE; `up` and `down` are then -1."""
    up: Ints
    """The parallel link from the source's leaf to the agg."""
    down: Ints
    """The parallel link from the agg to the destination's leaf."""
    core: Ints
    """The core of the agg's group; LOCAL without one, and the next two are then -1."""
    core_up: Ints
    """The parallel link from the agg of the source's pod to the core."""
    core_down: Ints
    """The parallel link from the core to the agg of the destination's pod."""
    bound: float
    """A lower bound of the congestion of all plans for these commodities on this fabric, in demand per bit/s."""
    why: str
    """The argument for `bound`, in words."""

    @classmethod
    def of(cls, fabric: PodClos, commodities: Commodities, planner: str, routes: Ints, bound: Bound) -> "PodPlan":
        """From [commodity, 6]: agg, up, down, core, core_up and core_down."""
        agg, up, down, core, core_up, core_down = np.ascontiguousarray(routes.T)
        columns = (agg, up, down, core, core_up, core_down)
        return cls(fabric, commodities, planner, *columns, bound.congestion, bound.why)

    @property
    def routes(self) -> Ints:
        """[commodity, 6]: agg, up, down, core, core_up and core_down."""
        return np.stack((self.agg, self.up, self.down, self.core, self.core_up, self.core_down), axis=1)

    @cached_property
    def low(self) -> Plan:
        """The part of paths between leaves and aggs."""
        return Plan(self.fabric.low, self.commodities, self.planner, self.agg, self.up, self.down, self.bound, self.why)

    @cached_property
    def across(self) -> Index:
        """The commodities that change pods."""
        return np.flatnonzero(self.core >= 0)

    @cached_property
    def high(self) -> Plan:
        """The part of paths between aggs and cores, of the commodities `across`."""
        which = self.across
        asked = lifted(self.fabric, self.commodities, which, self.agg[which])
        columns = (self.core[which], self.core_up[which], self.core_down[which])
        return Plan(self.fabric.high, asked, self.planner, *columns, self.bound, self.why)

    @cached_property
    def congestion(self) -> float:
        """The demand on the worst link between switches, divided by its rate; 0 without load."""
        return max(self.low.congestion, self.high.congestion)

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
        low_capacity, low = links_of(self.low)
        high_capacity, high = links_of(self.high)
        links = np.full((len(self.commodities), 6), -1, dtype=np.int32)
        links[:, :4] = low
        links[self.across, 4:] = high[:, 2:] + low_capacity.size
        lost = self.low.spine == UNREACHABLE
        rates = max_min_rates(
            np.concatenate((low_capacity, high_capacity)),
            links,
            np.broadcast_to(np.asarray(weight, dtype=np.float64), lost.shape),
        )
        rates[lost] = 0.0
        return rates

    @cached_property
    def fairness(self) -> Fairness:
        """The layers of the objective for the predicted rates."""
        return fairness(self.commodities.job, self.commodities.phase, self.rates / self.commodities.demand)


def lifted(fabric: PodClos, commodities: Commodities, which: Index, agg: Ints) -> Commodities:
    """These commodities, which change pods by agg `agg` of both, as commodities of `fabric.high`."""
    mine = commodities.take(which)
    src, dst = (fabric.leaf_pod[fabric.nic_tor[nics]] * np.int32(fabric.aggs) + agg for nics in (mine.src, mine.dst))
    return Commodities(src, dst, mine.demand, mine.job, mine.phase)
