# SPDX-License-Identifier: Apache-2.0
"""Ends of elephants equal those of max-min fair fluid flows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.forecast import ends_s
from sdn.planners import Clos, Commodities, Plan, greedy, optimal
from sdn.planners.rates import max_min_rates
from tests.sdn.planners.sample import RATE, commodities, fabrics


def test_flows_speed_up_when_others_sharing_their_links_end() -> None:
    """Three from three NICs of one ToR to one NIC: thirds until the first has ended, then halves, then all."""
    fabric = Clos.of(tors=2, spines=3, nics_per_tor=3, nic_rate_bps=24.0)
    plan = optimal(fabric, Commodities.of([0, 1, 2], [3, 3, 3]))
    assert ends_s(plan, [1, 2, 3]).tolist() == pytest.approx([1.0, 5 / 3, 2.0])
    # Without a second look everybody keeps his third.
    assert ends_s(plan, [1, 2, 3], most_rounds=1).tolist() == pytest.approx([1.0, 2.0, 3.0])


def test_no_bytes_end_now_and_no_path_means_never() -> None:
    fabric = Clos.of(tors=2, spines=1, nics_per_tor=2, nic_rate_bps=8.0)
    plan = optimal(fabric.without(spines=[0]), Commodities.of([0, 0, 2], [1, 2, 0]))
    assert ends_s(plan, [5, 5, 0]).tolist() == [5.0, float("inf"), 0.0]


@pytest.mark.parametrize("remaining", [[1], [1, -1], [[1, 1]]])
def test_invalid_remaining_bytes_are_refused(remaining: object) -> None:
    fabric = Clos.of(tors=2, spines=1, nics_per_tor=2, nic_rate_bps=8.0)
    with pytest.raises(ValueError, match="2 commodities need as many"):
        ends_s(optimal(fabric, Commodities.of([0, 1], [2, 3])), remaining)  # type: ignore[arg-type]


@settings(derandomize=True, max_examples=50)
@given(st.data())
def test_no_link_carries_more_than_its_rate_and_the_first_end_is_exact(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=3, spines=2, nics=4))
    wanted = data.draw(commodities(fabric, most=10))
    plan: Plan = greedy(fabric, wanted)
    sizes = np.array(
        data.draw(st.lists(st.integers(1, 10**9), min_size=len(wanted), max_size=len(wanted))), dtype=float
    )
    ends = ends_s(plan, sizes)
    assert ends.shape == (len(wanted),)
    if not len(wanted):
        return
    rates = plan.rates
    alone = 8 * sizes / np.minimum(fabric.nic_rate_bps[wanted.src], fabric.nic_rate_bps[wanted.dst])
    assert (ends >= alone * (1 - 1e-9)).all()
    reached = rates > 0
    assert np.isinf(ends[~reached]).all()
    if reached.any():
        assert ends.min() == pytest.approx((8 * sizes[reached] / rates[reached]).min())
    # A message takes at least its serialisation time on every link.
    for nic in range(fabric.nics):
        sent = (wanted.src == nic) & reached
        if sent.any():
            assert ends[sent].max() >= 8 * sizes[sent].sum() / fabric.nic_rate_bps[nic] * (1 - 1e-6)


def test_ends_and_rates_use_the_same_units() -> None:
    assert max_min_rates(np.array([RATE]), np.array([[0]], dtype=np.int32), np.ones(1)).tolist() == [RATE]
