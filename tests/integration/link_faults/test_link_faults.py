# SPDX-License-Identifier: Apache-2.0
"""Links that lose, damage, mark, delay and slow down packets: every fault is counted, and runs deliver every byte."""

from __future__ import annotations

import csv
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from emul import LinkFault, MininetFabric
from emul.link_faults import LinkFaults
from netmodel import PortRef, leaf_spine
from tests.integration.traffic import PORT, RawSender, address, all_taken, receiver, sender

ROOT = Path(__file__).parents[3]
RATE_BPS = 10_000_000
TOPOLOGY = leaf_spine(2, 1, 1, RATE_BPS)
UPLINK = PortRef("leaf1", 2)
ROUNDS, BURST = 40, 50
IP_RECVTOS = 13  # linux/in.h
UDP_SEGMENT = 103  # linux/udp.h
BTH = bytes.fromhex("0440ffff") + bytes(range(1, 17))

pytestmark = pytest.mark.long


def command(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def arrivals(fabric: MininetFabric, rounds: int, payload: bytes) -> list[bytes]:
    """What h2 receives of bursts that h1 sends, no burst longer than the queues."""
    sender, sink = RawSender(fabric, "h1"), receiver(fabric, "h2", timeout_s=1.0)
    for _ in range(rounds):
        for _ in range(BURST):
            sender.send(address(fabric, "h2"), 50_000, payload)
        time.sleep(8 * BURST * (len(payload) + 42) / RATE_BPS)
    found = all_taken(lambda: sink.recv(9000), rounds * BURST, lambda: fabric.fault_counts()[UPLINK].lost)
    sender.close()
    sink.close()
    return found


@pytest.mark.sandboxed
def test_every_lost_and_damaged_packet_is_counted(tmp_path: Path) -> None:
    with MininetFabric(TOPOLOGY, log_dir=tmp_path, faults={UPLINK: LinkFault(0.2, 0.3)}) as fabric:
        found = arrivals(fabric, ROUNDS, BTH)
        counts = fabric.fault_counts()[UPLINK]
        back = fabric.link_counters()[UPLINK]
    sent = ROUNDS * BURST
    assert counts.lost == sent - len(found)
    assert counts.corrupted == sum(header != BTH for header in found)
    assert {header for header in found if header != BTH} == {BTH[:2] + bytes(2) + BTH[4:]}  # the P_Key is 0
    assert counts.lost == pytest.approx(0.2 * sent, abs=6 * (0.2 * 0.8 * sent) ** 0.5)
    assert counts.corrupted == pytest.approx(0.3 * 0.8 * sent, abs=6 * (0.24 * 0.76 * sent) ** 0.5)
    assert back.tx_packets == len(found)  # a lost packet was not sent
    assert back.dropped == 0


@pytest.mark.sandboxed
def test_packets_of_a_hosts_batches_are_lost_delayed_and_marked_one_by_one(tmp_path: Path) -> None:
    """h1 sends ten packets with every call (UDP_SEGMENT)."""
    uplink, calls, segment = PortRef("h1", 1), 20, 1000
    payload = b"".join(struct.pack("!I", number) + bytes(segment - 4) for number in range(10))
    with MininetFabric(TOPOLOGY, log_dir=tmp_path, faults={uplink: LinkFault(loss=0.5)}) as fabric:
        near, sink = sender(fabric, "h1"), receiver(fabric, "h2", timeout_s=1.0)
        near.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, segment)

        def arrived(tos: int = 0) -> tuple[list[int], list[int]]:
            """Numbers and TOS bytes of what arrives of all calls."""
            near.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            sink.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
            before = lost()
            for _ in range(calls):
                near.sendto(payload, (str(address(fabric, "h2")), PORT))
                time.sleep(0.02)
            found = all_taken(lambda: sink.recvmsg(9000, 64), 10 * calls, lambda: lost() - before)
            assert all(len(message) == segment for message, *_ in found)
            numbers = [struct.unpack_from("!I", message)[0] for message, *_ in found]
            return numbers, [control[0][2][0] for _, control, *_ in found]

        def lost() -> int:
            return fabric.fault_counts()[uplink].lost

        sent = 10 * calls
        found, _ = arrived()
        dropped = lost()
        assert dropped == sent - len(found)
        assert dropped == pytest.approx(0.5 * sent, abs=6 * (0.5 * 0.5 * sent) ** 0.5)
        assert max(found.count(number) for number in range(10)) < calls  # no position is spared, by chance 1 in 100,000
        assert fabric.link_counters()[PortRef("leaf1", 1)].rx_packets == len(found)
        fabric.set_faults(uplink, LinkFault(delay_s=0.002, mark_above_bytes=4000))
        found, classes = arrived(tos=0b10)
        assert found == [*range(10)] * calls
        counts = fabric.fault_counts()[uplink]
        assert (counts.lost, counts.marked) == (dropped, classes.count(0b11))
        assert 0 < counts.marked < sent  # the first packets of every call find a short queue
        fabric.set_faults(uplink, LinkFault())
        assert arrived(tos=0b10) == ([*range(10)] * calls, [0b10] * sent)
        near.close()
        sink.close()


@pytest.mark.sandboxed
@pytest.mark.parametrize("frame_bytes", [1000, 4150])  # only the longer ones are longer than a page of memory
def test_packets_that_find_a_long_queue_are_marked_if_they_are_capable_of_ecn(tmp_path: Path, frame_bytes: int) -> None:
    """Bursts of 80 frames into a link that takes 0.6 s for each: marks do not depend on how fast the burst is sent."""
    slow = leaf_spine(2, 1, 1, 10 * RATE_BPS, fabric_rate_bps=1000 * frame_bytes, mtu_bytes=frame_bytes + 50)
    payload = bytes(frame_bytes - 42)
    fault = LinkFault(mark_above_bytes=20 * frame_bytes)
    with MininetFabric(slow, log_dir=tmp_path, faults={UPLINK: fault}) as fabric:
        sender, sink = RawSender(fabric, "h1"), receiver(fabric, "h2", timeout_s=30.0)
        sink.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        found = {}
        for tos in (0b10, 0b01, 0b00):
            sender.set_tos(tos)
            for _ in range(80):
                sender.send(address(fabric, "h2"), 50_000, payload)
            found[tos] = [sink.recvmsg(9000, 64)[1][0][2][0] for _ in range(80)]
        marked = fabric.fault_counts()[UPLINK].marked
        fabric.set_faults(UPLINK, LinkFault(mark_above_bytes=200 * frame_bytes))
        fabric.set_rate(slow.link_at(UPLINK), 0.5)
        fabric.set_faults(UPLINK, LinkFault())
        assert fabric.fault_counts()[UPLINK].marked == marked
        sender.close()
        sink.close()
    for tos in (0b10, 0b01):
        assert set(found[tos]) == {tos, 0b11}
        assert found[tos][:15] == 15 * [tos]  # 20, less what the token bucket let pass at once
    assert set(found[0b00]) == {0b00}
    assert marked == sum(classes.count(0b11) for classes in found.values())


def round_trip_s(fabric: MininetFabric) -> float:
    """The shortest of some round trips between h1 and h2."""
    near, far = receiver(fabric, "h1", timeout_s=30.0), receiver(fabric, "h2", timeout_s=30.0)
    times = []
    for _ in range(20):
        begin = time.monotonic()
        near.sendto(b"ping", (str(address(fabric, "h2")), PORT))
        message, sender = far.recvfrom(100)
        far.sendto(message, sender)
        near.recv(100)
        times.append(time.monotonic() - begin)
    near.close()
    far.close()
    return min(times)


@pytest.mark.sandboxed
def test_each_direction_of_a_link_has_a_delay_of_its_own(tmp_path: Path) -> None:
    back = PortRef("spine1", 1)
    with MininetFabric(TOPOLOGY, log_dir=tmp_path, faults={UPLINK: LinkFault(delay_s=0.02)}) as fabric:
        short = round_trip_s(fabric)
        fabric.set_faults(back, LinkFault(delay_s=0.1))
        long = round_trip_s(fabric)
        fabric.set_faults(UPLINK, LinkFault())
        fabric.set_faults(back, LinkFault())
        none = round_trip_s(fabric)
    assert short >= 0.02
    assert long >= 0.12
    assert long > 3 * short  # no more than the delays asked for; exactly 6
    assert none < short


@pytest.mark.sandboxed
def test_links_have_the_delays_of_the_topology_beside_those_of_faults(tmp_path: Path) -> None:
    """A round trip crosses four links twice."""
    delayed = leaf_spine(2, 1, 1, RATE_BPS, host_delay_s=0.003, fabric_delay_s=0.01)
    with MininetFabric(delayed, log_dir=tmp_path, faults={UPLINK: LinkFault(delay_s=0.1)}) as fabric:
        long = round_trip_s(fabric)
        fabric.set_faults(UPLINK, LinkFault())
        short = round_trip_s(fabric)
        assert fabric.fault_counts().keys() == set(delayed.linked_ports())
    assert short >= 4 * 0.003 + 4 * 0.01
    assert long >= 0.1 + 4 * 0.003 + 4 * 0.01
    assert short < 3 * (4 * 0.003 + 4 * 0.01)


@pytest.mark.sandboxed
def test_late_packets_are_overtaken_and_none_is_lost(tmp_path: Path) -> None:
    packets = 500
    with MininetFabric(TOPOLOGY, log_dir=tmp_path, faults={UPLINK: LinkFault(delay_s=0.005)}) as fabric:
        sender, sink = RawSender(fabric, "h1"), receiver(fabric, "h2", timeout_s=30.0)

        def order() -> list[int]:
            for number in range(packets):
                sender.send(address(fabric, "h2"), 50_000, struct.pack("!I", number))
                time.sleep(0.0005)
            return [struct.unpack("!I", sink.recv(9000))[0] for _ in range(packets)]

        assert order() == list(range(packets))
        fabric.set_faults(UPLINK, LinkFault(reorder=0.2, late_by_s=0.02))
        arrivals = order()
        counts = fabric.fault_counts()[UPLINK]
        sender.close()
        sink.close()
    assert sorted(arrivals) == list(range(packets))
    overtaken = sum(number < max(arrivals[: at + 1]) for at, number in enumerate(arrivals))
    assert 0 < overtaken <= counts.late
    assert counts.late == pytest.approx(0.2 * packets, abs=6 * (0.2 * 0.8 * packets) ** 0.5)
    assert (counts.lost, counts.dropped) == (0, 0)


@pytest.mark.sandboxed
def test_segments_that_the_kernel_has_not_cut_yet_cross_a_delayed_interface(tmp_path: Path) -> None:
    """TCP with segmentation and checksum offloads: the tap gets whole packets, and the receiver accepts them."""
    names = ("offload-a", "offload-b")
    far = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        far_net = ["nsenter", f"--net=/proc/{far.pid}/ns/net"]
        command("ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1])
        while os.readlink(f"/proc/{far.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert far.poll() is None
        command("ip", "link", "set", names[1], "netns", str(far.pid))
        command("ip", "address", "add", "10.98.0.1/24", "dev", names[0])
        command("ip", "link", "set", names[0], "up")
        command(*far_net, "ip", "address", "add", "10.98.0.2/24", "dev", names[1])
        command(*far_net, "ip", "link", "set", names[1], "up")
        faults = LinkFaults(queue_bytes=1 << 20, bpffs=tmp_path / "bpf")
        faults.set(names[0], LinkFault(delay_s=0.001), 10**9)
        sent = random.Random(1).randbytes(8 << 20)
        with socket.create_server(("10.98.0.1", 0)) as server:
            port = server.getsockname()[1]
            code = f'import socket,sys; s=socket.create_connection(("10.98.0.1", {port})); ' + (
                '[sys.stdout.buffer.write(p) for p in iter(lambda: s.recv(65536), b"")]'
            )
            peer = subprocess.Popen([*far_net, sys.executable, "-c", code], stdout=subprocess.PIPE)
            connection, _ = server.accept()
            threading.Thread(target=lambda: (connection.sendall(sent), connection.close())).start()
            assert peer.communicate(timeout=100)[0] == sent
        assert faults.counts()[names[0]].dropped == 0
        faults.remove()
    finally:
        far.kill()
        far.wait()


@pytest.mark.sandboxed
def test_a_degraded_link_has_its_part_of_the_rate_until_it_is_restored(tmp_path: Path) -> None:
    with MininetFabric(TOPOLOGY, log_dir=tmp_path) as fabric:
        link = TOPOLOGY.link_at(UPLINK)
        sender, sink = RawSender(fabric, "h1"), receiver(fabric, "h2", timeout_s=30.0)

        def seconds() -> float:
            for _ in range(BURST):
                sender.send(address(fabric, "h2"), 50_000, bytes(4096))
            sink.recv(9000)
            begin = time.monotonic()
            for _ in range(BURST - 1):
                sink.recv(9000)
            return time.monotonic() - begin

        times = {}
        for part in (1.0, 0.2, 1.0):
            fabric.set_rate(link, part)
            times.setdefault(part, []).append(seconds())
        assert 3 < times[0.2][0] / max(times[1.0]) < 7
        assert fabric.link_counters()[UPLINK].dropped == 0
        with pytest.raises(ValueError, match="is not a part"):
            fabric.set_rate(link, 0.0)


def test_a_run_over_faulty_links_delivers_every_byte(tmp_path: Path) -> None:
    spec = {
        "name": "faulty",
        "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "20 Mbit/s"}},
        "workload": {"kind": "ring_allreduce", "bytes": 800_000},
        "placement": {"rule": "cross_leaf"},
        "policies": [{"name": "ecmp", "policy": "ecmp", "m": 4}],
        "links": {
            "leaf1:3": {"loss": "5 %", "corruption": "2 %", "delay": "2 ms", "mark_above": "20 KB"},
            "leaf1:4": {"loss": "5 %"},
            "h1:1": {"loss": "5 %"},
        },
        "events": [
            {"at_s": 0.1, "degrade": "leaf2:3", "part": 0.5},
            {"at_s": 0.2, "links": {"leaf2:4": {"loss": "5 %", "reorder": "10 %", "late_by": "5 ms"}, "leaf2:3": {}}},
            {"at_s": 0.2, "links": {"h2:1": {"loss": "5 %"}}},
        ],
    }
    path = tmp_path / "faulty.yaml"
    path.write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "testbed", "run", str(path), "--results", str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    (policy,) = json.loads(done.stdout)["policies"]
    assert policy["verified"]
    assert policy["retransmits"] > 0
    with (tmp_path / "out" / "faulty" / "links.csv").open(newline="") as file:
        faults = {
            row["port"]: [int(row[name]) for name in ("lost", "corrupted", "late")] for row in csv.DictReader(file)
        }
    assert faults.pop("leaf1:3")[1] > 0
    for lossy in ("leaf1:4", "h1:1", "h2:1"):
        assert faults.pop(lossy)[0] > 0
    assert faults.pop("leaf2:4")[2] > 0
    assert not any(any(counts) for counts in faults.values())
    (run,) = json.loads((tmp_path / "out" / "faulty" / "observations.json").read_text())["runs"]
    assert sum(run["discards"].values()) > 0  # damaged packets were refused
    assert [event["what"] for event in run["events"]] == [
        "degrade leaf2:3 to 0.5",
        "set leaf2:3 to no faults; set leaf2:4 to loss 5 %, reorder 10 % by 5000 us",
        "set h2:1 to loss 5 %",
    ]
