# SPDX-License-Identifier: Apache-2.0
"""Leaves and spines connected by an optical switch: routes follow circuits, and OCS-vClos isolates jobs.

leaf1: h1 h2, leaf2: h3 h4, each leaf with two cables to ocs1, spine1 and spine2 with two each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emul import MininetFabric
from netmodel import Circuits, PortRef, TopologyError, duplex, leaf_spine, links_with_circuits
from sdn.isolation.virtual_clos import SubClos, VirtualClos
from tests.integration.vclos.packets import arrives, is_lost

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MininetFabric]:
    topology = leaf_spine(2, 2, 2, 100_000_000, optical_switches=1)
    with MininetFabric(topology, log_dir=tmp_path_factory.mktemp("fabric")) as made:
        yield made


@pytest.fixture(autouse=True)
def dark(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restores the fabric's initial state after each test."""
    yield
    if "fabric" in request.fixturenames:
        fabric: MininetFabric = request.getfixturevalue("fabric")
        fabric.steer(None)
        fabric.set_circuits({"ocs1": {}}, 0)


def patched(fabric: MininetFabric, *pairs: Sequence[tuple[str, int]]) -> Circuits:
    """The circuits that join these ports of leaves and spines."""
    ends = [[fabric.topology.peer(PortRef(*port)).port for port in pair] for pair in pairs]
    return {"ocs1": duplex([(a, b) for a, b in ends])}


@pytest.mark.sandboxed
def test_routes_follow_the_circuits(fabric: MininetFabric) -> None:
    assert arrives(fabric, "h1", "h2")
    assert is_lost(fabric, "h1", "h3")
    fabric.set_circuits(patched(fabric, [("leaf1", 3), ("leaf2", 3)]))  # from leaf to leaf
    assert arrives(fabric, "h1", "h3")
    assert arrives(fabric, "h4", "h2")
    spines = patched(fabric, [("leaf1", 4), ("spine2", 1)], [("leaf2", 3), ("spine2", 2)])
    before = fabric.link_counters()
    fabric.set_circuits(spines)
    assert arrives(fabric, "h1", "h3")
    after = fabric.link_counters()
    for port in (PortRef("leaf1", 4), PortRef("spine2", 2)):
        assert after[port].tx_packets > before[port].tx_packets
    assert after[PortRef("leaf1", 3)].tx_packets == before[PortRef("leaf1", 3)].tx_packets
    cable = fabric.topology.link_at(PortRef("spine2", 2))
    assert len(links_with_circuits(fabric.topology, spines, [cable])) == 1
    fabric.set_link(cable, up=False)  # the spine's cable: leaf1 has to hear of it too
    assert is_lost(fabric, "h1", "h3")
    fabric.set_link(cable, up=True)
    assert arrives(fabric, "h1", "h3")
    with pytest.raises(TopologyError, match="used twice"):
        fabric.set_circuits({"ocs1": {1: 3, 2: 3}})
    assert arrives(fabric, "h1", "h3")


@pytest.mark.sandboxed
def test_ports_are_dark_during_a_reconfiguration(fabric: MininetFabric) -> None:
    fabric.set_circuits(patched(fabric, [("leaf1", 3), ("leaf2", 3)]))
    assert arrives(fabric, "h1", "h3")
    with ThreadPoolExecutor(1) as pool:
        turning = pool.submit(fabric.set_circuits, patched(fabric, [("leaf1", 4), ("leaf2", 4)]), 5.0)
        was_dark = False
        while not was_dark and not turning.done():
            was_dark = is_lost(fabric, "h1", "h3")
        turning.result()
    assert was_dark
    before = fabric.link_counters()[PortRef("leaf2", 4)].rx_packets
    assert arrives(fabric, "h1", "h3")
    assert fabric.link_counters()[PortRef("leaf2", 4)].rx_packets > before


@pytest.mark.sandboxed
def test_jobs_have_separate_circuits(fabric: MininetFabric) -> None:
    own = {number: [("leaf1", number), ("leaf2", number)] for number in (3, 4)}
    jobs = [
        SubClos(name, hosts, tuple(PortRef(*port) for port in own[number]))
        for name, hosts, number in (("a", ("h1", "h3"), 3), ("b", ("h2", "h4"), 4))
    ]
    with pytest.raises(ValueError, match="leaf1:3 is not a leaf's port to a spine"):
        fabric.steer(VirtualClos(tuple(jobs)))  # its circuits are not there yet
    fabric.set_circuits(patched(fabric, *own.values()))
    fabric.steer(VirtualClos(tuple(jobs)))
    before = fabric.link_counters()
    assert arrives(fabric, "h1", "h3")
    assert arrives(fabric, "h4", "h2")
    after = fabric.link_counters()
    for job in jobs:
        assert any(after[port].tx_packets > before[port].tx_packets for port in job.uplinks)
    assert is_lost(fabric, "h1", "h4")
    assert {port: count for port, count in fabric.strays().items() if count} == {PortRef("leaf1", 1): 1}
    with pytest.raises(ValueError, match="leaf1:4 is not a leaf's port to a spine"):
        fabric.set_circuits(patched(fabric, own[3]))  # it would take job b's circuit away
    assert arrives(fabric, "h2", "h4")


@pytest.mark.timeout(300)
def test_a_job_that_does_not_fit_fixed_cables_runs_on_circuits(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from testbed.cli import main; main()", "run", "experiments/vclos/ocs_vclos.yaml"]
    options = ["--policy", "vclos", "--seeds", "1", "--json", "--results", str(tmp_path)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    (policy,) = summary["policies"]
    assert policy["verified"]
    assert summary["predictions"]["matched"] == summary["predictions"]["checked"] > 0
    page = (tmp_path / "ocs_vclos" / "report.html").read_text()
    assert "leaf1:5 – leaf2:6" in page
