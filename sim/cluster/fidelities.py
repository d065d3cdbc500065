# SPDX-License-Identifier: Apache-2.0
"""The levels of detail at which contention is simulated."""

from typing import Literal, get_args

from sim.cluster.contention import Average, Contention, PerStep, Replanned
from sim.cluster.fair import Fair
from sim.cluster.shape import Shape

FidelityName = Literal["average", "steps", "fair"]

FIDELITIES: tuple[FidelityName, ...] = get_args(FidelityName)


def contention(fidelity: FidelityName, shape: Shape, rounds: int = 1, *, replanned: bool = False) -> Contention:
    """The contention model of an empty cluster.

    `rounds`, for `steps` and `fair`, is how often a job computes and communicates. With `replanned` the paths of a step
    are planned when it begins, whatever the fidelity, unless that is `average`.
    """
    if fidelity == "average":
        return Average(shape)
    if replanned:
        return Replanned(shape, rounds)
    return PerStep(shape, rounds) if fidelity == "steps" else Fair(shape, rounds)
