# SPDX-License-Identifier: Apache-2.0
"""Random small fabrics of three tiers, the optimum by an integer program of the tests' own, and checks of plans."""

from __future__ import annotations

from collections import Counter

import highspy
import numpy as np

from sdn.planners import LOCAL, UNREACHABLE, Commodities
from sdn.planners.pods import PodClos, PodPlan

RATE = 1e9
KINDS = ("up", "down", "core up", "core down")
Link = tuple[str, int, int, int, int]
"""A direction of a link: "up" or "down" between a leaf and an agg, "core up" or "core down"; and its numbers."""


def random_case(rng: np.random.Generator) -> tuple[PodClos, Commodities]:
    """Up to 3 pods of 2 x 2 switches and 2 cores a group: oversubscribed, with dead links or unequal demands."""
    shape = (int(rng.integers(2, 4)), int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(1, 3)))
    core_rate = RATE * float(rng.choice([0.5, 1.0, 1.0, 2.0]))
    parallel = int(rng.choice([1, 1, 2]))
    fabric = PodClos.of(*shape, 2, RATE, RATE, core_rate, parallel)
    dead_low, dead_high = (
        [tuple(map(int, at)) for at in np.argwhere(rng.random(rate.shape) < chance)]
        for rate, chance in (
            (fabric.low.link_rate_bps, rng.choice([0, 0.15])),
            (fabric.core_rate_bps, rng.choice([0, 0.15])),
        )
    )
    fabric = fabric.without(dead_low, dead_high)
    count = int(rng.integers(1, 8))
    src = rng.integers(0, fabric.nics, count)
    dst = (src + rng.integers(1, fabric.nics, count)) % fabric.nics
    demands = [1.0] if rng.random() < 0.4 else [1.0, 2.0, 3.0]
    return fabric, Commodities.of(src, dst, rng.choice(demands, count))


def links_of_path(fabric: PodClos, src: int, dst: int, route: tuple[int, ...]) -> list[tuple[Link, float]]:
    """The links that a route of two NICs crosses, and their rates."""
    agg, up, down, core, core_up, core_down = route
    if agg < 0:
        return []
    leaves = [int(fabric.nic_tor[nic]) for nic in (src, dst)]
    pods = [int(fabric.leaf_pod[leaf]) for leaf in leaves]
    found: list[tuple[Link, float]] = [
        (("up", leaves[0], agg, up, 0), fabric.low.link_rate_bps[leaves[0], agg, up]),
        (("down", leaves[1], agg, down, 0), fabric.low.link_rate_bps[leaves[1], agg, down]),
    ]
    if core >= 0:
        found.append((("core up", pods[0], agg, core, core_up), fabric.core_rate_bps[pods[0], agg, core, core_up]))
        found.append(
            (("core down", pods[1], agg, core, core_down), fabric.core_rate_bps[pods[1], agg, core, core_down])
        )
    return found


def live_paths(fabric: PodClos, src: int, dst: int) -> list[tuple[int, ...]]:
    """All routes over live links between two NICs on different leaves."""
    near, far = (fabric.low.link_rate_bps[fabric.nic_tor[nic]] for nic in (src, dst))
    pods = [int(fabric.leaf_pod[fabric.nic_tor[nic]]) for nic in (src, dst)]
    found: list[tuple[int, ...]] = []
    for agg in range(fabric.aggs):
        for up in np.flatnonzero(near[agg]).tolist():
            for down in np.flatnonzero(far[agg]).tolist():
                if pods[0] == pods[1]:
                    found.append((agg, up, down, -1, -1, -1))
                    continue
                for core in range(fabric.cores):
                    rates = fabric.core_rate_bps[pods[0], agg, core], fabric.core_rate_bps[pods[1], agg, core]
                    found += [
                        (agg, up, down, core, *ends)
                        for ends in np.argwhere((rates[0][:, None] > 0) & (rates[1][None, :] > 0)).tolist()
                    ]
    return found


def check_routes(plan: PodPlan) -> None:
    """Every commodity that has a path is on one, over live links; the others are marked as they should."""
    fabric, asked = plan.fabric, plan.commodities
    for (src, dst), route in zip(
        zip(asked.src.tolist(), asked.dst.tolist(), strict=True), plan.routes.tolist(), strict=True
    ):
        if fabric.nic_tor[src] == fabric.nic_tor[dst]:
            assert route == [LOCAL, -1, -1, LOCAL, -1, -1]
        elif not (paths := live_paths(fabric, src, dst)):
            assert route == [UNREACHABLE, -1, -1, LOCAL, -1, -1]
        else:
            assert tuple(route) in paths


def congestion_by_hand(plan: PodPlan) -> float:
    """The definition, link by link."""
    fabric, asked = plan.fabric, plan.commodities
    load: Counter[tuple[Link, float]] = Counter()
    for i, route in enumerate(plan.routes.tolist()):
        for link in links_of_path(fabric, int(asked.src[i]), int(asked.dst[i]), tuple(route)):
            load[link] += float(asked.demand[i])
    return max((demand / rate for (_, rate), demand in load.items()), default=0.0)


def least_congestion(fabric: PodClos, asked: Commodities) -> float:
    """The optimum, by an integer program: one unknown for each commodity and link that it may take.

    A commodity takes as many links from leaves up as down at each agg, and of each core; so it takes one path.
    """
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    infinity = highspy.kHighsInf
    solver.addVar(0.0, infinity)
    solver.changeColCost(0, 1.0)
    columns = 1
    on: dict[tuple[Link, float], list[tuple[int, float]]] = {}
    for i in range(len(asked)):
        src, dst, demand = int(asked.src[i]), int(asked.dst[i]), float(asked.demand[i])
        if fabric.nic_tor[src] == fabric.nic_tor[dst] or not (paths := live_paths(fabric, src, dst)):
            continue
        mine: dict[tuple[Link, float], int] = {}
        for route in paths:
            for link in links_of_path(fabric, src, dst, route):
                if link not in mine:
                    solver.addVar(0.0, 1.0)
                    solver.changeColIntegrality(columns, highspy.HighsVarType.kInteger)
                    mine[link] = columns
                    on.setdefault(link, []).append((columns, demand))
                    columns += 1
        row([column for (link, _), column in mine.items() if link[0] == "up"], [], solver, 1.0)
        for agg in range(fabric.aggs):
            here = {link: column for (link, _), column in mine.items() if link[2] == agg}
            by = {kind: [column for link, column in here.items() if link[0] == kind] for kind in KINDS}
            row(by["up"], by["down"], solver, 0.0)
            if fabric.leaf_pod[fabric.nic_tor[src]] != fabric.leaf_pod[fabric.nic_tor[dst]]:
                row(by["up"], by["core up"], solver, 0.0)
                for core in range(fabric.cores):
                    ends = [
                        [column for link, column in here.items() if link[0] == kind and link[3] == core]
                        for kind in ("core up", "core down")
                    ]
                    row(ends[0], ends[1], solver, 0.0)
    for (_, rate), terms in on.items():
        numbers = np.array([0, *(column for column, _ in terms)], dtype=np.int32)
        solver.addRow(-infinity, 0.0, numbers.size, numbers, np.array([-rate / RATE, *(size for _, size in terms)]))
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value) / RATE


def row(plus: list[int], minus: list[int], solver: highspy.Highs, total: float) -> None:
    """The unknowns `plus` less those of `minus` add up to `total`."""
    numbers = np.array(plus + minus, dtype=np.int32)
    values = np.array([1.0] * len(plus) + [-1.0] * len(minus))
    solver.addRow(total, total, numbers.size, numbers, values)
