# SPDX-License-Identifier: Apache-2.0
"""Flows of several lanes on one shaped link fill it and share it evenly, as those of one lane do."""

from __future__ import annotations

import pytest

from .looks import FAST, check_filled_and_shared

pytestmark = [pytest.mark.sandboxed, pytest.mark.paced]


@pytest.mark.parametrize(
    ("flows", "rate_bps"),
    [(1, FAST), (8, FAST), (8, 10_000_000)],
    ids=lambda value: str(value) if value < 1000 else f"{value // 1_000_000}M",
)
def test_a_shared_link_is_filled_and_shared(flows: int, rate_bps: int) -> None:
    check_filled_and_shared(flows, 8, rate_bps)
