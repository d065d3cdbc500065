# SPDX-License-Identifier: Apache-2.0
"""Shaping as text for tc."""

from __future__ import annotations

from emul.shaping import burst_bytes, shape_lines


def test_a_bucket_holds_three_full_frames_or_a_millisecond() -> None:
    assert burst_bytes(10_000_000, 9000) == 3 * 9014
    assert burst_bytes(10_000_000_000, 1500) == 1_250_000


def test_the_token_bucket_never_drops_and_its_queue_drops_from_the_head() -> None:
    bucket, queue = shape_lines("leaf1-eth3", 20_000_000, 9000, 96)
    assert bucket == "qdisc replace dev leaf1-eth3 root handle 5: tbf rate 20000000bit burst 27042b limit 1730688b"
    assert queue == "qdisc replace dev leaf1-eth3 parent 5:1 handle 6: pfifo_head_drop limit 96"
    assert 1730688 > 96 * 9014
