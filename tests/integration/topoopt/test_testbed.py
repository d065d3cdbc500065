# SPDX-License-Identifier: Apache-2.0
"""TopoOpt's testbed of twelve hosts (section 6) with real packets: every circuit carries what is predicted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from testbed.analysis.observations import Observations, RunRecord
from testbed.simulate.runs import ack_bytes, header_bytes, packet_bytes
from testbed.spec import Experiment, load
from tests.integration.topoopt.test_experiment import ROOT, ran

SPECS = ROOT / "experiments" / "topoopt"


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


def test_every_circuit_carries_the_predicted_bytes(tmp_path: Path) -> None:
    """An all-to-all, which hosts relay over up to three circuits."""
    experiment = load(SPECS / "testbed_alltoall.yaml")
    (run,) = Observations.load(ran(tmp_path, SPECS / "testbed_alltoall.yaml") / "observations.json").runs
    assert run.wrong_bytes == 0
    data = predicted(experiment, run, packet_bytes(experiment) + header_bytes(experiment), back=False)
    acknowledgements = predicted(experiment, run, ack_bytes(experiment), back=True)
    again = sum(entry.lane.retransmits for entry in run.lanes) * (packet_bytes(experiment) + header_bytes(experiment))
    circuits = {load.port: load.tx_bytes for load in run.links if load.port.startswith("ocs")}
    assert len(circuits) == 12 * 4
    for port, counted in circuits.items():
        assert data[port] > 0
        # Receivers acknowledge several packets at once; devices also send a few packets of their own, such as probes.
        assert data[port] <= counted <= 1.02 * (data[port] + acknowledgements[port]) + again
