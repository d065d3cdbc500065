# SPDX-License-Identifier: Apache-2.0
"""The rules by which jobs get GPUs, and why they fail."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from sdn.isolation import ocs_vclos, packing, vclos
from sdn.isolation.cluster import Allocation, Cluster
from sdn.isolation.integer_program import Undecided
from sdn.isolation.ocs_cluster import OcsAllocation, OcsCluster
from sim.cluster.shape import Shape

PlacementName = Literal["packed", "relaxed", "scattered", "vclos", "ocs_vclos"]

PLACEMENTS: tuple[PlacementName, ...] = get_args(PlacementName)

Cause = Literal["busy", "locality", "shape", "network", "undecided"]
"""Why a job was not placed: fewer GPUs are idle than it asks for; enough are idle, but not in whole servers; servers
are idle, but on leaves where the rule has no place for them, were all links free; the rule would have one if all links
were free; an integer program ran out of time."""

CAUSES: tuple[Cause, ...] = get_args(Cause)

AnyCluster = Cluster | OcsCluster
AnyAllocation = Allocation | OcsAllocation
Place = Callable[[Any, str, int], AnyAllocation | None]
"""Places a job of so many GPUs on a cluster, as `vclos.place` does; None where the rule finds no place."""


def empty_cluster(shape: Shape, placement: PlacementName, optical_switches: int) -> AnyCluster:
    """A cluster without jobs, for a rule. `optical_switches` is for `ocs_vclos`."""
    size = (shape.leaves, shape.spines, shape.servers_per_leaf, shape.gpus_per_server)
    if placement == "ocs_vclos":
        return OcsCluster.empty(*size, optical_switches)
    return Cluster.empty(*size, pods=shape.pods, cores=shape.cores)


def rule(placement: PlacementName, rng: np.random.Generator) -> Place:
    """The function that places jobs by this rule."""
    if placement == "scattered":
        return partial(packing.scattered, rng)
    rules: dict[PlacementName, Place] = {
        "packed": packing.packed,
        "relaxed": packing.relaxed,
        "vclos": vclos.place,
        "ocs_vclos": ocs_vclos.place,
    }
    return rules[placement]


def cause(cluster: AnyCluster, place: Place, gpus: int) -> Cause:
    """Why the rule `place` has no place now for a job of so many GPUs."""
    if len(cluster.idle) < gpus:
        return "busy"
    if packing.packed(cluster, "job", gpus) is None:
        return "locality"
    try:
        return "shape" if place(cluster.with_free_links(), "job", gpus) is None else "network"
    except Undecided:
        return "undecided"
