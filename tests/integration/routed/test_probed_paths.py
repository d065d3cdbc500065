# SPDX-License-Identifier: Apache-2.0
"""`paralet probe` on routers whose hash it does not know: the paths that it finds are those that data take."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from emul import RoutedFabric
from emul.routed.requirements import lack
from netmodel import Flow, FlowFields, LinuxL4Hash, PortRef, Topology, clos, leaf_spine
from netmodel.flow import address_array
from netmodel.router_plan import RouterPlan
from sim.links import Links
from sim.paths import hashed_paths
from tests.integration.traffic import PORT, address, in_host

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.long,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

ROOT = Path(__file__).parents[3]
FABRICS = {
    "three tiers, IPv4": clos(2, 2, 2, 2, 1, 100_000_000),
    "two tiers, parallel links, IPv6": leaf_spine(2, 2, 1, 100_000_000, parallel_links=2, ipv6=True),
}
UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]


@pytest.fixture(scope="module", params=list(FABRICS))
def fabric(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoutedFabric]:
    with RoutedFabric(FABRICS[request.param], log_dir=tmp_path_factory.mktemp("probing")) as running:
        yield running


def ends(topology: Topology) -> tuple[str, str]:
    """Two hosts, as far from each other as any."""
    return topology.hosts[0].name, topology.hosts[-1].name


def probe(fabric: RoutedFabric, *arguments: str, status: int = 0) -> str:
    """The output of `paralet probe` on the first host, towards the last, of a user without any privilege."""
    src, dst = ends(fabric.topology)
    program = [sys.executable, "-m", "testbed", "probe", near(fabric, dst)]
    process = fabric.popen(
        src, [*UNPRIVILEGED, *program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    out, errors = process.communicate(timeout=120)
    assert process.returncode == status, errors + out
    return str(out)


def near(fabric: RoutedFabric, host: str) -> str:
    return str(address(fabric, host))


def answer(fabric: RoutedFabric, *arguments: str) -> dict[str, Any]:
    (pair,) = json.loads(probe(fabric, "--json", *arguments))["pairs"]
    assert isinstance(pair, dict)
    return pair


def entered(fabric: RoutedFabric, pair: dict[str, Any]) -> dict[int, set[PortRef]]:
    """By source port: the routers' ports at which probes came in, beyond the first router."""
    names = {str(one): port for port, one in RouterPlan(fabric.topology).link_addresses.items()}
    return {port: {names[hop] for hop in path["hops"][1:]} for path in pair["paths"] for port in path["ports"]}


def carried(fabric: RoutedFabric, ports: list[int], protocol: int) -> dict[int, set[PortRef]]:
    """The same of data, by the header, the hash of Linux and what the kernels have."""
    src, dst = (address(fabric, host) for host in ends(fabric.topology))
    links = Links(fabric.topology)
    fields = FlowFields(
        src=address_array([src] * len(ports)),
        dst=address_array([dst] * len(ports)),
        sport=np.array(ports, dtype=np.uint16),
        dport=np.full(len(ports), PORT, dtype=np.uint16),
        proto=np.array([protocol], dtype=np.uint8),
    )
    ways = hashed_paths(links, fields, LinuxL4Hash(), fabric.routes())
    far = {
        port: {fabric.topology.peer(links.ports[link]) for link in row if link >= 0}
        for port, row in zip(ports, ways.tolist(), strict=True)
    }
    switches = {switch.name for switch in fabric.topology.switches}
    first = fabric.topology.peer(PortRef(ends(fabric.topology)[0], 1))
    return {port: {one for one in way if one.node in switches and one != first} for port, way in far.items()}


def observed(fabric: RoutedFabric, ports: list[int]) -> dict[int, set[PortRef]]:
    """The router ports beyond the first that a datagram of data enters, from each source port, as routers noted it."""
    src, dst = ends(fabric.topology)
    family = socket.AF_INET6 if fabric.topology.ipv6 else socket.AF_INET

    def send() -> None:
        for port in ports:
            with socket.socket(family, socket.SOCK_DGRAM) as one:
                one.bind((near(fabric, src), port))
                one.sendto(b"data", (near(fabric, dst), PORT))

    in_host(fabric, src, send)
    found: dict[int, set[PortRef]] = {port: set() for port in ports}
    for switch in fabric.topology.switches:
        for flow, out in fabric.observed_ports(switch.name).items():
            if flow == Flow(address(fabric, src), address(fabric, dst), flow.src_port) and flow.src_port in found:
                found[flow.src_port].add(fabric.topology.peer(PortRef(switch.name, out)))
    return found


def unlimited(fabric: RoutedFabric) -> None:
    """Let routers answer every probe."""
    of_all = ["net.ipv4.icmp_msgs_per_sec=1000000", "net.ipv4.icmp_msgs_burst=1000000"]
    set_routers(fabric, "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0", *of_all)


def set_routers(fabric: RoutedFabric, *settings: str) -> None:
    for switch in fabric.topology.switches:
        pid = str(fabric._nodes.pid(switch.name))
        subprocess.run(["nsenter", "--target", pid, "--net", "sysctl", "-qw", *settings], check=True)


def test_all_paths_are_found_under_the_default_limits_by_a_user_without_privilege(fabric: RoutedFabric) -> None:
    pair = answer(fabric, "--ports", "32")
    ways = entered(fabric, pair)
    assert len(pair["paths"]) == (4 if len(fabric.topology.switches) > 4 else 8)
    assert len(ways) + len(pair["silent"]) == 32
    assert not pair["silent"]
    assert pair["pinnable"]
    assert ways == carried(fabric, list(ways), socket.IPPROTO_UDP)


def test_data_take_the_paths_that_were_probed(fabric: RoutedFabric) -> None:
    unlimited(fabric)
    pair = answer(fabric, "--ports", "50000-50499", "--router-rate", "0", "--rate", "0")
    ways = entered(fabric, pair)
    assert len(ways) == 500
    choices = observed(fabric, list(ways))
    assert all(choices[port] and choices[port] <= ways[port] for port in ways)
    assert ways == carried(fabric, list(ways), socket.IPPROTO_UDP)
    assert sum(path["lost"] for path in pair["paths"]) == 0


def test_syns_find_the_paths_of_tcp(fabric: RoutedFabric) -> None:
    pair = answer(fabric, "--ports", "51000-51099", "--protocol", "tcp", "--router-rate", "0", "--rate", "0")
    ways = entered(fabric, pair)
    assert len(ways) == 100
    assert ways == carried(fabric, list(ways), socket.IPPROTO_TCP)


def test_the_text_names_routers_as_the_topology_does_and_the_hash_is_not_linear(
    fabric: RoutedFabric,
) -> None:
    from netmodel import dump_topology

    src, dst = ends(fabric.topology)
    # Not below pytest's folder, which other users may not enter: every pytest that starts takes their rights away.
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "topology.yaml")
        file.write_text(dump_topology(fabric.topology))
        said = probe(fabric, "--ports", "32", "--router-rate", "0", "--rate", "0", "--linear", "--topology", str(file))
    middle = "core" if len(fabric.topology.switches) > 4 else "spine"
    assert f"> {middle}1:" in said
    assert f"> {dst}  #" in said
    assert said.splitlines().count(src) == 1
    assert "the hash is not linear" in said


def test_what_several_hosts_saw_makes_the_topology(fabric: RoutedFabric, tmp_path: Path) -> None:
    files, processes = [], []
    for host in fabric.topology.hosts:
        others = [near(fabric, other.name) for other in fabric.topology.hosts if other != host]
        file = tmp_path / f"{host.name}.json"
        named = ["--write", str(file), "--host-name", host.name]
        argv = ["probe", *others, "--ports", "32", "--router-rate", "0", "--rate", "0", *named]
        processes.append(fabric.popen(host.name, [sys.executable, "-m", "testbed", *argv], cwd=ROOT))
        files += ["--from-hosts", str(file)]
    assert [process.wait(120) for process in processes] == [0] * len(processes)
    found = tmp_path / "found.yaml"
    argv = [sys.executable, "-m", "testbed", "probe", *files, "--write-topology", str(found)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert f"found {len(fabric.topology.switches)} switches and {len(fabric.topology.links)} links" in said
    assert ip_address(near(fabric, fabric.topology.hosts[0].name)).compressed in found.read_text()


def test_without_answers_the_command_says_what_is_needed(fabric: RoutedFabric) -> None:
    set_routers(fabric, "net.ipv4.icmp_ratelimit=2000000000", "net.ipv6.icmp.ratelimit=2000000000")
    said = probe(fabric, "--ports", "4", "--router-rate", "0", status=1)
    assert "no router answered" in said
    assert "ICMP time exceeded" in said
