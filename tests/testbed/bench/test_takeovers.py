# SPDX-License-Identifier: Apache-2.0
"""Two path services as processes: whatever happens to one of them, hosts end up with the ports that are planned."""

from __future__ import annotations

import asyncio
import os
from itertools import cycle, islice
from pathlib import Path

from testbed.bench.takeovers import FAILURES, Takeover, measure, table

COUNT = int(os.environ.get("PARALET_TAKEOVERS", "4"))
"""How many failures; `PARALET_TAKEOVERS=50` for a longer look (docs/high-availability.md)."""
ORDER = "stop", "no answers from it", "cut between", "kill", *FAILURES


def test_a_service_takes_over_from_the_other_and_hosts_have_the_planned_ports(tmp_path: Path) -> None:
    order = list(islice(cycle(ORDER), COUNT))
    found = asyncio.run(measure(tmp_path, order, 4, print))
    assert [each.failure for each in found] == order
    assert all(each.after > each.before for each in found)


def test_the_table_has_a_row_for_each_kind_of_failure() -> None:
    found = [
        Takeover("kill", True, 1.0, 2.0, 1, 2),
        Takeover("stop", True, 1.5, 1.5, 2, 3),
        Takeover("kill", False, 1.5, 1.75, 3, 4),
    ]
    assert table(found)[2:] == [
        "| kill | 2 | 1 | 1.25 s | 1.50 s | 2.00 s |",
        "| stop | 1 | 1 | 1.50 s | 1.50 s | 1.50 s |",
    ]
