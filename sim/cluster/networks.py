# SPDX-License-Identifier: Apache-2.0
"""The links that a job's flows take, by network: who chooses the spine, and how.

Links are numbered by `up * S + spine` with `up` = leaf for the link from a leaf to a spine, and `up` = L + leaf for the
link back. Flows under one leaf take no link: leaves are not blocking, and each GPU has a NIC of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sdn import _planners
from sdn.isolation.cluster import Allocation
from sdn.isolation.idle_gpus import Gpu
from sdn.isolation.ocs_cluster import OcsAllocation
from sim.cluster.jobs import Steps

NetworkName = Literal["ideal", "ecmp", "balanced", "source_routing", "reserved", "pinned", "replanned", "paralet"]

NETWORKS: tuple[NetworkName, ...] = get_args(NetworkName)


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a leaf-spine."""

    leaves: int
    spines: int
    servers_per_leaf: int
    gpus_per_server: int

    @property
    def links(self) -> int:
        """The number of links between leaves and spines, where each direction counts as one."""
        return 2 * self.leaves * self.spines

    @property
    def gpus(self) -> int:
        """The number of GPUs, each of which has a NIC."""
        return self.leaves * self.servers_per_leaf * self.gpus_per_server


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
    """The link up and the link down of each lane of each flow. Shape (flows, lanes, 2)."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a job puts on links. Entries are sorted by step. Steps without a flow between leaves are left out."""

    links: NDArray[np.intp]
    """The number of the link that each entry loads."""
    loads: NDArray[np.float64]
    """By entry: flows on the link, as a part of its capacity; a flow that takes m paths counts 1 / m on each."""
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


Chooser = Callable[
    [Shape, Allocation | OcsAllocation, Flows, NDArray[np.float64], np.random.Generator], NDArray[np.intp]
]
"""From flows, and the mean load of every link by other jobs, to the spine of each flow: shape (flows, 1)."""


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
    which takes 8 bytes per flow and lane. OCS-vClos's circuits are taken to be free
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
    if network in ("ecmp", "paralet"):
        spines = _hashed(shape, flows, lanes if network == "paralet" else 1, rng)
    else:
        spines = _CHOOSERS[network](shape, allocation, flows, load, rng)
    links = [(leaf * shape.spines)[:, np.newaxis] + spines for leaf in (flows.leaf, shape.leaves + flows.far_leaf)]
    keys = np.concatenate([(flows.step * shape.links)[:, np.newaxis] + link for link in links])
    entries, counts = np.unique(keys, return_counts=True)
    present, starts = np.unique(entries // shape.links, return_index=True)
    return Traffic(
        entries % shape.links,
        counts / spines.shape[1],
        starts,
        steps.shares[present],
        flows if network in ("pinned", "replanned") else None,
        FlowPaths(np.searchsorted(present, flows.step), np.stack(links, axis=-1).astype(np.int32))
        if with_paths
        else None,
    )


def _hashed(shape: Shape, flows: Flows, lanes: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Every lane of a connection keeps the spine that the hash of its port gives. Each connection is in one step."""
    return rng.integers(shape.spines, size=(len(flows.step), lanes))


def _balanced(
    shape: Shape, _: Allocation | OcsAllocation, flows: Flows, load: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.intp]:
    """In every step the flows of a leaf take its least loaded uplinks, one after the other; ties are drawn.

    Section 9.3 of the vClos paper: "we randomly select the least congested ports".
    """
    uplinks = load[: shape.links // 2].reshape(shape.leaves, shape.spines).round(9)  # rounding errors break no tie
    order: NDArray[np.intp] = np.lexsort((rng.random(uplinks.shape), uplinks), axis=1)
    group = flows.step * shape.leaves + flows.leaf
    by_group = np.argsort(group, kind="stable")
    firsts = np.searchsorted(group[by_group], group[by_group])
    place = np.empty_like(group)
    place[by_group] = np.arange(len(group)) - firsts
    chosen: NDArray[np.intp] = order[flows.leaf, place % shape.spines]
    return chosen[:, np.newaxis]


def _source_routing(
    shape: Shape, allocation: Allocation | OcsAllocation, flows: Flows, _: NDArray[np.float64], __: np.random.Generator
) -> NDArray[np.intp]:
    """The i-th GPU of a leaf uses the i-th spine; see `sdn.isolation.source_routing.in_order`."""
    places = np.array([_place(shape, gpu) for gpu in allocation.gpus], dtype=np.intp)
    return places[flows.source][:, np.newaxis] % shape.spines


def _reserved(
    _: Shape, allocation: Allocation | OcsAllocation, flows: Flows, __: NDArray[np.float64], ___: np.random.Generator
) -> NDArray[np.intp]:
    """The i-th GPU that the job has on a leaf uses the job's i-th spine."""
    assert isinstance(allocation, Allocation)  # others have no flows here
    spines = np.array(allocation.spines, dtype=np.intp)
    leaves = np.array([gpu.leaf for gpu in allocation.gpus], dtype=np.intp)
    places = np.arange(len(leaves)) - np.searchsorted(leaves, leaves)
    chosen: NDArray[np.intp] = spines[places[flows.source] % len(spines)]
    return chosen[:, np.newaxis]


def _pinned(
    shape: Shape, _: Allocation | OcsAllocation, flows: Flows, load: NDArray[np.float64], __: np.random.Generator
) -> NDArray[np.intp]:
    """Paths for good: no two flows of a step share a link, and together they meet as little of other jobs as possible.

    The flows of a step are coloured as by `sdn.planners.optimal`. Each colour then takes the spine, of those left,
    where the sum over its flows of the loads that other jobs put on their two links is the least.
    """
    up, down = load.reshape(2, shape.leaves, shape.spines)
    spines = np.empty(len(flows.step), dtype=np.intp)
    firsts = np.flatnonzero(np.diff(flows.step, prepend=-1)).tolist()
    for first, end in zip(firsts, [*firsts[1:], len(spines)], strict=True):
        leaf, far = flows.leaf[first:end], flows.far_leaf[first:end]
        colours = _planners.colour(shape.leaves, leaf.astype(np.int32), far.astype(np.int32), shape.spines)
        met = np.zeros((int(colours.max()) + 1, shape.spines))
        np.add.at(met, colours, up[leaf] + down[far])
        spine_of = np.empty(len(met), dtype=np.intp)
        for colour in np.argsort(-met.max(axis=1), kind="stable").tolist():
            spine_of[colour] = met[colour].argmin()
            met[:, spine_of[colour]] = np.inf
        spines[first:end] = spine_of[colours]
    return spines[:, np.newaxis]


def _place(shape: Shape, gpu: Gpu) -> int:
    return gpu.server * shape.gpus_per_server + gpu.number


_CHOOSERS: dict[NetworkName, Chooser] = {
    "balanced": _balanced,
    "source_routing": _source_routing,
    "reserved": _reserved,
    "pinned": _pinned,
    "replanned": _pinned,
}
