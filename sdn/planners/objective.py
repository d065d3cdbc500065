# SPDX-License-Identifier: Apache-2.0
"""The objective: max-min fairness in layers (Cohen et al., "Routing for Large ML Models", sections 3.3 and 8).

A phase is as fast as its slowest commodity, because an all-reduce waits for it. A job is as fast as its slowest phase.
The slowest job counts first. So the objective is to maximise the lowest rate; plans with equal lowest rates are
compared by the next slowest job, and so on (leximin order).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Ints = npt.NDArray[np.int32]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fairness:
    """Rates per unit of demand, in bit/s, layer by layer."""

    jobs: _Ints
    """The numbers of the jobs, in ascending order."""
    job_rate: _Floats
    """The rate of each job: that of its slowest phase."""
    phases: _Ints
    """[i, 0] job and [i, 1] phase, ascending."""
    phase_rate: _Floats
    """The rate of each phase: that of its slowest commodity."""

    @property
    def minimum(self) -> float:
        """The objective of the paper: the slowest job's rate. Infinity without commodities."""
        return float(np.min(self.job_rate, initial=np.inf))

    @property
    def leximin(self) -> tuple[float, ...]:
        """The rates of all jobs, the slowest first, then of all phases. The fairer plan has the greater tuple."""
        return (*np.sort(self.job_rate).tolist(), *np.sort(self.phase_rate).tolist())


def fairness(job: _Ints, phase: _Ints, rate: _Floats) -> Fairness:
    """The layers of the given rates per unit of demand, one per commodity."""
    order = np.lexsort((phase, job))
    job, phase, rate = job[order], phase[order], rate[order]
    if not rate.size:
        return Fairness(job, rate, np.empty((0, 2), dtype=np.int32), rate)
    job_starts = np.flatnonzero(np.concatenate(([True], job[1:] != job[:-1])))
    new_phase = (job[1:] != job[:-1]) | (phase[1:] != phase[:-1])
    phase_starts = np.flatnonzero(np.concatenate(([True], new_phase)))
    return Fairness(
        jobs=job[job_starts],
        job_rate=np.minimum.reduceat(rate, job_starts),
        phases=np.stack((job[phase_starts], phase[phase_starts]), axis=1),
        phase_rate=np.minimum.reduceat(rate, phase_starts),
    )
