# SPDX-License-Identifier: Apache-2.0
"""Fabrics, commodities and the layers of the objective as data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.planners import Clos, Commodities, greedy, optimal
from sdn.planners.grouping import groups, occurrences
from sdn.planners.objective import fairness
from tests.sdn.planners.sample import RATE


def test_a_large_fabric_is_a_few_arrays() -> None:
    fabric = Clos.of(512, 128, 128, 4e11, parallel=2)
    assert (fabric.nics, fabric.tors, fabric.spines, fabric.parallel) == (65536, 512, 128, 2)
    assert fabric.nic_tor[[0, 127, 128, 65535]].tolist() == [0, 0, 1, 511]
    failed = fabric.without(links=[(3, 5, 1)], spines=[7])
    assert (failed.link_rate_bps[3, 5] > 0).tolist() == [True, False]
    assert not failed.link_rate_bps[:, 7].any()
    assert fabric.link_rate_bps.all()


def test_uniform_links() -> None:
    fabric = Clos.of(3, 3, 1, RATE, parallel=2)
    spine, link = fabric.without(spines=[1]).uniform_links or ((), ())
    assert list(zip(spine, link, strict=True)) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert fabric.without(links=[(0, 0, 0)]).uniform_links is None
    assert fabric.without(spines=[0, 1, 2]).uniform_links is None
    slower = fabric.link_rate_bps.copy()
    slower[:, 2] /= 2
    assert Clos(fabric.nic_tor, fabric.nic_rate_bps, slower).uniform_links is None


def test_a_fabric_is_read_only() -> None:
    rate = np.full((2, 2, 1), RATE)
    fabric = Clos(np.zeros(1, dtype=np.int32), np.ones(1), rate)
    rate[:] = 0
    assert fabric.link_rate_bps.all()
    with pytest.raises(ValueError, match="read-only"):
        fabric.link_rate_bps[0] = 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nic_tor": [2]}, r"outside 0\.\.1"),
        ({"nic_rate_bps": [1.0, 1.0]}, "1 NICs have 2 rates"),
        ({"nic_rate_bps": [0.0]}, "rate of a NIC is not above 0"),
        ({"link_rate_bps": np.full((2, 2, 1), -1.0)}, "rate of a link is negative"),
        ({"link_rate_bps": np.full((2, 2, 1), np.inf)}, "not finite"),
        ({"link_rate_bps": np.ones((2, 2))}, "3 dimensions, not 2"),
        ({"link_rate_bps": np.ones((2, 0, 1))}, "needs ToRs, spines and links"),
    ],
)
def test_invalid_fabrics_are_refused(changes: dict[str, object], why: str) -> None:
    right: dict[str, object] = {"nic_tor": [0], "nic_rate_bps": [1.0], "link_rate_bps": np.ones((2, 2, 1))}
    with pytest.raises(ValueError, match=why):
        Clos(**(right | changes))  # type: ignore[arg-type]


def test_invalid_commodities_are_refused() -> None:
    with pytest.raises(ValueError, match="not above 0"):
        Commodities.of([0], [1], demand=[0.0])
    with pytest.raises(ValueError, match="differ in length"):
        Commodities(*(np.zeros(n, dtype=np.int32) for n in (1, 2)), np.ones(1), *(np.zeros(1, dtype=np.int32),) * 2)


@pytest.mark.parametrize("name", ["src", "dst", "job", "phase"])
@pytest.mark.parametrize("value", [1.5, np.nan, 2**31, 2**32 + 1, -(2**31) - 1, "1"], ids=str)
def test_numbers_that_are_no_32_bit_integers_are_refused(name: str, value: float | str) -> None:
    given = {"src": [0], "dst": [1], name: [value]}
    with pytest.raises(ValueError, match=f"{name} must hold whole numbers of 32 bits"):
        Commodities.of(**given)  # type: ignore[arg-type]


def test_whole_numbers_may_be_floats_and_there_may_be_none() -> None:
    assert Commodities.of(np.arange(2.0), [1, 0]).src.dtype == np.int32
    assert len(Commodities.of([], [])) == 0


def test_layers_of_fairness() -> None:
    layers = fairness(
        np.array([7, 3, 7, 3, 7], dtype=np.int32),
        np.array([1, 0, 0, 0, 1], dtype=np.int32),
        np.array([4.0, 2.0, 3.0, 6.0, 5.0]),
    )
    assert layers.jobs.tolist() == [3, 7]
    assert layers.job_rate.tolist() == [2.0, 3.0]
    assert layers.phases.tolist() == [[3, 0], [7, 0], [7, 1]]
    assert layers.phase_rate.tolist() == [2.0, 3.0, 4.0]
    assert layers.minimum == 2.0
    assert layers.leximin == (2.0, 3.0, 2.0, 3.0, 4.0)


def test_rates_follow_demands_or_other_weights() -> None:
    # Two commodities share a NIC, one with three times the demand: shares of a quarter and three quarters.
    fabric = Clos.of(2, 2, 2, RATE)
    plan = optimal(fabric, Commodities.of([0, 0], [2, 3], demand=[1, 3], job=[0, 1]))
    assert plan.rates == pytest.approx([RATE / 4, 3 * RATE / 4])
    assert plan.fairness.job_rate == pytest.approx([RATE / 4, RATE / 4])
    assert plan.rates_weighted_by(1) == pytest.approx([RATE / 2, RATE / 2])


def test_statements() -> None:
    fabric = Clos.of(4, 2, 2, RATE)
    asked = Commodities.of([4, 5, 0, 1], [0, 2, 6, 3])
    assert optimal(fabric, asked).statement.startswith("optimal: ")
    assert greedy(fabric, asked).statement.startswith("within 100.0% of the best conceivable: ")


@settings(derandomize=True)
@given(st.lists(st.integers(-3, 3)))
def test_groups_and_occurrences(keys: list[int]) -> None:
    array = np.array(keys, dtype=np.int32)
    assert [keys[i] for group in groups(array) for i in group] == sorted(keys)
    assert all(len({keys[i] for i in group}) == 1 and sorted(group) == list(group) for group in groups(array))
    assert occurrences(array).tolist() == [keys[:i].count(key) for i, key in enumerate(keys)]
