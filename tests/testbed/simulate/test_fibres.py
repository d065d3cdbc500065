# SPDX-License-Identifier: Apache-2.0
"""A fibre of a direct-connect fabric fails on the fluid model: over which circuits, and how fast, the ring goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.analysis.observations import RunRecord
from testbed.analysis.recovery import fused_ports, recovery_s
from testbed.errors import TestbedError
from testbed.spec import Experiment
from tests.testbed.experiments import experiment
from tests.testbed.simulate.small import observe

BYTES = 8 * 1024 * 1024
"""Of the all-reduce on one ring of eight hosts: 11.7 s at 10 Mbit/s."""
CUT = {"at_s": 3.0, "cut": "ocs1:3"}
SWAP = {"at_s": 5.0, "swap": "ocs1:3"}


def ring(folder: Path, *events: dict[str, Any], **changes: Any) -> tuple[Experiment, RunRecord]:
    """An all-reduce on the ring +1 of NIC 0; the ring +3 of NIC 1 is for other traffic."""
    common: dict[str, Any] = {
        "topology": {"direct_connect": {"hosts": 8, "degree": 2, "rate": "10 Mbit/s"}},
        "optical": {"strides": [1, 3], "reconfiguration_s": 0.2},
        "workload": {"kind": "ring_allreduce", "bytes": BYTES},
        "placement": {"rule": "in_order"},
        "policies": [{"name": "direct", "policy": "ecmp"}],
        "seeds": 1,
        "path_mtu": 4096,
        "fabric": "fluid",
        "fluid": {"reroute_s": 0.5},
        "events": list(events),
    }
    made = experiment(folder, **{**common, **changes})
    return made, observe(made).runs[0]


def sent(run: RunRecord, port: str) -> int:
    return next(link.tx_bytes for link in run.links if link.port == port)


def test_the_ring_goes_on_over_the_link_for_model_parallelism(tmp_path: Path) -> None:
    _, whole = ring(tmp_path)
    made, healed = ring(tmp_path, CUT)
    # It stands still until the hosts know. Then two hops of eight share circuits of the idle ring +3.
    assert healed.completion_s - whole.completion_s >= 0.5
    assert recovery_s(healed, fused_ports(made)) == [pytest.approx(0.5, abs=0.1)]
    assert sent(whole, "ocs2:3") == 0
    assert sent(healed, "ocs2:3") > 0.5 * sent(whole, "ocs1:3")
    assert sent(healed, "ocs1:3") < 0.4 * sent(whole, "ocs1:3")


THREE: dict[str, Any] = {
    "topology": {"direct_connect": {"hosts": 8, "degree": 3, "rate": "10 Mbit/s"}},
    "optical": {"strides": [1, 3, 5], "reconfiguration_s": 0.2},
}
BOTH: dict[str, Any] = {"workload": {"kind": "ring_allreduce", "strides": [1, 3], "bytes": 2 * BYTES}}


@pytest.mark.parametrize(
    ("changes", "times_s"),
    [
        ({}, (12.1, 12.6, 13.3)),  # healed hops of three circuits share none
        ({**THREE, **BOTH}, (12.1, 21.2, 14.0)),  # they share circuits of the third ring, until these are swapped
        (BOTH, (12.1, 21.2, 37.6)),  # a swap breaks the other ring in four places
    ],
    ids=["one ring of two", "two rings of three", "two rings of two"],
)
def test_the_times_of_the_page(tmp_path: Path, changes: dict[str, Any], times_s: tuple[float, ...]) -> None:
    found = [ring(tmp_path, *events, **changes)[1].completion_s for events in ((), (CUT,), (CUT, SWAP))]
    assert found == pytest.approx(times_s, abs=0.05)


def test_with_two_rings_per_host_a_recovery_is_not_measured(tmp_path: Path) -> None:
    """The hosts of the dead fibre go on at half their rate, over the other ring, while the first one stands still."""
    made, run = ring(tmp_path, CUT, **BOTH)
    assert run.events[0].concerned
    assert recovery_s(run, fused_ports(made)) == [None]


def test_a_mended_fibre_has_the_ring_again(tmp_path: Path) -> None:
    _, whole = ring(tmp_path)
    _, mended = ring(tmp_path, CUT, {"at_s": 4.0, "mend": "ocs1:3"})
    assert 0 < sent(mended, "ocs2:3") < 0.1 * sent(whole, "ocs1:3")


def test_a_mend_leaves_swapped_circuits_alone(tmp_path: Path) -> None:
    _, run = ring(tmp_path, CUT, {"at_s": 3.0, "cut": "ocs3:3"}, SWAP, {"at_s": 7.0, "mend": "ocs3:3"}, **THREE)
    assert sent(run, "ocs2:3") > 0
    assert sent(run, "ocs3:3") == 0


def test_a_ring_without_another_link_waits_for_the_mend(tmp_path: Path) -> None:
    one = {
        "topology": {"direct_connect": {"hosts": 8, "degree": 1, "rate": "10 Mbit/s"}},
        "optical": {"strides": [1]},
    }
    with pytest.raises(TestbedError, match="a link on the path from rank 1 to rank 2 is dead"):
        ring(tmp_path, CUT, **one)
    _, whole = ring(tmp_path, **one)
    _, mended = ring(tmp_path, CUT, {"at_s": 4.0, "mend": "ocs1:3"}, **one)
    assert mended.completion_s == pytest.approx(whole.completion_s + 1.0, abs=0.1)  # its hosts had no other way


def test_data_do_not_flow_over_circuits_that_a_swap_has_taken_away(tmp_path: Path) -> None:
    """All cables of the circuit h4 to h3 live, but after the swap it is gone, and no light arrives at h3."""
    four = {
        "topology": {"direct_connect": {"hosts": 4, "degree": 2, "rate": "10 Mbit/s"}},
        "workload": {"kind": "ring_allreduce", "strides": [3], "bytes": 8 * BYTES},  # first transfers take 13 s
    }
    events = (CUT, {"at_s": 3.0, "cut": "ocs2:2"}, SWAP)
    with pytest.raises(TestbedError, match="rank 0 to rank 3 is dead, or a swap has taken away a circuit of it"):
        ring(tmp_path, *events, **four)
    _, run = ring(tmp_path, *events, {"at_s": 12.0, "mend": "ocs2:2"}, **four)
    arrived = {sample.at_s: sample.tx_bytes["ocs2:3"] for sample in run.samples}
    cut_off = [count for at_s, count in arrived.items() if 6.0 < at_s < 12.0]
    assert len(cut_off) > 2
    assert 0 < min(cut_off) == max(cut_off) < max(arrived.values())
