# SPDX-License-Identifier: Apache-2.0
"""Max-min fair rates: the fast ones against the plain reference, and the reference against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.planners.rates import max_min_rates, max_min_rates_reference

Case = tuple[np.ndarray, np.ndarray, np.ndarray]


@st.composite
def networks(draw: st.DrawFn) -> Case:
    """Capacities of up to eight links, flows over up to three of them each, and weights."""
    links = draw(st.integers(1, 8))
    capacity = draw(st.lists(st.sampled_from([0.0, 1.0, 2.5, 4.0, 10.0, np.inf]), min_size=links, max_size=links))
    rows = draw(st.lists(st.lists(st.integers(0, links - 1), unique=True, max_size=3), max_size=12))
    weight = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=len(rows), max_size=len(rows)))
    crossed = np.full((len(rows), 3), -1, dtype=np.int32)
    for row, of in zip(crossed, rows, strict=True):
        row[: len(of)] = of
    return np.array(capacity), crossed, np.array(weight, dtype=np.float64)


@settings(derandomize=True, max_examples=300)
@given(networks())
def test_fast_rates_equal_the_reference(case: Case) -> None:
    assert max_min_rates(*case) == pytest.approx(max_min_rates_reference(*case))


@settings(derandomize=True, max_examples=200)
@given(networks())
def test_no_rate_can_rise_without_a_no_larger_one_falling(case: Case) -> None:
    capacity, links, weight = case
    rate = max_min_rates_reference(*case)
    used = np.zeros(capacity.size)
    for flow, row in enumerate(links):
        used[row[row >= 0]] += rate[flow]
    finite = np.isfinite(capacity)
    assert (used[finite] <= capacity[finite] * (1 + 1e-12)).all()
    for flow, row in enumerate(links):
        bottlenecks = [
            link
            for link in row[row >= 0]
            if finite[link]
            and used[link] >= capacity[link] * (1 - 1e-12)
            and all(rate[f] / weight[f] <= rate[flow] / weight[flow] * (1 + 1e-12) for f in _flows_on(links, link))
        ]
        assert bottlenecks or (np.isinf(rate[flow]) and not finite[row[row >= 0]].any())


def _flows_on(links: np.ndarray, link: int) -> list[int]:
    return [flow for flow, row in enumerate(links) if link in row]


def test_large_networks_agree_too() -> None:
    rng = np.random.default_rng(3)
    links = np.stack([rng.integers(20 * k, 20 * (k + 1), 400) for k in range(4)], axis=1).astype(np.int32)
    capacity, weight = rng.uniform(1, 100, 80), rng.uniform(0.1, 10, 400)
    assert max_min_rates(capacity, links, weight) == pytest.approx(max_min_rates_reference(capacity, links, weight))


@pytest.mark.parametrize(
    ("capacity", "links", "weight", "why"),
    [
        ([1.0], [[1]], [1.0], "a link does not exist"),
        ([1.0], [[0]], [0.0], "a weight is not above 0"),
        ([-1.0], [[0]], [1.0], "a capacity is negative"),
        ([1.0], [[0]], [1.0, 1.0], "differ in length"),
        ([float("nan")], [[0]], [1.0], "a capacity is negative"),
        ([1.0, 1.0], [[1, -1, 0], [1, -1, 1]], [1.0, 1.0], "a flow crosses a link twice"),
    ],
)
def test_bad_arguments_are_refused(
    capacity: list[float], links: list[list[int]], weight: list[float], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        max_min_rates(np.array(capacity), np.array(links, dtype=np.int32), np.array(weight))
