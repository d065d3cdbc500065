# SPDX-License-Identifier: Apache-2.0
"""Figure 11: times of a hundred jobs on the testbed, simulated by the paper's rule and measured with real packets.

The paper's testbed has 32 GPUs and source routing. Ours has an emulated host for each GPU, and jobs of ours.
`testbed.csv` has the times. These commands, the first as root, measure them again and write the file:

    paralet cluster experiments/clusters/vclos_testbed.yaml --replay
    python -m testbed.research.papers.vclos.replayed results/vclos_testbed-cluster/replay.json
"""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from testbed.research.papers.claim import Claim

FILE = files("testbed.research.papers.vclos") / "testbed.csv"
What = Literal["JRT", "JWT"]
_SAID = '"Basically consistent" counts as a ratio of 1. Our jobs; real packets between 32 emulated hosts.'
_WAITS = f"{_SAID} Their times are 25 times as short, so a second that starting a job takes counts as 25 s of waiting."


class Replayed(NamedTuple):
    """One job: seconds of the simulation, and those measured, in the simulation's time."""

    job: str
    running_s: float
    measured_running_s: float
    waiting_s: float
    measured_waiting_s: float

    def pair(self, what: What) -> tuple[float, float]:
        """The simulated and the measured time."""
        if what == "JRT":
            return self.running_s, self.measured_running_s
        return self.waiting_s, self.measured_waiting_s


def measured() -> list[Replayed]:
    """The jobs of `testbed.csv`."""
    rows = list(csv.reader(FILE.read_text("utf-8").splitlines()))[1:]
    return [Replayed(job, *map(float, times)) for job, *times in rows]


def claims(jobs: Sequence[Replayed]) -> Iterator[Claim]:
    """Whether the distributions of the simulation are those of real packets."""
    kinds: tuple[What, ...] = ("JRT", "JWT")
    for what in kinds:
        simulated, real = np.array([job.pair(what) for job in jobs]).T
        for which, ratio in (
            ("mean", simulated.mean() / real.mean()),
            ("90th percentile", np.percentile(simulated, 90) / np.percentile(real, 90)),
        ):
            series = f"{what}, mean and 90th percentile, simulated over real packets, SR"
            text = f"{which} of {what}, simulated over real packets, SR"
            note = _SAID if what == "JRT" else _WAITS
            yield Claim("Fig. 11", text, "x", float(ratio), 1.0, 2, note=note, series=series)


def table(replay: dict[str, Any]) -> str:
    """`testbed.csv`, made of what `paralet cluster --replay` has written."""
    lines = ["job,JRT simulated s,JRT measured s,JWT simulated s,JWT measured s"]
    (strategy,) = replay["strategies"]
    for job in strategy["jobs"]:
        run, end = job["running_s"], job["completion_s"]
        times = (
            run["simulated"],
            run["measured"],
            end["simulated"] - run["simulated"],
            end["measured"] - run["measured"],
        )
        lines.append(",".join([job["job"], *(f"{round(seconds, 2) + 0.0:.2f}" for seconds in times)]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(str(FILE)).write_text(table(json.loads(Path(sys.argv[1]).read_text("utf-8"))), "utf-8")
