# SPDX-License-Identifier: Apache-2.0
"""TopoOpt's testbed of twelve hosts (section 6) with real packets: every circuit carries what is predicted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import yaml

from testbed.analysis.observations import Observations, RunRecord
from testbed.simulate.runs import ack_bytes, header_bytes, packet_bytes
from testbed.spec import Experiment, Instance, load
from tests.integration.topoopt.test_experiment import ROOT, ran
from tests.testbed.experiments import first_of, setting_of

SPECS = ROOT / "experiments" / "topoopt"


def predicted(experiment: Experiment, run: RunRecord, size: int, *, back: bool) -> Counter[str]:
    """By port: bytes of a packet of `size` for each packet of data, on the way of data or of acknowledgements."""
    instance = Instance(experiment, run.seed)
    setting = setting_of(experiment)
    found: Counter[str] = Counter()
    for carried in instance.carried(instance.transfers):
        for port in setting.path(experiment.topology, *(reversed(carried.way.ends) if back else carried.way.ends)):
            found[str(port)] += -(-carried.bytes // packet_bytes(experiment)) * size
    return found


def check_circuits(tmp_path: Path, spec: Path, count: int) -> Experiment:
    """Run a spec and check that each of so many circuits carries the predicted bytes."""
    experiment = load(spec)
    (run,) = Observations.load(ran(tmp_path, spec) / "observations.json").runs
    assert run.wrong_bytes == 0
    data = predicted(experiment, run, packet_bytes(experiment) + header_bytes(experiment), back=False)
    acknowledgements = predicted(experiment, run, ack_bytes(experiment), back=True)
    again = sum(entry.lane.retransmits for entry in run.lanes) * (packet_bytes(experiment) + header_bytes(experiment))
    circuits = {load.port: load.tx_bytes for load in run.links if load.port.startswith("ocs")}
    assert len(circuits) == count
    for port, counted in circuits.items():
        assert data[port] > 0
        # Receivers acknowledge several packets at once; devices also send a few packets of their own, such as probes.
        assert data[port] <= counted <= 1.02 * (data[port] + acknowledgements[port]) + again
    return experiment


def test_every_circuit_carries_the_predicted_bytes(tmp_path: Path) -> None:
    """An all-to-all, which hosts relay over up to three circuits."""
    check_circuits(tmp_path, SPECS / "testbed_alltoall.yaml", 12 * 4)


def test_pairs_with_two_routes_share_their_bytes_out_as_predicted(tmp_path: Path) -> None:
    """Of five hosts on the rings +1 and +2, no routes of whole pairs load circuits as little."""
    document = yaml.safe_load((SPECS / "testbed_alltoall.yaml").read_text())
    document["topology"]["direct_connect"] |= {"hosts": 5, "degree": 2}
    document["optical"] = {"strides": [1, 2], "routes": "least_load"}
    document["workload"] |= {"bytes": 5 * 8 * 16 * 1024, "slices": 8}
    document["path_mtu"] = 1024
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(document))
    made = check_circuits(tmp_path, spec, 5 * 2)
    first = first_of(made)
    routes = Counter((carried.source, carried.destination) for carried in first.carried(first.transfers))
    assert Counter(routes.values()) == {1: 15, 2: 5}
    document["optical"]["routes"] = "one"
    spec.write_text(yaml.safe_dump(document))
    assert first.ideal_s() < 0.95 * first_of(load(spec)).ideal_s()
