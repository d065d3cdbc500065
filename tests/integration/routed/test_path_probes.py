# SPDX-License-Identifier: Apache-2.0
"""A device on a routed fabric probes for the path service: its answers are the paths that the routers' hash gives."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from emul import RoutedFabric
from emul.routed.requirements import lack
from hostlib import Device
from netmodel import FlowFields, LinuxL4Hash, leaf_spine
from netmodel.flow import address_array
from netmodel.router_plan import RouterPlan
from sim.links import Links
from sim.paths import hashed_paths
from testbed.bench import probed_ports
from tests.hostlib.path_service import TOKEN, PathService, eventually
from tests.integration.traffic import PORT, address, in_host

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

ETH_P_IP, SO_ATTACH_FILTER = socket.htons(0x0800), 26
PROBE_BYTES = 20 + 8 + 12 + 8 + 4  # headers of IP, UDP and RoCEv2, a nonce and the ICRC
SPINE = 2  # the hop of the topmost tier


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoutedFabric]:
    topology = leaf_spine(2, 4, 1, 100_000_000)
    with RoutedFabric(topology, log_dir=tmp_path_factory.mktemp("path_probes")) as running:
        yield running


def spines(fabric: RoutedFabric, ports: list[int]) -> dict[int, str]:
    """By source port: the address at which a packet of the first host to the second comes into its spine."""
    source, destination = (address(fabric, host.name) for host in fabric.topology.hosts)
    links = Links(fabric.topology)
    fields = FlowFields(
        src=address_array([source] * len(ports)),
        dst=address_array([destination] * len(ports)),
        sport=np.array(ports, dtype=np.uint16),
        dport=np.full(len(ports), PORT, dtype=np.uint16),
        proto=np.array([17], dtype=np.uint8),
    )
    ways = hashed_paths(links, fields, LinuxL4Hash(), fabric.routes())
    addresses = RouterPlan(fabric.topology).link_addresses
    out = {}
    for port, way in zip(ports, ways.tolist(), strict=True):
        (into,) = [
            far
            for far in (fabric.topology.peer(links.ports[link]) for link in way if link >= 0)
            if far.node.startswith("spine")
        ]
        out[port] = str(addresses[into])
    return out


@pytest.fixture
def service(fabric: RoutedFabric) -> Iterator[PathService]:
    """A path service on the first host, which asks for probes as fast as the routers answer: without a limit."""
    unlimited = ["net.ipv4.icmp_ratelimit=0", "net.ipv4.icmp_msgs_per_sec=1000000", "net.ipv4.icmp_msgs_burst=1000000"]
    for switch in fabric.topology.switches:
        pid = str(fabric._nodes.pid(switch.name))
        subprocess.run(["nsenter", "--target", pid, "--net", "sysctl", "-qw", *unlimited], check=True)
    service = PathService()
    service.welcome = {"probe": True, "router_rate": 0}
    in_host(fabric, "h1", service.start)
    yield service
    service.stop()


@pytest.fixture
def devices(fabric: RoutedFabric, service: PathService) -> Iterator[tuple[Device, Device]]:
    """Devices of the first and the second host. Their lanes carry data meanwhile, to the second one."""
    options: dict[str, Any] = {"policy": "controller", "path_service": service.address, "token": TOKEN}
    near, far = (str(address(fabric, host.name)) for host in fabric.topology.hosts)
    one = in_host(fabric, "h1", lambda: Device(near, lanes=8, probe_rate=1000.0, elephant_bytes=2**40, **options))
    two = in_host(fabric, "h2", lambda: Device(far, lanes=8))
    with one, two:
        listener = in_host(fabric, "h2", two.listen)
        to = in_host(fabric, "h1", lambda: one.connect(listener.handle))
        back = in_host(fabric, "h2", lambda: listener.accept(30))
        over = threading.Event()

        def carry() -> None:
            buffer = bytearray(2**18)
            data = os.urandom(len(buffer))
            while not over.is_set():
                receiving, sending = back.recv(buffer), to.send(data)
                assert sending.wait(60) == receiving.wait(60) == len(data)
                assert buffer == data
                arrived.append(len(data))

        arrived: list[int] = []
        traffic = threading.Thread(target=carry)
        traffic.start()
        yield one, two
        before = len(arrived)
        eventually(lambda: len(arrived) > before, "the data stopped")
        over.set()
        traffic.join()


@pytest.fixture
def lanes(devices: tuple[Device, Device]) -> list[int]:
    """The ports of lanes from the first host to the second."""
    return [lane["port"] for lane in devices[0].counters()["lanes"]]


def test_ports_that_carry_data_and_others_take_the_paths_of_the_routers_hash(
    fabric: RoutedFabric, service: PathService, lanes: list[int]
) -> None:
    ports = lanes + [port for port in range(50000, 50064) if port not in lanes][: 64 - len(lanes)]
    far = str(address(fabric, "h2"))
    service.push({"type": "probe", "ask": 1, "peer": far, "peer_port": PORT, "ttl": SPINE, "ports": ports})
    (probed,) = service.received("probed")
    assert {port: (answer, router) for port, answer, router, _ in probed["answers"]} == {
        port: ("hop", spine) for port, spine in spines(fabric, ports).items()
    }


def test_a_probe_has_the_qpn_of_its_lane_and_its_receiver_drops_it(
    fabric: RoutedFabric, service: PathService, devices: tuple[Device, Device]
) -> None:
    """Also where it goes all the way, among the packets of that lane."""
    one, two = devices
    far, ports = str(address(fabric, "h2")), list(range(52000, 52008))
    service.push({"type": "assign", "peer": far, "peer_port": PORT, "ports": ports, "generation": 1})
    eventually(lambda: [lane["port"] for lane in one.counters()["lanes"]] == ports, "lanes never moved")
    arriving = in_host(fabric, "h2", packets_as_long_as_a_probe)
    discarded = two.counters()["discards"]["malformed"]
    with arriving:
        asked = [*ports, 52008]  # the last one is of no lane
        service.push({"type": "probe", "ask": 1, "peer": far, "peer_port": PORT, "ttl": 64, "ports": asked})
        (probed,) = service.received("probed")
        seen = dict(probes_among(arriving))
    assert [answer for _, answer, _, _ in probed["answers"]] == ["none"] * len(asked)
    qpns = [lane["qpn"] for lane in two.counters()["lanes"]]
    assert seen == dict(zip(asked, [*qpns, qpns[0]], strict=True))
    assert two.counters()["discards"]["malformed"] - discarded == 3 * len(asked)  # three packets of each
    counted = one.counters()["path_client"]
    assert (counted["probes_sent"], counted["probes_answered"]) == (3 * len(asked), 0)


def packets_as_long_as_a_probe() -> socket.socket:
    """A packet socket that takes no data: these would fill it."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, ETH_P_IP)
    # classic BPF: load the total length of the IP packet; if it is that of a probe, take all of it
    filters = ((0x28, 0, 0, 2), (0x15, 0, 1, PROBE_BYTES), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in filters))
    made.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(filters), ctypes.addressof(code)))
    return made


def probes_among(arriving: socket.socket) -> Iterator[tuple[int, int]]:
    """The source port and the destination QPN of each probe that a packet socket has: its P_Key is 0."""
    arriving.setblocking(False)
    with suppress(BlockingIOError):
        while packet := arriving.recv(1 << 16):
            header = 4 * (packet[0] & 15)
            source, destination, _, _, _, _, pkey, qpn = struct.unpack_from("!HHHHBBHI", packet, header)
            if packet[9] == socket.IPPROTO_UDP and destination == PORT and pkey == 0:
                yield source, qpn & 0xFFFFFF


def test_the_bench_of_ports_sees_data_take_the_paths_that_probes_told(fabric: RoutedFabric) -> None:
    found = probed_ports.measure(fabric, SPINE, range(51000, 51300))
    assert found.agree == found.answered == found.ports == 300
    assert found.rate > 0


def test_watched_ports_are_told_when_a_cut_moves_them(
    fabric: RoutedFabric, service: PathService, lanes: list[int]
) -> None:
    before = spines(fabric, lanes)
    seen = dict(before)
    watched = {"type": "watch", "peer": str(address(fabric, "h2")), "ttl": SPINE, "period_s": 0.1}
    service.push(watched | {"ports": list(before.items())})
    (cut,) = [
        link
        for link in fabric.topology.links
        if {link.a.node, link.b.node} == {"leaf1", node_of(fabric, before[lanes[0]])}
    ]
    fabric.set_link(cut, up=False)
    try:

        def followed() -> bool:
            for message in service.of_type("moved"):
                seen.update({port: router for port, _, router, _ in message["answers"]})
            return seen == spines(fabric, lanes)

        eventually(followed, lambda: f"{service.of_type('moved')} is not {spines(fabric, lanes)} after {before}")
        assert seen[lanes[0]] != before[lanes[0]]
        told = [row[0] for message in service.of_type("moved") for row in message["answers"]]
        assert set(told) >= {port for port in lanes if seen[port] != before[port]}
    finally:
        fabric.set_link(cut, up=True)


def node_of(fabric: RoutedFabric, router: str) -> str:
    """The router that has this address."""
    (node,) = {port.node for port, one in RouterPlan(fabric.topology).link_addresses.items() if str(one) == router}
    return node
