# SPDX-License-Identifier: Apache-2.0
"""A short soak test. Run the long one by hand: python -m tests.hostlib.soak --minutes 10"""

from __future__ import annotations

import pytest

from . import soak

SECONDS = 7.0


@pytest.mark.timeout(240)
def test_no_message_is_lost_and_no_resource_is_left() -> None:
    outcomes = soak.soak(ranks=8, seconds=SECONDS, loss=0.01)
    assert [fault for outcome in outcomes for fault in outcome["faults"]] == []
    print(*(f"{sum(outcome[key] for outcome in outcomes)} {key}" for key in ("connections", "messages", "cut_off")))
    assert all(outcome["connections"] > 7 for outcome in outcomes)  # at least one with every other process
    assert sum(outcome["cut_off"] for outcome in outcomes) > 0
    for outcome in outcomes:  # no growth in the second half of the run
        early = len(outcome["descriptors"]) // 2
        assert (
            max(outcome["descriptors"][early:]) <= max(outcome["descriptors"][:early]) + 7
        )  # channels that are being reopened
        assert max(outcome["threads"][early:]) <= max(outcome["threads"][:early])
