# SPDX-License-Identifier: Apache-2.0
"""`paralet bench systems` with small clusters: every case is measured at both sizes."""

from __future__ import annotations

from testbed.bench.frame import result
from testbed.research import decision_times


def test_every_case_is_measured_at_both_sizes() -> None:
    small, large = decision_times.Size(16, 16), decision_times.Size(24, 16)
    rows = result("systems", decision_times.run(small, large, repetitions=1, arrivals=20)).rows
    assert [(row.metric, row.case, row.peer_name) for row in rows] == [
        (metric, "384 GPUs", "256 GPUs") for metric in decision_times.CASES
    ]
    assert all(row.ours > 0 and row.peer > 0 for row in rows)
