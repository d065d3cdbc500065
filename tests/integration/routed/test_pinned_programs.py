# SPDX-License-Identifier: Apache-2.0
"""Programs of others under `paralet pin` between routers: every connection takes the path that the service says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from emul.routed.requirements import lack
from netmodel import IPPROTO_TCP, LinuxL4Hash, PortRef
from sdn.path_service.replay import replay
from testbed.analysis.observations import Observations, SeenFlow
from tests.integration.paralet import ROOT, run

LACK = lack()
pytestmark = pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else "")

LEAVES, SPINES = 2, 4
MPI = Path(__file__).with_name("mpi")
UCX_PORT = 13337
TORCHRUN_PORT = 29400
MPI_PORTS = range(1024, 32768)
"""At which ranks listen. Open MPI's daemons have ports that the kernel chooses."""


def flows_of(
    tmp_path: Path, workload: dict[str, Any], hosts_per_leaf: int = 1, policy: str = "controller"
) -> list[SeenFlow]:
    """The connections of a run, from the side that connects, that routers have forwarded.

    All go as planned, and there are no others.
    """
    spec = {
        "name": "pinned-programs",
        "topology": {
            "leaf_spine": {
                "leaves": LEAVES,
                "spines": SPINES,
                "hosts_per_leaf": hosts_per_leaf,
                "host_rate": "20 Mbit/s",
            }
        },
        "fabric": "routed",
        "pinning": "hash",
        "workload": workload,
        "policies": [{"name": "pin", "policy": policy, "transport": "socket", "assign_wait_s": 60}],
        "timeouts": {"connect_s": 120},  # a busy machine takes long to import torch
        "seeds": 1,
    }
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    run(file, tmp_path / "results")
    folder = tmp_path / "results" / "pinned-programs"
    said: dict[tuple[str, str, int], list[str]] = {}
    for step in replay([folder / "logs" / "path-service-pin-1.jsonl"], lambda name, topology: LinuxL4Hash()):
        for flow in step.service.flows(1000):
            said |= {(flow["device"], flow["peer"], port): flow["path"] for port in flow["ports"]}
    (observed,) = Observations.load(folder / "observations.json").runs
    flows = [seen for seen in observed.seen if seen.protocol == IPPROTO_TCP]
    planned = [seen for seen in flows if (seen.src, seen.dst, seen.src_port) in said]
    for seen in planned:
        assert {*seen.ports} <= {*said[seen.src, seen.dst, seen.src_port]}
    answered = {(seen.dst, seen.dst_port, seen.src, seen.src_port): seen for seen in planned}
    for seen in flows:
        if seen not in planned:
            there = answered[seen.src, seen.src_port, seen.dst, seen.dst_port]
            assert spines(seen) == spines(there), "answers come back over the same links"
    return planned


def spines(flow: SeenFlow) -> set[int]:
    """The ports of leaves by which a flow goes up. All leaves have the same spine at the same port."""
    return {port.port for port in map(PortRef.parse, flow.ports) if port.node.startswith("leaf")}


def uplinks(flows: list[SeenFlow]) -> list[int]:
    """How many of these flows the spines carry, in ascending order."""
    nodes = Counter(port for seen in flows for port in seen.ports if PortRef.parse(port).node.startswith("leaf"))
    return sorted(nodes.values())


def test_iperf3_with_eight_connections(tmp_path: Path) -> None:
    """A connection for control comes first. It and eight for data are spread over four spines."""
    server = {"run": "iperf3 -s -1 --forceflush", "ready": "Server listening"}
    commands = ["iperf3 -c $ADDRESS_1 -P 8 -n 2M", server]
    workload = {"kind": "command", "bytes": "2 MiB", "pairs": [[0, 1]], "commands": commands}
    flows = flows_of(tmp_path, workload)
    assert {seen.dst_port for seen in flows} == {5201}
    assert uplinks(flows) == [2, 2, 2, 3]


def test_paths_that_were_planned_before_a_run(tmp_path: Path) -> None:
    """All connections of a pair take its path. The hosts are told it."""
    program = f"PYTHONPATH={ROOT} {sys.executable} {Path(__file__).with_name('told_paths.py')}"
    senders = [f"{program} connect $ADDRESS_{peer} 3" for peer in (2, 3)]
    takers = [{"run": f"{program} take $ADDRESS_{rank} 3", "ready": "ready"} for rank in (2, 3)]
    workload = {"kind": "command", "bytes": "30 KB", "pairs": [[0, 2], [1, 3]], "commands": [*senders, *takers]}
    flows = flows_of(tmp_path, workload, hosts_per_leaf=2, policy="pinned")
    assert uplinks(flows) == [3, 3]
    logs = tmp_path / "results" / "pinned-programs" / "logs"
    for host in ("h1", "h2"):
        (line,) = re.findall(r"^\{.*\}$", (logs / f"agent-{host}.log").read_text(), re.MULTILINE)
        told = {int(port): path for port, path in json.loads(line).items()}
        own = {seen.src_port: seen.ports for seen in flows if seen.src == {"h1": "10.0.0.1", "h2": "10.0.0.2"}[host]}
        assert own.keys() == told.keys()
        assert all({*own[port]} < {*told[port]} for port in own)


@pytest.mark.skipif(shutil.which("mpicc") is None, reason="mpicc is missing: apt install libopenmpi-dev openmpi-bin")
def test_an_mpi_program(tmp_path: Path) -> None:
    """Open MPI over TCP: a ring of four hosts, two behind each leaf. Its daemons' connections are planned, too."""
    program, hosts = tmp_path / "ring", tmp_path / "hosts"
    subprocess.run(["mpicc", "-O1", "-o", program, MPI / "ring.c"], check=True)
    hosts.mkdir()
    chosen = {
        "plm_rsh_agent": str(MPI / "remote.sh"),
        "btl": "tcp,self",
        "btl_tcp_if_include": "10.0.0.0/8",
        "oob_tcp_if_include": "10.0.0.0/8",
    }
    # Open MPI 5 takes an address of the host itself for one more host, on which it starts nothing.
    ranks = "localhost," + ",".join(f"$ADDRESS_{rank}" for rank in (1, 2, 3))
    words = " ".join(f"--mca {name} {value}" for name, value in chosen.items())
    words += f" --mca btl_tcp_port_range_v4 {len(MPI_PORTS)}"
    start = f"mpirun --allow-run-as-root {words} --host {ranks} {program} 500000"
    own = {"run": f"{start}; status=$?; touch $HOSTS/done; exit $status"}
    others = [{"run": f"{MPI}/host.sh $ADDRESS_{rank}", "ready": "ready"} for rank in (1, 2, 3)]
    commands = [{**command, "environment": {"HOSTS": str(hosts)}} for command in (own, *others)]
    pairs = [[rank, (rank + 1) % 4] for rank in range(4)]
    workload = {"kind": "command", "bytes": "500 KB", "pairs": pairs, "commands": commands}
    flows = flows_of(tmp_path, workload, hosts_per_leaf=2)
    between = {(seen.src, seen.dst) for seen in flows if seen.dst_port in MPI_PORTS}
    assert between == {("10.0.0.2", "10.0.1.1"), ("10.0.1.2", "10.0.0.1")}


@pytest.mark.skipif(shutil.which("ucx_perftest") is None, reason="ucx_perftest is missing: apt install ucx-utils")
def test_ucx_over_tcp(tmp_path: Path) -> None:
    """UCX connects for data at a port of its own, beside the connection by which the program meets its peer."""
    script = str(Path(__file__).with_name("ucx.sh"))
    server = {"run": f"{script} $ADDRESS_1 {UCX_PORT}", "ready": "ready"}
    commands = [f"{script} $ADDRESS_0 {UCX_PORT} $ADDRESS_1", server]
    workload = {"kind": "command", "bytes": "2 MB", "pairs": [[0, 1]], "commands": commands}
    flows = flows_of(tmp_path, workload)
    assert UCX_PORT in {seen.dst_port for seen in flows}
    assert {seen.dst_port for seen in flows} != {UCX_PORT}


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: run 'make torch'")
@pytest.mark.long
def test_data_parallel_training_by_torchrun(tmp_path: Path) -> None:
    """DDP over Gloo, which connects each rank to each other one. torchrun's own connections are planned, too."""
    training = f"{ROOT}/experiments/torch/transformer.py --backend gloo --steps 2 --layers 2 --width 64 --batch 2"
    start = f"PYTHONPATH={ROOT} {Path(__file__).with_name('torchrun.sh')} {sys.executable}"
    commands = [f"{start} $ADDRESS_{rank} $ADDRESS_0 4 {training}" for rank in range(4)]
    pairs = [[rank, (rank + 1) % 4] for rank in range(4)]
    workload = {"kind": "command", "bytes": 424576, "pairs": pairs, "commands": commands}
    flows = flows_of(tmp_path, workload, hosts_per_leaf=2)
    hosts = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2"]
    met = {frozenset((seen.src, seen.dst)) for seen in flows if seen.dst_port != TORCHRUN_PORT}
    assert met == {frozenset((one, other)) for one in hosts[:2] for other in hosts[2:]}
    assert TORCHRUN_PORT in {seen.dst_port for seen in flows}
    reports = (tmp_path / "results" / "pinned-programs" / "logs" / "agent-h4.log").read_text()
    assert len(re.findall(r'^\{"step": \d, "loss": ', reports, re.MULTILINE)) == 2


@pytest.mark.long
def test_a_connection_that_breaks_with_its_path_comes_back_on_another_one(tmp_path: Path) -> None:
    """A link loses all packets, and no carrier tells. Each of four connections has a spine of its own before."""
    program, dead = f"python3 {Path(__file__).with_name('resuming_sender.py')}", "leaf1:3"
    commands = [f"{program} send $ADDRESS_1 4", {"run": f"{program} take $ADDRESS_1", "ready": "ready"}]
    spec = {
        "name": "resuming",
        "topology": {"leaf_spine": {"leaves": LEAVES, "spines": SPINES, "hosts_per_leaf": 1, "host_rate": "20 Mbit/s"}},
        "fabric": "routed",
        "pinning": "hash",
        "workload": {"kind": "command", "bytes": "1 MB", "pairs": [[0, 1]], "commands": commands},
        "policies": [{"name": "pin", "policy": "controller", "transport": "socket", "assign_wait_s": 60}],
        # Again for a program that starts so late that the routers have left the link already.
        "events": [{"at_s": 3.0 + 10 * n, "links": {dead: lost}} for n, lost in enumerate([{"loss": "100 %"}, {}] * 3)],
        "seeds": 1,
    }
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    run(file, tmp_path / "results")
    folder = tmp_path / "results" / "resuming"
    (said,) = re.findall(r"^came back from ([\d ]+)$", (folder / "logs" / "agent-h1.log").read_text(), re.MULTILINE)
    (observed,) = Observations.load(folder / "observations.json").runs
    paths = {seen.src_port: seen.ports for seen in observed.seen if str(seen.src) == "10.0.0.1"}
    assert all(dead not in paths[int(port)] for port in said.split())
