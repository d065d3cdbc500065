# SPDX-License-Identifier: Apache-2.0
"""Rules on ranges of source ports in real routers: every port takes the path that is predicted, whatever the hash."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from emul import RoutedFabric
from emul.routed.requirements import lack
from netmodel import Flow, PortRef, Topology, clos, dump_topology, equal_cost_paths, forwarding, leaf_spine, path_of
from netmodel.port_ranges import PortRanges
from tests.integration.traffic import PORT, address, in_host

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

ROOT = Path(__file__).parents[3]
PORTS = [*range(49_152, 65_536, 97), 65_535]


@pytest.mark.parametrize(
    "topology",
    [clos(2, 2, 2, 2, 1, 100_000_000), leaf_spine(2, 3, 1, 100_000_000, parallel_links=2, ipv6=True)],
    ids=["three tiers", "parallel links, IPv6"],
)
def test_exported_rules_pin_every_port(topology: Topology, tmp_path: Path) -> None:
    file, folder = tmp_path / "fabric.yaml", tmp_path / "rules"
    file.write_text(dump_topology(topology))
    argv = [sys.executable, "-m", "testbed", "export", str(file), "--to", "linux-rules", "--output", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True)
    family = socket.AF_INET6 if topology.ipv6 else socket.AF_INET
    src, dst = topology.hosts[0].name, topology.hosts[-1].name
    with RoutedFabric(topology, log_dir=tmp_path / "logs") as fabric:
        for written in folder.iterdir():
            enter = ["nsenter", "--target", str(fabric._nodes.pid(written.stem)), "--net"]
            subprocess.run([*enter, "ip", "-6" if topology.ipv6 else "-4", "-batch", str(written)], check=True)

        def send() -> None:
            for port in PORTS:
                with socket.socket(family, socket.SOCK_DGRAM) as one:
                    one.bind((str(address(fabric, src)), port))
                    one.sendto(b"data", (str(address(fabric, dst)), PORT))

        in_host(fabric, src, send)
        seen: dict[int, set[PortRef]] = {port: set() for port in PORTS}
        for switch in topology.switches:
            for flow, out in fabric.observed_ports(switch.name).items():
                if flow == Flow(address(fabric, src), address(fabric, dst), flow.src_port) and flow.src_port in seen:
                    seen[flow.src_port].add(PortRef(switch.name, out))
    routes = forwarding(topology)
    ranges = PortRanges.of(topology, routes)
    ends = address(fabric, src), address(fabric, dst)
    expected = {
        port: {
            hop for hop in path_of(topology, Flow(*ends, port), ranges)[1:] if len(routes.groups[hop.node][ends[1]]) > 1
        }
        for port in PORTS
    }
    assert seen == expected
    assert len({frozenset(way) for way in seen.values()}) == len(equal_cost_paths(topology, src, dst))
