# SPDX-License-Identifier: Apache-2.0
"""Section 6 and Figure 9: TopoOpt's circuits between ToRs, which hold for the whole training, beside planned paths."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sdn.planners import Clos, Commodities, greedy, optimal
from testbed.research.papers.routing.evaluation import RATE_BPS, SPINES, TORS, Case
from testbed.simulate.training import TrainingJob


def figure_9() -> float:
    """The slowest of two commodities between two ToRs: its rate on planned paths over its rate on one circuit.

    Each has hosts of its own. To flows, a circuit between two ToRs is a single spine.
    """
    commodities = Commodities.of([0, 1], [2, 3])
    paths, circuit = (Clos.of(2, spines, 2, RATE_BPS) for spines in (2, 1))
    planned, collided = greedy(paths, commodities), optimal(circuit, commodities)
    return planned.fairness.minimum / collided.fairness.minimum


def between_tors(case: Case, seed: int) -> tuple[int, int]:
    """The most flows of rings from one ToR to another one, and the most that leave or enter a ToR.

    With a circuit for each pair of ToRs the first share it. With a circuit for each flow, a ToR needs as many as the
    second.
    """
    fabric = Clos.of(TORS, SPINES, SPINES, RATE_BPS)
    src, dst = _ends(case.placed(fabric, seed))
    flows = np.zeros((TORS, TORS), dtype=np.int64)
    np.add.at(flows, (fabric.nic_tor[src], fabric.nic_tor[dst]), 1)
    np.fill_diagonal(flows, 0)
    return int(flows.max()), int(max(flows.sum(axis=0).max(), flows.sum(axis=1).max()))


def _ends(jobs: Sequence[TrainingJob]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The sender and the receiver of every flow of the rings."""
    src = np.concatenate([job.nics.ravel() for job in jobs])
    dst = np.concatenate([np.roll(job.nics, -1, axis=1).ravel() for job in jobs])
    return src, dst
