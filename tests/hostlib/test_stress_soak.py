# SPDX-License-Identifier: Apache-2.0
"""A short soak. The long one is run by hand: python -m tests.hostlib.soak --minutes 10"""

from __future__ import annotations

import pytest

from . import soak

SECONDS = 15.0


@pytest.mark.timeout(240)
def test_nothing_is_lost_stuck_or_left_behind() -> None:
    outcomes = soak.soak(ranks=8, seconds=SECONDS, loss=0.01)
    assert [fault for outcome in outcomes for fault in outcome["faults"]] == []
    print(*(f"{sum(outcome[key] for outcome in outcomes)} {key}" for key in ("connections", "messages", "cut_off")))
    assert all(outcome["connections"] > 7 for outcome in outcomes)  # some with everybody
    assert sum(outcome["cut_off"] for outcome in outcomes) > 0
    for outcome in outcomes:  # no more while it runs than when all had met
        early = len(outcome["descriptors"]) // 2
        assert max(outcome["descriptors"][early:]) <= max(outcome["descriptors"][:early]) + 7  # channels made anew
        assert max(outcome["threads"][early:]) <= max(outcome["threads"][:early])
