# SPDX-License-Identifier: Apache-2.0
"""What the points of a sweep show: the means over seeds of each policy at each combination of values."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """A policy with one combination of values, over all seeds."""

    parameters: dict[str, Any]
    policy: str
    m: int
    seeds: int
    mean_s: float
    worst_s: float
    fct_mean_s: float
    ideal_s: float


def rows(results: Sequence[dict[str, Any]]) -> list[Row]:
    """Means over seeds, in the order of first use."""
    return list(_rows(results))


def _rows(results: Sequence[dict[str, Any]]) -> Iterator[Row]:
    groups: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for result in results:
        for policy in result["policies"]:
            key = json.dumps([result["parameters"], policy["name"]])
            groups.setdefault(key, []).append((result, policy))
    for group in groups.values():
        result, policy = group[0]
        times = [own["completion_s"] for _, own in group]
        yield Row(
            parameters=result["parameters"],
            policy=policy["name"],
            m=policy["m"],
            seeds=len(group),
            mean_s=fmean(times),
            worst_s=max(times),
            fct_mean_s=fmean(own["fct_mean_s"] for _, own in group),
            ideal_s=min(whole["ideal_s"] for whole, _ in group),
        )
