# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks: single measurements, and rows with their medians."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from testbed.machine import this_machine


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
    for measurement in measurements:
        groups.setdefault((measurement.metric, measurement.case, measurement.unit, measurement.peer_name), []).append(
            measurement
        )
    rows = []
    for (metric, case, unit, peer_name), group in groups.items():
        ours, peer = (
            median(measurement.ours for measurement in group),
            median(measurement.peer for measurement in group),
        )
        rows.append(Row(metric, case, unit, ours, peer, peer_name, ours / peer))
    return Result(bench, datetime.now(UTC).isoformat(timespec="seconds"), str(this_machine()), tuple(rows))
