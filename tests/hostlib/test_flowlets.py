# SPDX-License-Identifier: Apache-2.0
"""Equation 1 and the flowlet size S, checked with the standard library's normal distribution."""

from __future__ import annotations

import math
import re
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostlib import flowlet_bytes, lanes_for, slowdown


@given(st.integers(1, 4096), st.integers(2, 10**9))
def test_slowdown_is_equation_1(m: int, hosts: int) -> None:
    quantile = statistics.NormalDist().inv_cdf(1 - 1 / hosts)
    assert slowdown(m, hosts) == pytest.approx(1 + quantile / math.sqrt(m), rel=1e-6)


@given(st.floats(1.05, 50), st.integers(1, 10**9))
def test_lanes_for_is_the_smallest_sufficient_m(target: float, hosts: int) -> None:
    m = lanes_for(target, hosts)
    assert slowdown(m, hosts) <= target + 1e-9
    assert m == 1 or slowdown(m - 1, hosts) > target - 1e-9


def test_examples_of_section_5_2() -> None:
    assert lanes_for(2, 1e5) == 19  # the paper prints 25
    assert lanes_for(2, 1e9) == 36
    assert flowlet_bytes(1_000_000, 8) == 503_808
    assert flowlet_bytes(0, 8) == 4096


@given(st.integers(0, 2**60), st.integers(1, 1024), st.sampled_from([256, 512, 1024, 2048, 4096]))
def test_a_flowlet_is_4_bdp_over_m_in_whole_packets(bdp: int, m: int, mtu: int) -> None:
    size = flowlet_bytes(bdp, m, mtu)
    assert size % mtu == 0
    assert size >= mtu
    assert size == mtu or 4 * bdp / m * (1 - 1e-12) <= size < 4 * bdp / m * (1 + 1e-12) + mtu


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: slowdown(0, 5), "m and hosts must be at least 1 and finite, not 0 and 5"),
        (lambda: slowdown(1, 0.5), "m and hosts must be at least 1 and finite, not 1 and 0.5"),
        (lambda: slowdown(1, math.nan), "m and hosts must be at least 1 and finite, not 1 and nan"),
        (lambda: slowdown(1, math.inf), "m and hosts must be at least 1 and finite, not 1 and inf"),
        (lambda: lanes_for(1, 5), "the slowdown must be above 1 and hosts at least 1 and finite, not 1 and 5"),
        (lambda: lanes_for(2, 0), "the slowdown must be above 1 and hosts at least 1 and finite, not 2 and 0"),
        (lambda: flowlet_bytes(-1, 1), "bdp_bytes must be 0 to 2^60, m and path_mtu must be at least 1"),
        (lambda: flowlet_bytes(math.inf, 1), "bdp_bytes must be 0 to 2^60, m and path_mtu must be at least 1"),
        (lambda: flowlet_bytes(math.nan, 1), "bdp_bytes must be 0 to 2^60, m and path_mtu must be at least 1"),
        (lambda: flowlet_bytes(1, 0), "bdp_bytes must be 0 to 2^60, m and path_mtu must be at least 1"),
    ],
)
def test_wrong_arguments_are_reported_by_name(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
