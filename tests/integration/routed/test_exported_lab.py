# SPDX-License-Identifier: Apache-2.0
"""A lab as `paralet export --to containerlab-frr` writes it, in namespaces: all hosts reach each other.

This does what containerlab would do with the file; its containers would differ from these namespaces in FRR's version.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from emul import commands
from emul.routed.nodes import Nodes
from emul.routed.requirements import lack, program
from testbed.cli import main

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

REACHED_WITHIN_S = 60.0
# By daemon, in the order of their start: a socket that it has when it takes commands. mgmtd, which FRR 8 lacks, takes
# those on addresses and static routes from FRR 10 on; FRR's own start script starts it.
DAEMONS = {"zebra": "zserv.api", "mgmtd": "mgmtd.vty", "staticd": "staticd.vty", "bgpd": "bgpd.vty"}
SPECS: dict[str, dict[str, Any]] = {
    "three tiers": {
        "topology": {
            "clos": {"pods": 2, "leaves": 1, "aggs": 2, "cores_per_agg": 1, "hosts_per_leaf": 1, "host_rate": "1G"}
        },
    },
    "two tiers, IPv6, links without addresses": {
        "topology": {"leaf_spine": {"leaves": 2, "spines": 1, "hosts_per_leaf": 1, "host_rate": "1G", "ipv6": True}},
        "routers": {"unnumbered": True},
    },
}


@contextmanager
def deployed(folder: Path) -> Iterator[Nodes]:
    """The lab of a folder, while open: its nodes' namespaces, links, settings, daemons and commands."""
    (file,) = folder.glob("*.clab.yml")
    lab = yaml.safe_load(file.read_text())["topology"]
    routers = [name for name, node in lab["nodes"].items() if "frr" in node["image"]]
    nodes = Nodes([name for name in lab["nodes"] if name not in routers], routers)
    daemons = []
    try:
        enter = {name: ["mnexec", "-a", str(nodes.pid(name))] for name in lab["nodes"]}
        for name, node in lab["nodes"].items():
            for setting, value in node.get("sysctls", {}).items():
                commands.run([*enter[name], "sysctl", "-qw", f"{setting}={value}"])
            commands.run([*enter[name], "ip", "link", "set", "dev", "lo", "up"])
        for link in lab["links"]:
            (a, a_port), (b, b_port) = (end.split(":") for end in link["endpoints"])
            ends = [f"{port} mtu {link['mtu']} netns {nodes.pid(node)}" for node, port in ((a, a_port), (b, b_port))]
            commands.run(["ip", "link", "add", *f"{ends[0]} type veth peer name {ends[1]}".split()])
            for node, port in ((a, a_port), (b, b_port)):
                commands.run([*enter[node], "ip", "link", "set", "dev", port, "up"])
        for daemon, socket in DAEMONS.items():  # one that finds no zebra looks again only 10 s later
            path = program(daemon)
            if path is None and daemon == "mgmtd":
                continue
            assert path is not None
            argv = [path, "-P", "0", "--log", "stdout"]
            daemons += [subprocess.Popen([*enter[name], *argv], stdout=subprocess.DEVNULL) for name in routers]
            for name in routers:
                wait_for(Path(f"/proc/{nodes.pid(name)}/root/run/frr") / socket)
        for name in routers:
            commands.run([*enter[name], "vtysh", "-f", str(folder / f"{name}.conf")])
        for name, node in lab["nodes"].items():
            for command in node.get("exec", []):
                commands.run([*enter[name], *command.split()])
        yield nodes
    finally:
        for process in daemons:
            process.kill()
            process.wait()
        nodes.stop()


def wait_for(socket: Path) -> None:
    deadline = time.monotonic() + REACHED_WITHIN_S
    while not socket.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("name", SPECS)
def test_all_hosts_of_an_exported_lab_reach_each_other(tmp_path: Path, name: str) -> None:
    spec, folder = tmp_path / "spec.yaml", tmp_path / "lab"
    workload = {"kind": "permutation", "shift": 1, "bytes": 1000}
    policies = [{"name": "ecmp", "policy": "ecmp"}]
    document = {"name": "lab", "fabric": "routed", "workload": workload, "policies": policies, **SPECS[name]}
    spec.write_text(yaml.safe_dump(document))
    done = CliRunner().invoke(main, ["export", str(spec), "--to", "containerlab-frr", "--output", str(folder)])
    assert done.exit_code == 0, done.output
    far = "fd00::a00:101" if "IPv6" in name else "10.0.1.1"
    with deployed(folder) as nodes:
        ping = ["mnexec", "-a", str(nodes.pid("h1")), "ping", "-c", "1", "-W", "1", "-s", "8000", "-M", "do", far]
        deadline = time.monotonic() + REACHED_WITHIN_S
        while subprocess.run(ping, capture_output=True, check=False).returncode != 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
