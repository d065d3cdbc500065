# SPDX-License-Identifier: Apache-2.0
"""A small fabric: reachability, jumbo frames, counters, captures and observations.

h1 h2 - leaf1 = spine1, spine2 = leaf2 - h3 h4
"""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.utils import rdpcap

from emul import MininetFabric
from netmodel import Flow, OvsHash, PortRef, leaf_spine, path_of
from tests.integration.traffic import FRAME_OVERHEAD, PATIENCE_S, PORT, RawSender, address, in_host, receiver, sender

pytestmark = pytest.mark.sandboxed

TOPOLOGY = leaf_spine(2, 2, 2, 100_000_000, mtu_bytes=9000)
CAPTURED = PortRef("leaf2", 1)
HOSTS = [host.name for host in TOPOLOGY.hosts]


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fabric")


@pytest.fixture(scope="module")
def fabric(log_dir: Path) -> Iterator[MininetFabric]:
    with MininetFabric(TOPOLOGY, log_dir=log_dir, pcap=[CAPTURED, PortRef("h1", 1)]) as running:
        yield running


def test_udp_reaches_every_host_from_every_other(fabric: MininetFabric) -> None:
    receivers = {name: receiver(fabric, name) for name in HOSTS}
    senders = {name: sender(fabric, name) for name in HOSTS}
    for source, destination in itertools.permutations(HOSTS, 2):
        senders[source].sendto(source.encode(), (str(address(fabric, destination)), PORT))
        assert receivers[destination].recvfrom(100)[0] == source.encode()
    for opened in (*receivers.values(), *senders.values()):
        opened.close()


def test_tcp_and_icmp_cross_the_fabric_too(fabric: MininetFabric) -> None:
    listener = in_host(fabric, "h3", lambda: socket.create_server((str(address(fabric, "h3")), 7000)))
    client = in_host(
        fabric, "h1", lambda: socket.create_connection((str(address(fabric, "h3")), 7000), timeout=PATIENCE_S)
    )
    server, _ = listener.accept()
    client.sendall(b"x" * 200_000)  # several segments: wrong offload settings would corrupt or stall them
    server.settimeout(PATIENCE_S)
    taken = 0
    while taken < 200_000:
        taken += len(server.recv(1 << 16))
    for opened in (client, server, listener):
        opened.close()

    def ping() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as echo:
            echo.settimeout(PATIENCE_S)
            request = struct.pack("!BBHHH", 8, 0, 0, 7, 1)
            checksum = ~sum(struct.unpack("!4H", request)) & 0xFFFF  # small enough to need no carry
            echo.sendto(struct.pack("!BBHHH", 8, 0, checksum, 7, 1), (str(address(fabric, "h4")), 0))
            return echo.recv(200)

    assert in_host(fabric, "h1", ping)[20] == 0  # an echo reply


def test_a_full_jumbo_datagram_crosses_unfragmented_and_one_byte_more_does_not(fabric: MininetFabric) -> None:
    into, out = receiver(fabric, "h4"), sender(fabric, "h1")
    full = TOPOLOGY.mtu_bytes - 28
    out.sendto(b"x" * full, (str(address(fabric, "h4")), PORT))
    assert len(into.recv(1 << 16)) == full
    with pytest.raises(OSError, match="Message too long"):
        out.sendto(b"x" * (full + 1), (str(address(fabric, "h4")), PORT))
    into.close()
    out.close()


def test_counters_count_packets_and_frame_bytes_on_the_predicted_path_only(fabric: MininetFabric) -> None:
    into, out = receiver(fabric, "h3"), sender(fabric, "h1", 50000)
    path = path_of(TOPOLOGY, Flow(address(fabric, "h1"), address(fabric, "h3"), 50000), OvsHash())
    before = fabric.link_counters()
    for _ in range(20):
        out.sendto(b"x" * 1000, (str(address(fabric, "h3")), PORT))
        into.recv(2000)
    after = fabric.link_counters()
    moved = {port: after[port].tx_packets - before[port].tx_packets for port in after}
    assert {port: count for port, count in moved.items() if count} == dict.fromkeys(path[1:], 20)
    for port in path[1:]:
        assert after[port].tx_bytes - before[port].tx_bytes == 20 * (1000 + FRAME_OVERHEAD)
    assert all(counters.dropped == 0 for counters in after.values())
    assert not any(fabric.overruns().values())
    into.close()
    out.close()


def test_reading_all_counters_takes_a_few_milliseconds(fabric: MininetFabric) -> None:
    """Of processor time, which other programs do not lengthen."""
    start = time.process_time()
    for _ in range(20):
        fabric.link_counters()
    assert (time.process_time() - start) / 20 < 0.010


def test_observed_and_traced_ports_are_the_predicted_ones(fabric: MininetFabric) -> None:
    into, out = receiver(fabric, "h4"), RawSender(fabric, "h2")
    flows = [Flow(address(fabric, "h2"), address(fabric, "h4"), port) for port in range(51000, 51020)]
    for flow in flows:
        out.send(flow.dst, flow.src_port)
        into.recv(100)
    observed = fabric.observed_ports("leaf1")
    for flow in flows:
        uplink = path_of(TOPOLOGY, flow, OvsHash())[1]
        assert observed[flow] == uplink.port
        assert fabric.traced_port("leaf1", flow) == uplink.port
    into.close()
    out.close()


def test_a_switch_answers_arp_requests_for_every_host(fabric: MininetFabric) -> None:
    nic = TOPOLOGY.host("h1").nics[0]
    wanted = TOPOLOGY.host("h4").nics[0]
    own_mac, own_ip = bytes.fromhex(nic.mac.replace(":", "")), nic.address.packed

    def ask() -> bytes:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806)) as link:
            link.bind((nic.name, 0x0806))
            link.settimeout(PATIENCE_S)
            request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + own_mac + own_ip + bytes(6) + wanted.address.packed
            link.send(b"\xff" * 6 + own_mac + b"\x08\x06" + request)
            while True:
                frame, source = link.recvfrom(200)
                if source[2] != socket.PACKET_OUTGOING:
                    return frame

    frame = in_host(fabric, "h1", ask)
    mac = bytes.fromhex(wanted.mac.replace(":", ""))
    assert frame[:12] == own_mac + mac
    assert frame[20:42] == struct.pack("!H", 2) + mac + wanted.address.packed + own_mac + own_ip


def test_packets_to_unknown_addresses_are_dropped_at_the_first_switch(fabric: MininetFabric) -> None:
    before = fabric.link_counters()
    command = ["ip", "neigh", "replace", "10.0.1.200", "lladdr", "02:00:00:00:00:99", "dev", "nic0"]
    assert fabric.popen("h1", command).wait() == 0
    out = RawSender(fabric, "h1")
    for port in range(50000, 50010):
        out.send(address(fabric, "h1") + 455, port)  # 10.0.1.200
    time.sleep(0.2)
    after = fabric.link_counters()
    assert all(after[port].tx_packets == before[port].tx_packets for port in after)
    out.close()


def test_captures_hold_the_packets_that_left_by_the_port(fabric: MininetFabric, log_dir: Path) -> None:
    into, out = receiver(fabric, "h3"), RawSender(fabric, "h1")
    out.send(address(fabric, "h3"), 60123, b"caught in passing")
    into.recv(100)
    for file in ("leaf2-1.pcap", "h1-1.pcap"):
        capture, deadline = log_dir / "pcap" / file, time.monotonic() + PATIENCE_S
        while not any(b"caught in passing" in bytes(packet) for packet in rdpcap(str(capture))):
            assert time.monotonic() < deadline, f"{file} does not hold the packet"
            time.sleep(0.1)
    into.close()
    out.close()


def test_commands_run_in_their_host_and_unknown_hosts_are_errors(fabric: MininetFabric) -> None:
    done = fabric.popen("h2", ["ip", "-brief", "address", "show", "nic0"], stdout=subprocess.PIPE, text=True)
    assert "10.0.0.2/32" in done.communicate()[0]
    with pytest.raises(KeyError, match="no host 'h9'"):
        fabric.popen("h9", ["true"])


def test_every_process_of_the_fabric_writes_a_log(fabric: MininetFabric, log_dir: Path) -> None:
    for name in ("topology.yaml", "openflow-app.log", "ovs-vswitchd.log", "ovsdb-server.log"):
        assert (log_dir / name).stat().st_size > 0, name
    assert "ERROR" not in (log_dir / "openflow-app.log").read_text()
