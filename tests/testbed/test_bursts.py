# SPDX-License-Identifier: Apache-2.0
"""The ideal of ports that send a burst at once: no token bucket, and so no run, is faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emul.shaping import burst_bytes
from netmodel import leaf_spine
from testbed.allocation.demands import ideal_s
from testbed.analysis.short_messages import short_sentence
from testbed.bursts import held_back
from testbed.training.tasks import TaskGraph
from tests.testbed.experiments import experiment, first_of

MBIT = 1_000_000
RATE = 20 * MBIT
MTU_BYTES = 9000
FRAME_BYTES = 4096 + 74


def shaped_s(size: int, rate_bps: int) -> float:
    """When the last frame of a message leaves a token bucket that is full at first (tc-tbf(8))."""
    bucket = burst_bytes(rate_bps, MTU_BYTES)
    now_s, tokens = 0.0, float(bucket)
    for sent in range(0, size, 4096):
        frame = min(4096, size - sent) + FRAME_BYTES - 4096
        wait_s = max(0.0, frame - tokens) * 8 / rate_bps
        now_s, tokens = now_s + wait_s, min(bucket, tokens + wait_s * rate_bps / 8) - frame
    return now_s


@given(size=st.integers(30_000, 2_000_000), rate_mbit=st.integers(1, 1000))
def test_no_token_bucket_beats_the_ideal_and_long_messages_come_close(size: int, rate_mbit: int) -> None:
    topology = leaf_spine(2, 2, 1, rate_mbit * MBIT)
    ideal = ideal_s(topology, ["h1", "h2"], {(0, 1): size}, burst=burst_bytes)
    burst = burst_bytes(rate_mbit * MBIT, MTU_BYTES)
    taken = shaped_s(size, rate_mbit * MBIT)
    if size > 2 * burst:
        assert ideal <= taken < size * 8 / (rate_mbit * MBIT) * FRAME_BYTES / 4096
        assert ideal == pytest.approx(8 * (size - burst) / (rate_mbit * MBIT))
    assert ideal > 0


@pytest.mark.parametrize("size", [1, 1000, 27_042, 27_043, 100_000])
def test_part_of_a_message_is_held_back_however_short_it_is(size: int) -> None:
    assert 0 < held_back(size, 27_042) <= size
    assert held_back(size, 0) == size


def test_the_uplinks_of_a_leaf_send_a_burst_each() -> None:
    topology = leaf_spine(2, 2, 4, RATE, 10 * MBIT)  # 80 Mbit/s of hosts share two uplinks of 10
    hosts = [host.name for host in topology.hosts]
    demands = {(rank, rank + 4): 100_000 for rank in range(4)}
    left = 400_000 - 2 * burst_bytes(10 * MBIT, MTU_BYTES)
    assert ideal_s(topology, hosts, demands, burst=burst_bytes) == pytest.approx(8 * left / (20 * MBIT))


def test_a_chain_of_messages_gains_a_burst_with_each() -> None:
    graph = TaskGraph(3)
    first = graph.send(0, 1, 100_000)
    graph.send(1, 2, 50_000, [graph.compute(1, 0.5, [first])])
    assert graph.longest_chain_s(RATE, 27_042) == pytest.approx(0.5 + 8 * (150_000 - 2 * 27_042) / RATE)
    assert graph.longest_chain_s(RATE) == pytest.approx(0.5 + 8 * 150_000 / RATE)


def test_fabrics_with_shaped_ports_leave_bursts_out_and_models_do_not(tmp_path: Path) -> None:
    ring: dict[str, Any] = {"workload": {"kind": "ring_allreduce", "bytes": 80_000}}
    modelled, emulated = (first_of(experiment(tmp_path, fabric=fabric, **ring)) for fabric in ("fluid", "mininet"))
    assert modelled.ideal_s() == pytest.approx(2 * 3 / 4 * 80_000 * 8 / 100e6)
    assert emulated.ideal_s() == pytest.approx(modelled.ideal_s() - 8 * burst_bytes(100 * MBIT, MTU_BYTES) / 100e6)


def test_short_messages_are_told(tmp_path: Path) -> None:
    for size, told in ((16_000, True), (800_000, False)):
        made = experiment(tmp_path, workload={"kind": "ring_allreduce", "bytes": size})
        said = short_sentence(made, first_of(made).ideal_s())
        assert (said is not None) == told
        assert said is None or "all bytes take 1.92 ms at the rates" in said
    made = experiment(tmp_path, fabric="fluid", workload={"kind": "ring_allreduce", "bytes": 800})
    assert short_sentence(made, first_of(made).ideal_s()) is None


def test_messages_that_are_short_for_uplinks_are_told(tmp_path: Path) -> None:
    fabric = {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "100 Mbit/s", "fabric_rate": "5 Mbit/s"}
    permutation = {"kind": "permutation", "bytes": 30_000, "shift": 1}
    made = experiment(tmp_path, topology={"leaf_spine": fabric}, workload=permutation)
    ideal_s = first_of(made).ideal_s()
    assert ideal_s > 0.004  # longer than hosts take for their bursts
    said = short_sentence(made, ideal_s)
    assert said is not None
    assert "all bytes take 48 ms at the rates" in said
