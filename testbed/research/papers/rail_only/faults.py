# SPDX-License-Identifier: Apache-2.0
"""Failures during a training job on a rail-only fabric (section IV-C), on the fluid model.

A job computes and then sums gradients over the rails: GPU g of every HB domain is in a ring of its own on rail g. Four
failures are modelled. After the failure of a rail switch the collective goes on; after that of a GPU, whose memory is
lost, the job goes back to its last checkpoint.

- `forwarding`: a rail switch fails. The other rails carry its ring, through the HB domains of both ends. The paper says
  that the GPUs of a failed switch become unavailable; workload `rail_alltoall` forwards in this way, too.
- `spare_switch`: a rail switch fails, and the operator has an extra one, which takes over after `reroute_s`.
- `spare_gpu`: a GPU fails, and an optical switch brings an idle GPU of the same HB domain onto its rail.
- `moved_domain`: a GPU fails, and the tasks of its whole HB domain move to an idle one.
"""

from dataclasses import dataclass
from math import floor
from typing import Literal

import numpy as np
import numpy.typing as npt

from sim.fluid import Messages, Simulation
from sim.messages import NO_CHANNEL
from sim.paths import Paths
from testbed.research.papers.rail_only.times import Grid

Recovery = Literal["forwarding", "spare_switch", "spare_gpu", "moved_domain"]

_OUT, _IN = 0, 1


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job on all GPUs of a grid of two or more GPUs in each of two or more HB domains."""

    grid: Grid
    iterations: int
    compute_s: float
    gradient_bytes: float
    """The bytes of a GPU's gradients, which its ring sums."""
    reroute_s: float = 0.0
    """Seconds from the failure of a switch until traffic takes other ways."""
    optical_s: float = 0.0
    """Seconds that an optical switch takes to change its circuits."""
    restart_s: float = 0.0
    """Seconds from the failure of a GPU until the job runs again from its checkpoint, without `optical_s`."""
    checkpoint_iterations: int = 1
    """Iterations between checkpoints, which take no time."""

    def __post_init__(self) -> None:
        if min(self.grid.x, self.grid.y) < 2 or self.iterations < 1 or self.checkpoint_iterations < 1:
            raise ValueError("needs two GPUs in each of two HB domains, an iteration, and checkpoints")
        if min(self.compute_s, self.gradient_bytes, self.reroute_s, self.optical_s, self.restart_s) < 0:
            raise ValueError("times and bytes must be 0 or more")

    @property
    def sent_bytes(self) -> float:
        """The bytes that a GPU sends in an iteration: those of a ring all-reduce."""
        return 2 * (self.grid.y - 1) / self.grid.y * self.gradient_bytes


def duration_s(job: TrainingJob, recovery: Recovery | None = None, fails_s: float = 0.0) -> float:
    """Seconds of all iterations, where GPU or rail 0 fails `fails_s` after the start. None: nothing fails.

    Raises ValueError for a negative time. A failure after the last iteration changes nothing.
    """
    if fails_s < 0:
        raise ValueError(f"a failure cannot be {-fails_s:g} s before the start")
    if recovery is None or recovery == "forwarding" or recovery == "spare_switch":
        return _Run(job, job.iterations).end_s(recovery, fails_s)
    whole_s = duration_s(job)
    if fails_s >= whole_s:
        return whole_s
    complete = floor(fails_s / (whole_s / job.iterations) * (1 + 1e-12))
    kept = complete - complete % job.checkpoint_iterations
    again_s = _Run(job, job.iterations - kept, recovery).end_s()
    return fails_s + job.restart_s + (job.optical_s if recovery == "spare_gpu" else 0.0) + again_s


class _Run:
    """A simulation. There is one more GPU in each domain, and one more domain: they are idle."""

    def __init__(self, job: TrainingJob, iterations: int, replaced: Recovery | None = None) -> None:
        grid = job.grid
        self._job, self._width = job, grid.x + 1
        slots = self._width * (grid.y + 1)
        self._simulation = Simulation(np.repeat([grid.nic_bps, grid.hb_bps], 2 * slots))
        self._slots = slots
        # Domains and GPUs that the tasks of domain d and rail g are on.
        self._place = [[(d, g) for g in range(grid.x)] for d in range(grid.y)]
        if replaced == "spare_gpu":
            self._place[0][0] = 0, grid.x
        elif replaced == "moved_domain":
            self._place[0] = [(grid.y, g) for g in range(grid.x)]
        self._lanes = grid.x - 1
        own = np.array([[self._over(d, g, None)] * self._lanes for g in range(grid.x) for d in range(grid.y)])
        self._simulation.add_channels(Paths.of(own.astype(np.int32)))
        done: int | None = None
        channels = np.arange(grid.x * grid.y)
        for _ in range(iterations):
            computed = self._simulation.add_messages(Messages(NO_CHANNEL, delay_s=job.compute_s))
            if done is not None:
                self._simulation.add_waits([done], [computed])
            sent = self._simulation.add_messages(Messages(channels, 8 * job.sent_bytes)) + channels
            self._simulation.add_waits(np.full(channels.size, computed), sent)
            done = self._simulation.add_messages(Messages(NO_CHANNEL))
            self._simulation.add_waits(sent, np.full(channels.size, done))

    def end_s(self, recovery: Recovery | None = None, fails_s: float = 0.0) -> float:
        """When the last iteration ends."""
        simulation, grid = self._simulation, self._job.grid
        if recovery is not None:
            simulation.advance(fails_s)
            rail = [self._nic(way, d, 0) for d in range(grid.y) for way in (_OUT, _IN)]
            for link in rail:
                simulation.set_rate(link, 0.0)
            simulation.advance(fails_s + self._job.reroute_s)
            if recovery == "spare_switch":
                for link in rail:
                    simulation.set_rate(link, grid.nic_bps)
            else:
                rows = [[self._over(d, 0, other)] for d in range(grid.y) for other in range(1, grid.x)]
                simulation.set_paths(np.arange(grid.y * self._lanes), Paths.of(np.array(rows, dtype=np.int32)))
        simulation.advance()
        return float(simulation.delivered_s()[-1])

    def _over(self, domain: int, rail: int, other: int | None) -> npt.NDArray[np.int64]:
        """The links from a domain's GPU of a rail to the next domain's, over that rail or over another one."""
        here, there = self._place[domain][rail], self._place[(domain + 1) % self._job.grid.y][rail]
        if other is None:
            return np.array([self._nic(_OUT, *here), self._nic(_IN, *there), -1, -1, -1, -1])
        relays = (here[0], other), (there[0], other)
        return np.array(
            [
                self._domain(_OUT, *here),
                self._domain(_IN, *relays[0]),
                self._nic(_OUT, *relays[0]),
                self._nic(_IN, *relays[1]),
                self._domain(_OUT, *relays[1]),
                self._domain(_IN, *there),
            ]
        )

    def _nic(self, way: int, domain: int, gpu: int) -> int:
        """The link of a GPU's NIC."""
        return way * self._slots + domain * self._width + gpu

    def _domain(self, way: int, domain: int, gpu: int) -> int:
        """The link of a GPU into its HB domain."""
        return (2 + way) * self._slots + domain * self._width + gpu
