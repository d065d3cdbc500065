# SPDX-License-Identifier: Apache-2.0
"""The real NCCL over circuits: its rings +1 and +3 among four hosts, by the plugin on a NIC for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.analysis.observations import Observations
from testbed.nccl import devices
from testbed.spec import load
from tests.integration.topoopt.test_experiment import ROOT, ran
from tests.testbed.experiments import bandwidth_taxes, first_of

SPEC = ROOT / "experiments" / "topoopt" / "nccl_real.yaml"


@pytest.mark.timeout(300)
def test_each_ring_is_a_communicator_on_circuits_of_its_own(tmp_path: Path) -> None:
    if not devices.installed():
        pytest.skip("NCCL is not installed: `make nccl` installs it")
    folder, experiment = ran(tmp_path, SPEC), load(SPEC)
    (run,) = Observations.load(folder / "observations.json").runs
    assert run.wrong_bytes == 0
    for host in experiment.first_hosts:
        log = (folder / "logs" / f"agent-{host}.log").read_text()
        assert "via NET/paralet/0" in log
        assert "via NET/Socket" not in log
    assert bandwidth_taxes(experiment, run)[0] == 1.0
    each = 6 * experiment.spec.workload.bytes // 2 // 4  # six chunks, a fourth of a half
    sent = dict.fromkeys(((rank, first_of(experiment).address(rank, nic)) for rank in range(4) for nic in (0, 1)), 0)
    for entry in run.lanes:
        assert entry.lane.local is not None
        sent[entry.rank, entry.lane.local] += entry.lane.tx_bytes
    assert all(each <= count < 1.3 * each for count in sent.values())
    circuits = {load.port: load.tx_bytes for load in run.links if load.port.startswith("ocs")}
    assert len(circuits) == 4 * 2
    assert all(count > each for count in circuits.values())
