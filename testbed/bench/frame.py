# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks: single measurements, and rows with their medians."""

import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Measurement:
    """One repetition of one case: the values of paralet (`ours`) and of the peer, both in `unit`."""

    metric: str
    case: str
    unit: str
    ours: float
    peer: float
    peer_name: str


@dataclass(frozen=True, slots=True)
class Row:
    """The medians over all repetitions of a case. `ratio` is ours / peer; the metric says which is better."""

    metric: str
    case: str
    unit: str
    ours: float
    peer: float
    peer_name: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a benchmark. `when` is UTC, ISO 8601."""

    bench: str
    when: str
    machine: str
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """The object that `paralet bench NAME --json` prints."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}


def result(bench: str, measurements: Iterable[Measurement]) -> Result:
    """Reduce repetitions to rows in order of first appearance, with the time and the machine.

    Rows are medians, because disturbances on a shared machine make a few measurements much slower.
    """
    groups: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.metric, one.case, one.unit, one.peer_name), []).append(one)
    rows = []
    for (metric, case, unit, peer_name), group in groups.items():
        ours, peer = median(one.ours for one in group), median(one.peer for one in group)
        rows.append(Row(metric, case, unit, ours, peer, peer_name, ours / peer))
    return Result(bench, datetime.now(UTC).isoformat(timespec="seconds"), machine(), tuple(rows))


def machine() -> str:
    """Description of the machine: processor, cores available to this process, kernel."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # keep the architecture's name
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}"
