# SPDX-License-Identifier: Apache-2.0
"""Flows on one shaped link keep to its marks, and give way to a flow that starts late."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from hostlib import Device

from .flows import acknowledged, measure, send_until, sending
from .link import Link, near_address
from .looks import FAST, FAST_WARM_UP_S, MEASURED_S, MESSAGE_BYTES, WARM_UP_S, look, most_hit

pytestmark = [pytest.mark.sandboxed, pytest.mark.paced]

TIMEOUT_S = 60.0
MARK_ABOVE_BYTES = 40_000


@pytest.mark.parametrize("lanes", [1, 8])
def test_marks_keep_the_queue_of_a_shared_link_near_their_threshold(lanes: int, tmp_path: Path) -> None:
    flows, threshold_s = 8, 8 * MARK_ABOVE_BYTES / FAST
    with Link(senders=flows, lanes=lanes, connections=flows, message_bytes=MESSAGE_BYTES) as link:
        link.shape(FAST)
        marks = link.mark(FAST, MARK_ABOVE_BYTES, tmp_path / "bpf")
        with sending(link, flows, lanes, FAST, MESSAGE_BYTES) as devices:
            time.sleep(FAST_WARM_UP_S)
            look(
                lambda: measure(link, devices, FAST, MEASURED_S),
                lambda outcome: {
                    "80 % of the link are used": 0.8 <= outcome.utilization <= 1.05,
                    f"the queue is at most {2e3 * threshold_s:.1f} ms": outcome.queue_s <= 2 * threshold_s,
                    "Jain's index is at least 0.9": outcome.fairness >= 0.9,
                },
            )
            assert marks.marked() > 0
            assert link.queue()["drops"] == 0


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_flow_that_starts_late_gets_its_share(lanes: int) -> None:
    """Two flows fill the link when the third begins. It has three quarters of its share within 3 s."""
    window_s, wanted_bps, took_s = 0.25, 0.75 * FAST / 3, []
    with Link(senders=3, lanes=lanes, connections=3, message_bytes=MESSAGE_BYTES) as link:
        link.shape(FAST)
        with (
            sending(link, 2, lanes, FAST, MESSAGE_BYTES) as devices,
            Device(near_address(2), lanes=lanes, line_rate_bps=FAST, seed=2) as late,
        ):
            connection = late.connect(link.handle, TIMEOUT_S)

            def hit() -> bool:
                early = sum(acknowledged(devices))
                time.sleep(WARM_UP_S)
                assert 8 * (sum(acknowledged(devices)) - early) / WARM_UP_S > FAST / 2
                stop = threading.Event()
                thread = threading.Thread(target=send_until, args=(stop, connection, MESSAGE_BYTES))
                start, rate_bps = time.monotonic(), 0.0
                thread.start()
                while rate_bps < wanted_bps and time.monotonic() - start < 3.0:
                    sent, then = acknowledged([late])[0], time.monotonic()
                    time.sleep(window_s)
                    rate_bps = 8 * (acknowledged([late])[0] - sent) / (time.monotonic() - then)
                took_s.append(time.monotonic() - start)
                stop.set()
                thread.join()
                print(f"the late flow of {lanes} lanes had {rate_bps / 1e6:.1f} Mbit/s after {took_s[-1]:.2f} s")
                return rate_bps >= wanted_bps

            assert most_hit(hit), f"the late flow had less than {wanted_bps / 1e6:.0f} Mbit/s after {took_s} s"
