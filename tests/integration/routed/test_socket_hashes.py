# SPDX-License-Identifier: Apache-2.0
"""By which hash Linux routers choose for the packets of each socket of the engine: that of the header, or the socket's.

The kernel gives packets of connected sockets a hash of their own, which routers in namespaces would take instead of the
header's. Fabric `routed` forgets it where packets come in from hosts (`emul.routed.header_hash`); a virtual network
without that does not.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from emul import RoutedFabric
from emul.routed.requirements import lack
from hostlib import Connection, Device
from hostlib.probing import ProbeLimits, Prober, Target
from netmodel import IPPROTO_UDP, Flow, LinuxL4Hash, PortRef, leaf_spine, path_of
from tests.hostlib.path_service import TOKEN
from tests.integration.traffic import PORT, address, in_host

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

PAGE = Path(__file__).parents[3] / "docs" / "routed.md"
NEAR, FAR = "h1", "h2"
LEAF = {NEAR: "leaf1", FAR: "leaf2"}
FLOWS = 8
"""Of each kind of socket. With four spines, all of them are where the header's hash puts them by chance once in 65,536
times."""
SERVICE, CLOSED, OWN = 14792, 14793, 14794  # ports on the far host: of a path service, of nobody, of the test's socket
UDP_PROBES, SYNS = range(61000, 61000 + FLOWS), range(62000, 62000 + FLOWS)

SOCKETS = {
    "lanes of `soft`: data, SENDs of control": "header",
    "lanes of `soft`: acknowledgements": "header",
    "probes by UDP": "header",
    "probes by SYN": "socket",
    "lanes of `tcp`: data": "socket",
    "lanes of `tcp`: acknowledgements": "socket",
    "handshake and channel of a peer": "socket",
    "path client": "socket",
    "any connected UDP socket": "socket",
}
"""The hash that routers take for it without the fabric's program."""


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[RoutedFabric]:
    with RoutedFabric(leaf_spine(2, 4, 1, 100_000_000), log_dir=tmp_path) as running:
        yield running


def use_all_sockets(fabric: RoutedFabric) -> Callable[[Flow], str | None]:
    """Let every kind of socket send from one host to the other. Returns which of `SOCKETS` a flow is of."""
    near, far = (str(address(fabric, host)) for host in (NEAR, FAR))
    with ExitStack() as stack:

        def device(host: str, **options: Any) -> Device:
            own = near if host == NEAR else far
            return stack.enter_context(in_host(fabric, host, lambda: Device(own, **options)))

        stack.enter_context(in_host(fabric, FAR, lambda: socket.create_server((far, SERVICE))))
        asking = {"policy": "controller", "path_service": f"{far}:{SERVICE}", "token": TOKEN}
        senders = [device(NEAR, lanes=1, **asking) for _ in range(FLOWS)]
        receiver = device(FAR, lanes=1)
        over_tcp = [device(host, lanes=FLOWS, backend="tcp") for host in (NEAR, FAR)]
        connections: list[Connection] = []
        for one, other in [*((sender, receiver) for sender in senders), (over_tcp[0], over_tcp[1])]:
            listener = in_host(fabric, FAR, other.listen)
            outgoing = in_host(fabric, NEAR, partial(one.connect, listener.handle))
            incoming = in_host(fabric, FAR, partial(listener.accept, 30))
            connections += [outgoing, incoming]  # a device forgets the lanes to a peer without any
            for size in (100, 1 << 20):  # eager, and by WRITEs to an advertised receive
                data = bytes(size)
                receiving, sending = incoming.recv(bytearray(size)), outgoing.send(data)
                assert sending.wait(60) == receiving.wait(60) == size
        in_host(fabric, NEAR, lambda: probe(near, far))
        in_host(fabric, NEAR, lambda: connected_datagrams(near, far))
        # A device's packets come to its own port, and go from the ports of its lanes.
        here = {lane["port"] for sender in senders for lane in sender.counters()["lanes"]}
        there = {lane["port"] for lane in receiver.counters()["lanes"]}
        lanes_port = over_tcp[1].udp_port
    ends_of_lanes = {(NEAR, port) for port in here} | {(FAR, port) for port in there}

    def kind(flow: Flow) -> str | None:
        to_far = str(flow.dst) == far
        if flow.protocol == IPPROTO_UDP:
            if to_far and flow.dst_port == OWN:
                return "any connected UDP socket"
            if to_far and flow.src_port in UDP_PROBES:
                return "probes by UDP"
            assert (NEAR if to_far else FAR, flow.src_port) in ends_of_lanes, f"{flow} is of no known socket"
            return f"lanes of `soft`: {'data, SENDs of control' if to_far else 'acknowledgements'}"
        if to_far and flow.dst_port == CLOSED:
            return "probes by SYN"
        if (flow.dst_port if to_far else flow.src_port) == lanes_port:
            return f"lanes of `tcp`: {'data' if to_far else 'acknowledgements'}"
        if not to_far:
            return None  # what answers a connection, by the kernel of the far host
        return "path client" if flow.dst_port == SERVICE else "handshake and channel of a peer"

    return kind


def probe(near: str, far: str) -> None:
    prober = Prober(ProbeLimits(rate=0, router_rate=0))
    prober.ask(Target(near, far, destination_port=PORT), 64, UDP_PROBES)
    prober.ask(Target(near, far, protocol="tcp", destination_port=CLOSED), 64, SYNS)
    assert prober.run(30)


def connected_datagrams(near: str, far: str) -> None:
    for port in range(63000, 63000 + FLOWS):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind((near, port))
            one.connect((far, OWN))
            one.send(b"data")


def found(fabric: RoutedFabric, kind: Callable[[Flow], str | None]) -> dict[str, tuple[int, int]]:
    """By kind of socket: the flows that routers noted, and those that went where the header's hash puts them."""
    routes = fabric.routes()
    counted: dict[str, tuple[int, int]] = {}
    for host, leaf in LEAF.items():
        for flow, port in fabric.observed_ports(leaf).items():
            if flow.src != address(fabric, host) or (name := kind(flow)) is None:
                continue
            by_header = PortRef(leaf, port) in path_of(fabric.topology, flow, LinuxL4Hash(), routes=routes)
            flows, matched = counted.get(name, (0, 0))
            counted[name] = flows + 1, matched + by_header
    return counted


def keep_the_hashes_of_sockets(fabric: RoutedFabric) -> None:
    """Take the fabric's program off the ports of hosts, as other virtual networks have none."""
    for host, leaf in LEAF.items():
        port = fabric.topology.peer(PortRef(host, 1))
        argv = ["tc", "qdisc", "del", "dev", fabric.interface(port), "clsact"]
        subprocess.run([*fabric.enter(leaf), *argv], check=True)


def forget_flows(fabric: RoutedFabric) -> None:
    for leaf in LEAF.values():
        subprocess.run([*fabric.enter(leaf), "nft", "flush", "set", "ip", "paralet_flows", "udp_flows"], check=True)
        subprocess.run([*fabric.enter(leaf), "nft", "flush", "set", "ip", "paralet_flows", "tcp_flows"], check=True)


def test_every_socket_of_the_engine_by_the_hash_that_routers_take(fabric: RoutedFabric) -> None:
    on_the_fabric = found(fabric, use_all_sockets(fabric))
    assert on_the_fabric.keys() == SOCKETS.keys()
    assert all(flows == matched for flows, matched in on_the_fabric.values()), on_the_fabric
    keep_the_hashes_of_sockets(fabric)
    forget_flows(fabric)
    elsewhere = found(fabric, use_all_sockets(fabric))
    assert {name: "header" if flows == matched else "socket" for name, (flows, matched) in elsewhere.items()} == SOCKETS
    assert min(flows for flows, _ in elsewhere.values()) >= FLOWS
    rows = ["| socket | with the program | without it |", "|---|---|---|"]
    rows += [f"| {name} | header | {taken} |" for name, taken in SOCKETS.items()]
    for name, (flows, matched) in elsewhere.items():
        print(f"{name}: {matched} of {flows} flows where the header's hash puts them, without the program")
    assert "\n".join(rows) in PAGE.read_text()
