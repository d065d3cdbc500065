# SPDX-License-Identifier: Apache-2.0
"""rxe devices as hosts of an emulated fabric: kernel RoCE at both ends, OVS's kernel datapath between them.

Nothing of our engine takes part: verbs programs choose flow labels, or `paralet pin` does for programs of others, and
the kernel's packets have to leave with the UDP source ports, and take the uplinks, that `netmodel` predicts.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from emul import rxe, sandbox
from netmodel import Flow, Host, OvsHash, PortRef, equal_cost_paths, leaf_spine, path_of, ports_for_path
from paralet_pin import launch
from testbed.cli import rdma_devices
from tests.softroce.interop.conftest import PROPERTY

if TYPE_CHECKING:
    from emul import MininetFabric
    from tests.softroce.interop.rxe_peer import RxePeer

Record = Callable[[str, object], None]

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sandbox.inside(), reason="the fabric comes up in a guest or a sandbox only"),
]

KERNEL_TO_KERNEL = "kernel to kernel"
SPINES = 4
TOPOLOGY = leaf_spine(2, SPINES, 1, 100_000_000)
SOURCE, DESTINATION = TOPOLOGY.hosts
OVS = OvsHash()
FIRST_UPLINK = 2  # of leaf1, after its one host
LENGTH = 30_000
TIMEOUT_S = 120


def port_of(label: int) -> int:
    """rdma-core's ibv_flow_label_to_udp_sport."""
    return ((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | 0xC000


def label_of(port: int) -> int:
    """A label that gives `port`; 0 would mean that none is set."""
    return port & 0x3FFF or 0x4001


def labels() -> list[int]:
    """Some that differ in every part, and one for each spine."""
    pinned = [
        int(ports_for_path(TOPOLOGY, SOURCE.name, DESTINATION.name, path, OVS)[7])
        for path in equal_cost_paths(TOPOLOGY, SOURCE.name, DESTINATION.name)
    ]
    return [0x123, 0x2ABC, 0x4001, 0x3FFF, 0xF8001, *map(label_of, pinned)]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MininetFabric]:
    from emul import MininetFabric

    log_dir: Path = tmp_path_factory.mktemp("fabric")
    with MininetFabric(TOPOLOGY, log_dir=log_dir, datapath="kernel", nics="rxe") as up:
        yield up


def write(label: int) -> None:
    """One RDMA WRITE from SOURCE to DESTINATION over a queue pair with that flow label."""
    from tests.softroce.interop.pair import pattern
    from tests.softroce.interop.rxe_peer import RxePeer

    with ExitStack() as stack:
        ends: list[RxePeer] = [
            stack.enter_context(RxePeer(rxe.device_name(host, 0), str(host.nics[0].address)))
            for host in (SOURCE, DESTINATION)
        ]
        for end, other in (ends, ends[::-1]):
            end.connect(other.address, remote_qpn=other.qpn, remote_psn=0, psn=0, path_mtu=1024, flow_label=label)
        data = pattern(LENGTH)
        ends[1].clear(LENGTH)
        ends[0].write(data, ends[1].incoming.buf, ends[1].incoming.rkey)
        deadline = time.monotonic() + TIMEOUT_S
        while not (done := ends[0].poll()):
            assert time.monotonic() < deadline, "the kernel did not complete the WRITE"
            time.sleep(0.01)
        assert done[0].status == 0
        assert ends[1].received(LENGTH) == data


def test_the_hosts_devices_are_listed(fabric: MininetFabric) -> None:
    listed = {device.name: device for device in rdma_devices.devices()}
    for host in (SOURCE, DESTINATION):
        device = listed[rxe.device_name(host, 0)]
        assert (device.driver, device.flow_label) == ("rxe", True)
        assert device.ports[0].state == "ACTIVE"
        assert (str(host.nics[0].address), "RoCE v2") in {(gid.address, gid.type) for gid in device.ports[0].gids}


@pytest.mark.parametrize("label", labels(), ids=hex)
def test_a_flow_label_pins_the_uplink(fabric: MininetFabric, record_property: Record, label: int) -> None:
    record_property(PROPERTY, ("path by flow label over an ECMP group of 4 uplinks", KERNEL_TO_KERNEL, f"{label:#x}"))
    flow = Flow(SOURCE.nics[0].address, DESTINATION.nics[0].address, port_of(label))
    predicted = path_of(TOPOLOGY, flow, OVS)[1]
    before = fabric.link_counters()
    write(label)
    after = fabric.link_counters()
    assert fabric.observed_ports("leaf1")[flow] == predicted.port
    sent = {
        uplink: after[uplink].tx_bytes - before[uplink].tx_bytes
        for uplink in (PortRef("leaf1", FIRST_UPLINK + spine) for spine in range(SPINES))
    }
    assert sent[predicted] >= LENGTH
    assert sum(sent.values()) - sent[predicted] < LENGTH / 10


def test_the_labels_reach_every_uplink() -> None:
    """The tests above need a hash that spreads labels over the paths."""
    flows = [Flow(SOURCE.nics[0].address, DESTINATION.nics[0].address, port_of(label)) for label in labels()]
    assert {path_of(TOPOLOGY, flow, OVS)[1].port for flow in flows} == {FIRST_UPLINK + spine for spine in range(SPINES)}


PROGRAMS = {
    # Programs of Debian: how many queue pairs they make, and their words. The last one is the TCP port of the server.
    "ib_write_bw": (3, "ib_write_bw -d {device} -x 1 -F -q 3 -n 5 -s 4096 -p 18515"),
}


def planned(own: Host, peer: Host, ports: list[int]) -> dict[str, str]:
    """The environment of a program on `own` that `paralet pin` starts with these ports towards `peer`."""
    variables = {
        **os.environ,
        launch.WAIT_US: str(60_000_000),  # an emulated machine is slow
        "PARALET_ADDRESSES": str(own.nics[0].address),
        "PARALET_PORTS": f"{peer.nics[0].address}={','.join(map(str, ports))}",
    }
    return launch.variables(variables, launch.start_agent(variables, os.getpid()))


def listens(port: int) -> bool:
    """Whether a TCP socket listens at the port."""
    tables = (Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_unmodified_program_sends_from_planned_ports(
    fabric: MininetFabric, record_property: Record, program: str
) -> None:
    record_property(PROPERTY, ("planned UDP source ports under `paralet pin`", KERNEL_TO_KERNEL, program))
    queue_pairs, words = PROGRAMS[program]
    first = 50_001 + 1000 * list(PROGRAMS).index(program)
    given = {SOURCE: list(range(first, first + queue_pairs)), DESTINATION: list(range(first + 500, first + 510))}
    at_source, at_destination = (words.format(device=rxe.device_name(host, 0)).split() for host in given)
    before = fabric.observed_ports("leaf1")
    with subprocess.Popen(
        at_destination, env=planned(DESTINATION, SOURCE, given[DESTINATION]), stdout=subprocess.DEVNULL
    ) as server:
        environment = planned(SOURCE, DESTINATION, given[SOURCE])
        deadline = time.monotonic() + TIMEOUT_S
        while not listens(int(at_destination[-1])):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        argv = [*at_source, "127.0.0.1"]
        client = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
        if client.returncode:
            server.kill()
    assert client.returncode == 0, client.stdout + client.stderr
    sent = {flow: port for flow, port in fabric.observed_ports("leaf1").items() if flow not in before}
    assert sorted(flow.src_port for flow in sent) == given[SOURCE]
    for flow, port in sent.items():
        assert path_of(TOPOLOGY, flow, OVS)[1].port == port
