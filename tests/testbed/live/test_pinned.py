# SPDX-License-Identifier: Apache-2.0
"""Rates and states of connections with planned ports."""

from __future__ import annotations

from msgspec.structs import replace

from testbed.live.pinned import PinnedMoments
from tests.testbed.live.pinned_flows import FLOW, OTHER, report


def test_a_rate_is_known_from_the_second_look_on() -> None:
    moments = PinnedMoments()
    (first,) = moments.take([report(FLOW)], 10.0).flows
    assert first.tx_bps is None
    (second,) = moments.take([report(replace(FLOW, bytes=3000))], 12.0).flows
    assert second.tx_bps == 8 * 2000 / 2


def test_a_connection_that_is_new_in_a_look_has_sent_all_its_bytes_since_the_last_one() -> None:
    moments = PinnedMoments()
    moments.take([], 10.0)
    (flow,) = moments.take([report(FLOW)], 11.0).flows
    assert flow.tx_bps == 8000


def test_what_a_connection_does() -> None:
    flows = [
        FLOW,
        replace(FLOW, elephant=False),
        replace(FLOW, planned_port=60000),
        replace(FLOW, planned_port=60000, timeouts=2),
        replace(FLOW, timeouts=1),
    ]
    moment = PinnedMoments().take([report(*flows)], 0.0)
    assert [flow.state for flow in moment.flows] == ["", "idle", "plan: 60000", "hangs", ""]


def test_the_ends_and_those_without_a_planned_port() -> None:
    moment = PinnedMoments().take([report(FLOW, replace(FLOW, remote="fd00::2"), others=(OTHER,))], 0.0)
    assert [flow.peer for flow in moment.flows] == ["10.0.0.2:5", "[fd00::2]:5"]
    assert moment.others == [OTHER]
    assert moment
    assert not PinnedMoments().take([], 0.0)
