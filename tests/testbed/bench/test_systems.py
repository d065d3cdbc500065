# SPDX-License-Identifier: Apache-2.0
"""`paralet bench systems` with small clusters: every case is measured at both sizes."""

from __future__ import annotations

from testbed.bench import systems
from testbed.bench.frame import result


def test_every_case_is_measured_at_both_sizes() -> None:
    small, large = systems.Size(16, 16), systems.Size(24, 16)
    rows = result("systems", systems.run(small, large, repetitions=1, arrivals=20)).rows
    assert [(row.metric, row.case, row.peer_name) for row in rows] == [
        (metric, "384 GPUs", "256 GPUs") for metric in systems.CASES
    ]
    assert all(row.ours > 0 and row.peer > 0 for row in rows)
