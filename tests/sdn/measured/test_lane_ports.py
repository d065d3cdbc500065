# SPDX-License-Identifier: Apache-2.0
"""Ports for the lanes of one pair: along the planned ways, and with few changes."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from sdn.measured.lane_ports import lane_ports


def alive(way: str) -> bool:
    return way != "dead"


def test_lanes_whose_planned_ways_are_swapped_stay() -> None:
    known = {1: "a", 2: "b", 3: "c"}
    assert lane_ports([1, 2, 3], ["b", "c", "a"], known, {}, alive) == [1, 2, 3]
    assert lane_ports([1, 2, 3], ["b", "d", "a"], known | {4: "d"}, {}, alive) == [1, 2, 4]


def test_a_lane_takes_another_way_until_a_port_of_its_own_is_known() -> None:
    assert lane_ports([0, 0], ["a", "b"], {1: "a", 2: "dead", 3: "c"}, {}, alive) == [1, 3]
    assert lane_ports([0, 0], [None, None], {1: "a", 2: "dead"}, {}, alive) == [1, 2]
    assert lane_ports([1, 3], ["a", "b"], {1: "a", 2: "c", 3: "c"}, {}, alive) == [1, 3]
    assert lane_ports([0, 0], ["a", "b"], {1: "a"}, {}, alive) == [1, 0]


def test_lanes_keep_ports_that_may_have_moved() -> None:
    """A port that is known to take a way has it before one that may have left it."""
    assert lane_ports([1, 2], ["a", "c"], {2: "a", 3: "c"}, {1: "a"}, alive) == [1, 2]
    assert lane_ports([1, 2], ["a", "c"], {3: "c", 4: "a"}, {1: "a"}, alive) == [1, 3]


def test_a_lane_that_leaves_a_dead_way_takes_no_port_that_another_lane_can_keep() -> None:
    known = {5: "a", 6: "b", 7: "dead"}
    assert lane_ports([7, 5], ["c", "d"], known, {}, alive) == [6, 5]
    assert lane_ports([5, 7], [None, None], {5: "a", 7: "dead"}, {}, alive) == [5, 7]


def test_asked_again_nothing_changes() -> None:
    draw, ways = Random(1), ["a", "b", "c", "dead"]
    for _ in range(5_000):
        lanes = draw.randint(1, 4)
        known = {port: draw.choice(ways) for port in range(1, 9) if draw.random() < 0.5}
        doubted = {port: draw.choice(ways) for port in range(1, 9) if port not in known and draw.random() < 0.5}
        planned = [draw.choice([*ways, None]) for _ in range(lanes)]
        first = lane_ports(draw.sample(range(1, 9), lanes), planned, known, doubted, alive)
        if all(first):
            assert lane_ports(first, planned, known, doubted, alive) == first


@pytest.mark.parametrize("seed", range(20))
def test_a_new_plan_moves_as_few_lanes_as_ways_are_new(seed: int) -> None:
    """Where every way has ports enough."""
    draw, ways = Random(seed), "abcdefgh"
    known = {100 * at + number: way for at, way in enumerate(ways, start=1) for number in range(8)}
    before, after = (draw.choices(ways, k=8) for _ in range(2))
    first = lane_ports([0] * 8, before, known, {}, alive)
    second = lane_ports(first, after, known, {}, alive)
    assert Counter(known[port] for port in first) == Counter(before)
    assert Counter(known[port] for port in second) == Counter(after)
    assert sum(a != b for a, b in zip(first, second, strict=True)) == (Counter(after) - Counter(before)).total()
