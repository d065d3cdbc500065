# SPDX-License-Identifier: Apache-2.0
"""Orders in which commodities choose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.planners import Clos, Commodities, c4p, crux, greedy, largest_first
from tests.sdn.planners.sample import RATE, commodities, fabrics


@settings(derandomize=True)
@given(st.data())
def test_orders_hold_every_commodity_once(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    asked = data.draw(commodities(fabric, most=20, demands=(1.0, 2.0)))
    for order in (crux(fabric, asked), c4p(fabric, asked), largest_first(asked)):
        assert sorted(order.tolist()) == list(range(len(asked)))
        greedy(fabric, asked, order=order)


def test_crux_puts_intense_jobs_first() -> None:
    # Job 0 keeps a NIC busy for 2 / RATE, job 1 for 1 / RATE, job 2 the links of a ToR, slower than its NICs, for
    # 3 / (RATE / 2).
    fabric = Clos.of(2, 1, 4, RATE, RATE / 2)
    asked = Commodities.of([0, 0, 1, 4, 5, 6], [1, 2, 0, 0, 1, 2], job=[0, 0, 1, 2, 2, 2])
    assert asked.job[crux(fabric, asked)].tolist() == [1, 0, 0, 2, 2, 2]
    assert asked.job[crux(fabric, asked, work={0: 4.0, 1: 1.0, 2: 7.0})].tolist() == [0, 0, 2, 2, 2, 1]
    with pytest.raises(KeyError):
        crux(fabric, asked, work={0: 1.0})


def test_c4p_goes_by_arrival_and_tor() -> None:
    fabric = Clos.of(3, 2, 2, RATE)
    asked = Commodities.of([0, 1, 2, 0, 4], [2, 2, 4, 4, 0], job=[9, 9, 9, 4, 4])
    assert c4p(fabric, asked).tolist() == [0, 2, 1, 3, 4]


def test_largest_first() -> None:
    asked = Commodities.of([0, 1, 2], [1, 2, 0], demand=[1, 3, 2])
    assert largest_first(asked).tolist() == [1, 2, 0]


def test_the_order_determines_which_commodities_share() -> None:
    # Greedy's tight case: the last commodity in the order has to share a link, the first one never does.
    fabric = Clos.of(4, 2, 2, RATE)
    asked = Commodities.of([4, 5, 0, 1], [0, 2, 6, 3], job=[0, 1, 2, 3])
    for first in range(4):
        work = {job: 10.0 if job == first else 1.0 for job in range(4)}
        plan = greedy(fabric, asked, order=crux(fabric, asked, work))
        assert plan.congestion * RATE <= 2
        assert np.isin(plan.rates, [RATE, RATE / 2]).all()
