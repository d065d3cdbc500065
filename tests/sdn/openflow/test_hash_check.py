# SPDX-License-Identifier: Apache-2.0
"""Flows to trace on switches, and the check of the results."""

from __future__ import annotations

import pytest

from netmodel import CrcHash, OvsHash, forwarding, leaf_spine
from sdn.openflow.hash_check import HashMismatchError, flows_to_trace, judge

TOPOLOGY = leaf_spine(4, 4, 2, 1_000_000)
TRACES = flows_to_trace(TOPOLOGY, forwarding(TOPOLOGY), OvsHash(), 32)


def test_questions_reach_every_switch_with_groups_and_repeat_with_the_seed() -> None:
    assert len(TRACES) == 32
    assert {trace.switch for trace in TRACES} == {"leaf1", "leaf2", "leaf3", "leaf4"}
    assert flows_to_trace(TOPOLOGY, forwarding(TOPOLOGY), OvsHash(), 32) == TRACES
    assert flows_to_trace(TOPOLOGY, forwarding(TOPOLOGY), OvsHash(), 32, seed=1) != TRACES
    assert all(trace.expected_port in range(3, 7) for trace in TRACES)


def test_a_fabric_without_choice_has_no_questions() -> None:
    single = leaf_spine(2, 1, 2, 1_000_000)
    assert flows_to_trace(single, forwarding(single), OvsHash(), 32) == ()


def test_right_answers_pass_and_another_hash_is_detected() -> None:
    judge(TRACES, [trace.expected_port for trace in TRACES])
    other = flows_to_trace(TOPOLOGY, forwarding(TOPOLOGY), CrcHash("crc32"), 32)
    assert [trace.flow for trace in other] == [trace.flow for trace in TRACES]
    with pytest.raises(HashMismatchError, match=r"does not hash as predicted \(\d+ of 32 flows differ\).*SSE4.2"):
        judge(TRACES, [trace.expected_port for trace in other])


def test_a_drop_is_a_mismatch_too() -> None:
    with pytest.raises(HashMismatchError, match=r"leaf1 drops it and not by port"):
        judge(TRACES[:1], [None])
