# SPDX-License-Identifier: Apache-2.0
"""Section IV-C, fault tolerance, by the simulation in `faults`. The section prints no number."""

from collections.abc import Iterator
from functools import cache
from math import isfinite

from testbed.research.papers.claim import Claim
from testbed.research.papers.rail_only.faults import Recovery, TrainingJob, duration_s
from testbed.research.papers.rail_only.times import Grid

JOB = TrainingJob(
    Grid(8, 16, 3600e9, 400e9), 100, 10, 10e9, reroute_s=1, optical_s=0.1, restart_s=300, checkpoint_iterations=20
)
"""100 iterations of 16 domains of 8 H100: 10 s of computing each, and 10 GB of gradients."""


@cache
def lost_s(recovery: Recovery, fails_s: float) -> float:
    """Seconds that a failure adds to `JOB`; infinite if it does not end."""
    return duration_s(JOB, recovery, fails_s) - duration_s(JOB)


def of_failures() -> Iterator[Claim]:
    """What failures cost `JOB` in the middle of its 51st iteration."""
    iteration_s = duration_s(JOB) / JOB.iterations
    summing, computing = 51 * iteration_s - 0.3, 50 * iteration_s + JOB.compute_s / 2
    unavailable = 0.0 if isfinite(lost_s("forwarding", 0.0)) else 1 / JOB.grid.x
    yield Claim(
        "IV-C",
        "GPUs unavailable after a rail switch fails, K = 8",
        "%",
        100 * unavailable,
        100 / JOB.grid.x,
        1,
        note="In ours HB domains forward the traffic of the rail over the others (faults.py).",
    )
    model = "The paper gives no number. Ours: 16 domains of 8 H100 (docs/notes/rail-failures.md)."
    for what, seconds in (
        ("a dead rail's ring on the others, per iteration", lost_s("forwarding", 0.0) / 100),
        ("an extra switch takes over during an all-reduce", lost_s("spare_switch", summing)),
        ("a failed GPU, an idle one over an optical switch", lost_s("spare_gpu", computing)),
        ("a failed GPU, its tasks move to an idle HB domain", lost_s("moved_domain", computing)),
    ):
        yield Claim("IV-C", f"time lost: {what}", "s", seconds, decimals=2, note=model)
