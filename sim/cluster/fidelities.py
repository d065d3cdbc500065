# SPDX-License-Identifier: Apache-2.0
"""The levels of detail at which contention is simulated."""

from typing import Literal, get_args

from sim.cluster.contention import Average, Contention, PerStep, Replanned
from sim.cluster.fair import Fair
from sim.cluster.networks import Shape

FidelityName = Literal["average", "steps", "fair"]

FIDELITIES: tuple[FidelityName, ...] = get_args(FidelityName)


def contention(fidelity: FidelityName, shape: Shape, rounds: int = 1, *, replanned: bool = False) -> Contention:
    """An empty cluster's; `rounds` and `replanned` are for `steps` and `fair`."""
    if fidelity == "average":
        return Average(shape)
    if replanned:
        return Replanned(shape, rounds)
    return PerStep(shape, rounds) if fidelity == "steps" else Fair(shape, rounds)
