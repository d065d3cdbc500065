# SPDX-License-Identifier: Apache-2.0
"""The links that a job's flows take, by network: who chooses the spine or, between pods, the agg and the core.

`sim.cluster.shape` numbers links. Flows under one leaf take no link: leaves are not blocking, and each GPU has a NIC of
its own. With several planes each flow sends an equal part over each of them. Paths that are chosen for flows are the
same in every plane; the others are drawn in each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sdn import _native
from sdn.isolation.cluster import Allocation
from sdn.isolation.ocs_cluster import OcsAllocation
from sim.cluster.jobs import Steps
from sim.cluster.shape import Shape

NetworkName = Literal["ideal", "ecmp", "balanced", "source_routing", "reserved", "pinned", "replanned", "paralet"]

NETWORKS: tuple[NetworkName, ...] = get_args(NetworkName)


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows between leaves of all steps of a collective, sorted by step and source rank; arrays have one per flow."""

    step: NDArray[np.intp]
    source: NDArray[np.intp]
    """The rank that sends the flow."""
    leaf: NDArray[np.intp]
    far_leaf: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class FlowPaths:
    """The links of single flows, by step and source rank, for fidelity `fair` and for those who are told of starts."""

    step: NDArray[np.intp]
    """By flow: its step, of those with flows between leaves, from 0. Shape (flows,)."""
    links: NDArray[np.int32]
    """The links of each lane of each flow, those of the first plane before others: a link up and a link down. With
    several pods, a link up to a core and a link down from it follow, which are -1 within a pod. Shape (flows, planes *
    lanes, 2 or 4)."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a job puts on links. Entries are sorted by step. Steps without a flow between leaves are left out."""

    links: NDArray[np.intp]
    """The number of the link that each entry loads."""
    loads: NDArray[np.float64]
    """By entry: flows on the link, as a part of its capacity; a flow that takes m paths of a plane counts 1 / m on
    each."""
    starts: NDArray[np.intp]
    """The index of each step's first entry."""
    shares: NDArray[np.float64]
    """By step: its share of the collective's time without contention."""
    flows: Flows | None = None
    """The flows, where the path of every flow is planned."""
    paths: FlowPaths | None = None
    """The links of single flows; None unless `traffic_of` was called `with_paths`."""

    @property
    def quiet(self) -> float:
        """The share of the collective's time in which no flow is between leaves."""
        return max(0.0, 1.0 - float(self.shares.sum()))


Ways = tuple[NDArray[np.intp], NDArray[np.intp]]
"""The spine, or the agg of a pod, of flows, and the core of that agg's group, which says nothing within a pod."""

Chooser = Callable[[Shape, Allocation | OcsAllocation, Flows, NDArray[np.float64], np.random.Generator], Ways]
"""From flows, and the mean load of every link of a plane by other jobs, to their ways: shape (flows, lanes)."""


def traffic_of(
    shape: Shape,
    network: NetworkName,
    allocation: Allocation | OcsAllocation,
    steps: Steps,
    load: NDArray[np.float64],
    rng: np.random.Generator,
    lanes: int = 8,
    *,
    with_paths: bool = False,
) -> Traffic | None:
    """The links of a job's flows; None when no flow is between leaves, or none can meet another.

    `load` is the mean load of each link by other jobs, `lanes` ParaLet's m. With `with_paths` the result has `paths`,
    which takes 8 or 16 bytes per flow, plane and lane. OCS-vClos's circuits are taken to be free
    of contention: they belong to one job, and tests of `sdn.isolation.ocs_vclos` show it within a job.
    """
    if network == "ideal" or isinstance(allocation, OcsAllocation):
        return None
    count, ranks = steps.destinations.shape
    step, rank = np.divmod(np.arange(count * ranks).reshape(count, ranks), ranks)
    leaves = np.array([gpu.leaf for gpu in allocation.gpus], dtype=np.intp)
    near, far = leaves[rank], leaves[steps.destinations]
    between = near != far
    if not between.any():
        return None
    flows = Flows(step[between], rank[between], near[between], far[between])
    links, lanes = _links(shape, network, allocation, flows, load, rng, lanes if network == "paralet" else 1)
    keys = ((flows.step * shape.links)[:, np.newaxis, np.newaxis] + links)[links >= 0]
    entries, counts = np.unique(keys, return_counts=True)
    present, starts = np.unique(entries // shape.links, return_index=True)
    return Traffic(
        entries % shape.links,
        counts / lanes,
        starts,
        steps.shares[present],
        flows if network in ("pinned", "replanned") else None,
        FlowPaths(np.searchsorted(present, flows.step), links.astype(np.int32)) if with_paths else None,
    )


def _links(
    shape: Shape,
    network: NetworkName,
    allocation: Allocation | OcsAllocation,
    flows: Flows,
    load: NDArray[np.float64],
    rng: np.random.Generator,
    lanes: int,
) -> tuple[NDArray[np.intp], int]:
    """The links of flows as in `FlowPaths`, and the number of their lanes in each plane."""
    if network in ("ecmp", "paralet"):
        spine, core = _hashed(shape, flows, lanes, rng)
    else:
        ways = _CHOOSERS[network](shape, allocation, flows, load[: shape.plane_links], rng)
        spine, core = (np.repeat(way[:, np.newaxis], shape.planes, axis=1) for way in ways)
    leaf, far = (np.broadcast_to(ends[:, np.newaxis], spine.shape) for ends in (flows.leaf, flows.far_leaf))
    links = shape.links_between(leaf, far, spine, core)
    plane = np.repeat(np.arange(shape.planes), lanes)
    return np.where(links < 0, -1, links + (plane * shape.plane_links)[:, np.newaxis]), lanes


def _hashed(shape: Shape, flows: Flows, lanes: int, rng: np.random.Generator) -> Ways:
    """Every lane of a connection keeps the way that the hash of its port gives. Each connection is in one step."""
    size = (len(flows.step), shape.planes * lanes)
    spine = rng.integers(shape.spines, size=size)
    return spine, rng.integers(shape.cores, size=size) if shape.cores else np.zeros_like(spine)


def _balanced(
    shape: Shape, _: Allocation | OcsAllocation, flows: Flows, load: NDArray[np.float64], rng: np.random.Generator
) -> Ways:
    """In every step the flows of a leaf take its least loaded uplinks, one after the other; ties are drawn.

    Those that leave an agg for another pod then do the same with its uplinks. Section 9.3 of the vClos paper: "we
    randomly select the least congested ports".
    """
    uplinks = load[: shape.leaf_links].reshape(shape.leaves, shape.spines)
    spine = _least_loaded(uplinks, flows.step, flows.leaf, rng)
    core = np.zeros_like(spine)
    if shape.cores:
        first = 2 * shape.leaf_links
        above = load[first : first + shape.core_links].reshape(-1, shape.cores)
        across = _across(shape, flows)
        agg = shape.pods_of(flows.leaf[across]) * shape.spines + spine[across]
        core[across] = _least_loaded(above, flows.step[across], agg, rng)
    return spine, core


def _least_loaded(
    uplinks: NDArray[np.float64], step: NDArray[np.intp], switch: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.intp]:
    """The uplink of each flow, where those of a switch and step take its least loaded ones, one after the other.

    `uplinks` has the loads by switch and uplink.
    """
    known = uplinks.round(9)  # rounding errors break no tie
    order: NDArray[np.intp] = np.lexsort((rng.random(known.shape), known), axis=1)
    group = step * len(known) + switch
    by_group = np.argsort(group, kind="stable")
    firsts = np.searchsorted(group[by_group], group[by_group])
    place = np.empty_like(group)
    place[by_group] = np.arange(len(group)) - firsts
    chosen: NDArray[np.intp] = order[switch, place % known.shape[1]]
    return chosen


def _source_routing(
    shape: Shape, allocation: Allocation | OcsAllocation, flows: Flows, _: NDArray[np.float64], __: np.random.Generator
) -> Ways:
    """The i-th GPU of a leaf uses the i-th spine; see `sdn.isolation.source_routing.in_order`.

    Between pods, what comes from the i-th leaf of a pod uses the i-th core.
    """
    places = np.array([gpu.server * shape.gpus_per_server + gpu.number for gpu in allocation.gpus], dtype=np.intp)
    core = flows.leaf % shape.leaves_per_pod % max(1, shape.cores)
    return places[flows.source] % shape.spines, core


def _reserved(
    shape: Shape,
    allocation: Allocation | OcsAllocation,
    flows: Flows,
    _: NDArray[np.float64],
    __: np.random.Generator,
) -> Ways:
    """The i-th GPU that the job has on a leaf uses the job's i-th spine.

    Between pods, what comes from the i-th leaf that the job has in a pod uses the i-th core that it has there.
    """
    assert isinstance(allocation, Allocation)  # others have no flows here
    spines = np.array(allocation.spines, dtype=np.intp)
    leaves = np.array([gpu.leaf for gpu in allocation.gpus], dtype=np.intp)
    place = (np.arange(len(leaves)) - np.searchsorted(leaves, leaves))[flows.source] % len(spines)
    core = np.zeros_like(place)
    if cores := allocation.cores:
        own = np.array(allocation.leaves, dtype=np.intp)
        pods = shape.pods_of(own)
        number = np.arange(len(own)) - np.searchsorted(pods, pods)
        by_spine = np.array([cores[spine] for spine in allocation.spines], dtype=np.intp)
        core = by_spine[place, number[np.searchsorted(own, flows.leaf)]]
    return spines[place], core


def _pinned(
    shape: Shape, _: Allocation | OcsAllocation, flows: Flows, load: NDArray[np.float64], __: np.random.Generator
) -> Ways:
    """Paths for good: no two flows of a step share a link, and together they meet as little of other jobs as possible.

    The flows of a step are coloured as by `sdn.planners.optimal`. Each colour then takes the spine, of those left,
    where the sum over its flows of the loads that other jobs put on their two links is the least. Between pods the
    flows of each agg are then coloured into its cores in the same way (`sdn.planners.pods.optimal`). That no two share
    a link takes as many spines as GPUs of a leaf, and as many cores of an agg as leaves of a pod.
    """
    up, down = load[: 2 * shape.leaf_links].reshape(2, shape.leaves, shape.spines)
    above = load[2 * shape.leaf_links :].reshape(2, shape.pods * shape.spines, shape.cores)
    across = _across(shape, flows)
    spine, core = (np.zeros(len(flows.step), dtype=np.intp) for _ in range(2))
    firsts = np.flatnonzero(np.diff(flows.step, prepend=-1)).tolist()
    for first, end in zip(firsts, [*firsts[1:], len(spine)], strict=True):
        spine[first:end] = _coloured(up, down, flows.leaf[first:end], flows.far_leaf[first:end])
        between = first + np.flatnonzero(across[first:end])
        aggs = [shape.pods_of(leaf[between]) * shape.spines + spine[between] for leaf in (flows.leaf, flows.far_leaf)]
        for agg in np.unique(spine[between]).tolist():
            own = np.flatnonzero(spine[between] == agg)
            core[between[own]] = _coloured(*above, *(ends[own] for ends in aggs))
    return spine, core


def _coloured(
    up: NDArray[np.float64], down: NDArray[np.float64], near: NDArray[np.intp], far: NDArray[np.intp]
) -> NDArray[np.intp]:
    """For flows from switches `near` to switches `far`, all of one step: the switch above by which each goes.

    `up` and `down` have the loads of others, by switch and switch above.
    """
    switches, above = up.shape
    colours = _native.colour(switches, near.astype(np.int32), far.astype(np.int32), above)
    met = np.zeros((int(colours.max()) + 1, above))
    np.add.at(met, colours, up[near] + down[far])
    taken = np.empty(len(met), dtype=np.intp)
    for colour in np.argsort(-met.max(axis=1), kind="stable").tolist():
        taken[colour] = met[colour].argmin()
        met[:, taken[colour]] = np.inf
    return taken[colours]


def _across(shape: Shape, flows: Flows) -> NDArray[np.bool_]:
    """Whether each flow is between pods."""
    across: NDArray[np.bool_] = shape.pods_of(flows.leaf) != shape.pods_of(flows.far_leaf)
    return across


_CHOOSERS: dict[NetworkName, Chooser] = {
    "balanced": _balanced,
    "source_routing": _source_routing,
    "reserved": _reserved,
    "pinned": _pinned,
    "replanned": _pinned,
}
