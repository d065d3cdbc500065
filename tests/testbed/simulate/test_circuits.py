# SPDX-License-Identifier: Apache-2.0
"""Specs on direct-connect fabrics on both models: circuits carry what is predicted, also through relays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.analysis.flows import RunFlows
from testbed.analysis.metrics import loads, uplinks
from testbed.simulate.runs import packet_bytes
from testbed.spec import Experiment, load
from tests.testbed.experiments import bandwidth_taxes, experiment, first_of, setting_of
from tests.testbed.simulate.small import ACK_BYTES, HEADER_BYTES, observe

SPECS = Path(__file__).parents[3] / "experiments" / "topoopt"
PACKETS = 64
"""Full packets of each transfer, so that headers add the same part everywhere."""


def direct(folder: Path, **changes: Any) -> Experiment:
    common: dict[str, Any] = {
        "topology": {"direct_connect": {"hosts": 8, "degree": 2, "rate": "10 Mbit/s"}},
        "optical": {"strides": [1, 3]},
        "workload": {"kind": "ring_allreduce", "strides": [1, 3], "bytes": 8 * 2 * PACKETS * 1024},
        "placement": {"rule": "in_order"},
        "policies": [{"name": "direct", "policy": "ecmp"}],
        "seeds": 1,
        "path_mtu": 1024,
        "fabric": "fluid",
    }
    return experiment(folder, **{**common, **changes})


EACH = pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workload": {"kind": "pairwise_alltoall", "bytes": 8 * PACKETS * 1024}},
        {"optical": {"strides": [1]}, "workload": {"kind": "pairwise_alltoall", "bytes": 8 * PACKETS * 1024}},
        {"optical": {"find": True}, "workload": {"kind": "permutation", "shift": 3, "bytes": PACKETS * 1024}},
        {"jobs": 2, "workload": {"kind": "pairwise_alltoall", "bytes": 4 * PACKETS * 1024}},
        {
            "topology": {"direct_connect": {"hosts": 5, "degree": 2, "rate": "10 Mbit/s"}},
            "optical": {"strides": [1, 2], "routes": "least_load"},
            "workload": {"kind": "pairwise_alltoall", "bytes": 5 * PACKETS * 1024, "slices": 8},
        },
        {
            "topology": {"direct_connect": {"hosts": 4, "degree": 3, "rate": "10 Mbit/s"}},
            "optical": {"find": True},
            "jobs": 2,
            "workload": {"kind": "permutation", "shift": 1, "bytes": PACKETS * 1024},
        },
    ],
    ids=[
        "all-reduce",
        "all-to-all",
        "one ring",
        "found",
        "two jobs",
        "several routes",
        "degree above a shard's servers",
    ],
)


@EACH
def test_circuits_carry_what_is_predicted(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = direct(tmp_path, **changes)
    run = observe(made).runs[0]
    links, payload = uplinks(made.topology), packet_bytes(made)
    part = (payload + HEADER_BYTES + ACK_BYTES) / payload
    predicted = RunFlows(first_of(made), run).predicted_loads(link.port for link in links)
    assert sum(predicted) > 0
    assert loads(run, links) == pytest.approx([count * part for count in predicted], rel=1e-4)
    wanted, counted = bandwidth_taxes(made, run)
    assert counted == pytest.approx(part * wanted, rel=1e-4)
    assert run.completion_s >= first_of(made).ideal_s()


def test_an_all_reduce_on_circuits_of_its_own_takes_the_serialisation_time(tmp_path: Path) -> None:
    made = direct(tmp_path)
    run, payload = observe(made).runs[0], packet_bytes(made)
    sent_s = first_of(made).ideal_s() * (payload + HEADER_BYTES + ACK_BYTES) / payload
    steps = 2 * 7
    last_s = steps * 8 * (payload + HEADER_BYTES) / 10e6  # an optical switch is a hop, which passes whole packets on
    assert run.completion_s == pytest.approx(sent_s + last_s, rel=0.02)


def test_shared_routes_halve_the_load_of_the_papers_testbed(tmp_path: Path) -> None:
    document = yaml.safe_load((SPECS / "testbed_alltoall.yaml").read_text()) | {"fabric": "fluid"}
    made = experiment(tmp_path, **document)
    document["optical"]["routes"] = "least_load"
    several = experiment(tmp_path, **document)
    # 20 hops to the 11 other hosts, evenly on 4 circuits of every host.
    block = document["workload"]["bytes"] / 12
    assert first_of(several).ideal_s() == pytest.approx(20 / 4 * 8 * block / 5e6)
    assert first_of(made).ideal_s() == pytest.approx(2 * first_of(several).ideal_s())


def test_relaying_takes_the_circuits_of_others(tmp_path: Path) -> None:
    """On one ring, an all-to-all of 7 blocks per host needs 1 + 2 + .. + 7 blocks on each circuit."""
    workload = {"kind": "pairwise_alltoall", "bytes": 8 * PACKETS * 1024}
    made = direct(tmp_path, optical={"strides": [1]}, workload=workload)
    run = observe(made).runs[0]
    assert bandwidth_taxes(made, run)[0] == pytest.approx(4.0)
    assert {lane.lane.local for lane in run.lanes} == {first_of(made).address(rank, 0) for rank in range(8)}


@EACH
def test_packets_take_the_circuits_that_are_predicted_and_as_long_as_on_the_fluid_model(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    made = direct(tmp_path, **changes, fabric="packet")
    run, flowing = observe(made).runs[0], observe(made, "fluid").runs[0]
    setting, payload = setting_of(made), packet_bytes(made)
    data: Counter[str] = Counter()
    acknowledgements: Counter[str] = Counter()
    for carried in first_of(made).carried(first_of(made).transfers):
        packets = carried.bytes // payload
        for port in setting.path(made.topology, *carried.way.ends):
            data[str(port)] += packets * (payload + HEADER_BYTES)
        for port in setting.path(made.topology, *reversed(carried.way.ends)):
            acknowledgements[str(port)] += packets * ACK_BYTES
    for link in run.links:
        left = data[link.port] + acknowledgements[link.port] - link.tx_bytes
        # The simulation ends with the last delivery, when the last acknowledgements are on their way.
        assert 0 <= left <= 0.1 * acknowledgements[link.port]
    assert sum(entry.lane.retransmits for entry in run.lanes) == 0
    # Steps of an all-reduce wait for each other, and acknowledgements go back over three circuits; the fluid model has
    # them on those of the data.
    longest = 1.4 if made.spec.workload.kind == "ring_allreduce" else 1.05
    assert 0.95 <= run.completion_s / flowing.completion_s <= longest
    assert run.completion_s >= first_of(made).ideal_s()


def over_switch(name: str) -> tuple[float, float]:
    """The paper's testbed: time over that of a switch of four times the rate, and the bandwidth tax."""
    on_circuits, on_switch = (load(SPECS / f"testbed{which}{name}.yaml", fabric="fluid") for which in ("", "_switch"))
    circuits, switch = (observe(made).runs[0] for made in (on_circuits, on_switch))
    return circuits.completion_s / switch.completion_s, bandwidth_taxes(on_circuits, circuits)[0]


def test_an_all_reduce_on_the_papers_testbed_takes_as_long_as_on_a_switch_of_four_times_the_rate() -> None:
    ratio, tax = over_switch("")
    assert tax == 1.0
    assert ratio == pytest.approx(1.0, abs=0.02)


def test_an_all_to_all_on_the_papers_testbed_is_relayed() -> None:
    """On the rings 1, 5, 7 and 11, the eleven other hosts are 20 circuits away together. All hosts send over
    one distance at every step, so other circuits are idle."""
    ratio, tax = over_switch("_alltoall")
    assert tax == pytest.approx(20 / 11)
    assert tax < ratio < 4 * tax
