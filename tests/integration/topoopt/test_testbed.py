# SPDX-License-Identifier: Apache-2.0
"""TopoOpt's testbed of twelve hosts (section 6) with real packets: every circuit carries what is predicted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from testbed.analysis.jobs import ideal_at
from testbed.analysis.observations import Observations, RunRecord
from testbed.simulate.runs import ACK_BYTES, HEADER_BYTES, packet_bytes
from testbed.spec import Experiment, load
from tests.integration.topoopt.test_experiment import ROOT, ran

SPECS = ROOT / "experiments" / "topoopt"


def made(name: str) -> Experiment:
    return load(SPECS / f"{name}.yaml")


def predicted(experiment: Experiment, run: RunRecord, size: int, *, back: bool) -> Counter[str]:
    """By port: bytes of a packet of `size` for each packet of data, on the way of data or of acknowledgements."""
    setting = experiment.at(run.seed).setting
    assert setting is not None
    found: Counter[str] = Counter()
    for flow in run.flows:
        connection = setting.plan.connections[experiment.hosts[flow.src], experiment.hosts[flow.dst]]
        ends = (connection.remote, connection.local) if back else (connection.local, connection.remote)
        for port in setting.path(experiment.topology, *ends):
            found[str(port)] += -(-flow.bytes // packet_bytes(experiment)) * size
    return found


@pytest.mark.parametrize("name", ["testbed", "testbed_alltoall"])
def test_every_circuit_carries_the_predicted_bytes(tmp_path: Path, name: str) -> None:
    experiment = made(name)
    (run,) = Observations.load(ran(tmp_path, SPECS / f"{name}.yaml") / "observations.json").runs
    assert run.wrong_bytes == 0
    data = predicted(experiment, run, packet_bytes(experiment) + HEADER_BYTES, back=False)
    acknowledgements = predicted(experiment, run, ACK_BYTES, back=True)
    again = sum(entry.lane.retransmits for entry in run.lanes) * (packet_bytes(experiment) + HEADER_BYTES)
    circuits = {load.port: load.tx_bytes for load in run.links if load.port.startswith("ocs")}
    assert len(circuits) == 12 * 4
    for port, counted in circuits.items():
        assert data[port] > 0
        # Receivers acknowledge several packets at once; devices also send a few packets of their own, such as probes.
        assert data[port] <= counted <= 1.02 * (data[port] + acknowledgements[port]) + again


@pytest.mark.parametrize(("name", "taxed"), [("testbed", 1.0), ("testbed_alltoall", 20 / 11)])
def test_a_switch_of_four_times_the_rate_has_the_same_ideal_time(name: str, taxed: float) -> None:
    """The ideal time knows no relays. With them, an all-to-all needs 20 / 11 of the bytes."""
    on_circuits, on_switch = made(name), made(name.replace("testbed", "testbed_switch"))
    assert ideal_at(on_circuits, 1) == pytest.approx(ideal_at(on_switch, 1), rel=0.1)
    setting = on_circuits.setting
    assert setting is not None
    hops = [connection.there.hops for connection in setting.plan.connections.values()]
    assert len(hops) == 12 * 11
    if taxed > 1:
        assert sum(hops) / len(hops) == pytest.approx(taxed)
