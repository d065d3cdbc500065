# SPDX-License-Identifier: Apache-2.0
"""`paralet bench planner` with small fabrics: every metric is measured, and the numpy rates are correct."""

from __future__ import annotations

import numpy as np
import pytest

from sdn.planners import greedy
from sdn.planners.model import links_of
from sdn.planners.rates import max_min_rates_reference
from testbed.bench import planner
from testbed.bench.frame import result


def test_every_metric_is_measured() -> None:
    small, many = planner.Size(4, 3), planner.Size(4, 3, 50)
    tree = planner.FatTree(4, small)
    rows = result("planner", planner.run((small, many), (tree,), (small,), (many,), repetitions=2)).rows
    assert [(row.metric, row.case, row.unit, row.peer_name) for row in rows] == [
        ("plan", "12 NICs, 4 ToRs x 3 spines", "s", "greedy"),
        ("plan", "50 commodities, 4 ToRs x 3 spines", "s", "greedy"),
        ("plan", "16 NICs, fat-tree of 4 ports", "s", "12 NICs, two tiers"),
        ("arrival", "12 NICs, 4 ToRs x 3 spines", "s", "afresh"),
        ("rates", "50 commodities, 4 ToRs x 3 spines", "s", "numpy"),
    ]
    assert all(row.ours > 0 and row.peer > 0 for row in rows)


@pytest.mark.parametrize("size", [planner.Size(5, 3), planner.Size(5, 3, 60)])
def test_numpy_rates_equal_the_max_min_rates(size: planner.Size) -> None:
    fabric, asked = size.make(seed=1)
    assert (fabric.nic_tor[asked.src] != fabric.nic_tor[asked.dst]).any()
    capacity, links = links_of(greedy(fabric, asked))
    weight = np.random.default_rng(2).uniform(1, 2, len(asked))
    expected = max_min_rates_reference(capacity, links, weight)
    assert planner.numpy_rates(capacity, links, weight) == pytest.approx(expected)
