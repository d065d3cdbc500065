# SPDX-License-Identifier: Apache-2.0
"""Many flows on a link that is as fast as the machine."""

from __future__ import annotations

import time

import pytest

from .flows import measure, sending
from .link import Link
from .looks import MESSAGE_BYTES, look

pytestmark = [pytest.mark.sandboxed, pytest.mark.alone]


@pytest.mark.parametrize("lanes", [1, 8])
def test_many_flows_of_a_fast_link_do_not_collapse(lanes: int) -> None:
    rate_bps = 1_000_000_000  # about what two cores carry: only a collapse counts
    with Link(senders=8, lanes=lanes, connections=8, message_bytes=8 * MESSAGE_BYTES) as link:
        link.shape(rate_bps)
        with sending(link, 8, lanes, rate_bps, 8 * MESSAGE_BYTES) as devices:
            time.sleep(1.0)
            look(
                lambda: measure(link, devices, rate_bps, 3),
                lambda outcome: {"half of the link is used": outcome.utilization >= 0.5},
            )
