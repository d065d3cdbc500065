# SPDX-License-Identifier: Apache-2.0
"""Live counters: a process reads the counters of another process's devices; invalid snapshots are refused."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostlib import Device, TransportError, stats
from hostlib.stats import ConnectionSnapshot, DeviceSnapshot, SnapshotError

from . import stats_process
from .conftest import DEADLINE_S, A, Pair

ROOT = Path(__file__).parents[2]
MESSAGES = 30


class Other:
    """Another process with two devices."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, question: str) -> Any:
        assert self.process.stdin is not None
        print(question, file=self.process.stdin, flush=True)
        return json.loads(self.line())


@contextmanager
def other() -> Iterator[Other]:
    with subprocess.Popen(
        [sys.executable, stats_process.__file__, str(MESSAGES)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Other(process)
        finally:
            process.kill()


def devices_of(pid: int) -> tuple[DeviceSnapshot, ...]:
    return next((process.devices for process in stats.survey([pid]).processes), ())


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def as_counters(device: DeviceSnapshot) -> dict[str, Any]:
    """The snapshot in the form of Device.counters()."""
    seen = asdict(device)
    return {
        **{key: seen[key] for key in ("messages", "discards", "peers", "connections")},
        "lanes": [
            {
                key: value
                for key, value in lane.items()
                if key not in ("unfinished", "outstanding_bytes", "waiting_since_s")
            }
            for lane in seen["lanes"]
        ],
        "qps": len(device.lanes),
    }


def rounded(counters: dict[str, Any]) -> dict[str, Any]:
    """Times and windows rounded to the precision of a snapshot."""
    lanes = [
        {
            **lane,
            "window": round(lane["window"], 3),
            "rtt_s": round(lane["rtt_s"], 9),
            "min_rtt_s": round(lane["min_rtt_s"], 9),
        }
        for lane in counters["lanes"]
    ]
    return {**counters, "lanes": lanes}


def test_live_counters_equal_the_other_processs_own_counters() -> None:
    with other() as peer:
        pid = peer.process.pid
        last: list[Any] = []

        def agree() -> bool:
            counted = [rounded(counters) for counters in peer.ask("counters")]
            seen = [rounded(as_counters(device)) for device in devices_of(pid)]
            last[:] = [counted, seen]
            return counted == seen

        assert eventually(agree), last
        one, two = devices_of(pid)
        assert (one.interface, one.address, one.policy, one.m, one.line_rate_bps) == ("lo", A, "ecmp", 4, None)
        assert (two.address, two.policy, two.m) == ("127.0.0.2", "pinned", 2)
        assert one.owner_pid == two.owner_pid == pid
        assert one.guid != two.guid
        sent = sum(range(50_000, 50_000 + MESSAGES))
        assert (one.messages.sends, one.messages.send_bytes, one.messages.receives) == (MESSAGES, sent, 0)
        assert (two.messages.receives, two.messages.receive_bytes, two.messages.sends) == (MESSAGES, sent, 0)
        assert sum(lane.tx_bytes for lane in one.lanes) >= sent
        assert [lane.port for lane in two.lanes][:2] == [50001, 50002]
        assert {lane.port_method for lane in (*one.lanes, *two.lanes)} == {"socket"}


def test_a_killed_process_leaves_no_counters() -> None:
    with other() as peer:
        pid = peer.process.pid
        assert eventually(lambda: len(devices_of(pid)) == 2)
        peer.process.kill()
        peer.process.wait()
        survey = stats.survey([pid])
        assert survey.missing == (pid,)
        assert not survey.processes
        assert pid not in {process.pid for process in stats.survey().processes}
        assert not [name for name in os.listdir("/dev/shm") if "paralet" in name]


def test_a_fork_has_no_devices() -> None:
    with other() as peer:
        assert eventually(lambda: len(devices_of(peer.process.pid)) == 2)
        child = peer.ask("fork")
        try:
            assert "/memfd:paralet-stats (deleted)" in links(child)
            assert devices_of(child) == ()
        finally:
            os.kill(child, signal.SIGKILL)


def links(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(entry) for entry in folder.iterdir()]


def test_a_device_is_visible_while_it_is_open() -> None:
    with Device(A, line_rate_bps=1e9, policy="adaptive") as device:
        assert eventually(lambda: len(devices_of(os.getpid())) == 1)
        (seen,) = devices_of(os.getpid())
        assert (seen.line_rate_bps, seen.policy, seen.m) == (10**9, "adaptive", 8)
        assert (seen.path_mtu, seen.udp_port) == (device.path_mtu, device.udp_port)
        assert seen.name == f"{A}:{device.udp_port}"
        assert os.getpid() in {process.pid for process in stats.survey().processes}
        device.close()
        assert devices_of(os.getpid()) == ()


def test_an_idle_device_publishes_nothing() -> None:
    with Device(A):
        assert eventually(lambda: len(devices_of(os.getpid())) == 1)
        (before,) = devices_of(os.getpid())
        time.sleep(5 * stats.EVERY_S)
        assert devices_of(os.getpid()) == (before,)


def under_way(device: Device) -> tuple[ConnectionSnapshot, ...]:
    """What this process's device says of its connections."""
    (seen,) = (each for each in devices_of(os.getpid()) if each.udp_port == device.udp_port and each.address == A)
    assert seen.under_way is not None
    return seen.under_way


def test_both_ends_of_a_connection_tell_what_is_under_way(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    assert eventually(lambda: under_way(pair.one) == ())
    send = pair.to.send(bytes(100), 5)
    other = pair.back.recv(bytearray(100), 6)
    assert eventually(lambda: [each.advertisements for each in under_way(pair.one)] == [1])
    (near,) = under_way(pair.one)
    assert (near.state, near.sends, near.send_tag, near.advertised_tag) == ("open", 1, 5, 6)
    assert (near.in_flight, near.receives, near.early, near.posted, near.unposted) == (0, 0, 0, 0, 0)
    assert near.progressed_s <= time.monotonic()
    assert eventually(lambda: any(each.under_way for each in devices_of(os.getpid()) if each.address == "127.0.0.2"))
    one, two = sorted(devices_of(os.getpid()), key=lambda each: each.address)
    assert two.under_way is not None
    (far,) = two.under_way
    assert (far.receives, far.receive_tag, far.sends) == (1, 6, 0)
    assert (near.peer_guid, near.remote_id, near.peer_port) == (two.guid, far.id, two.udp_port)
    assert (far.peer_guid, far.remote_id, far.peer_port) == (one.guid, near.id, one.udp_port)
    receive = pair.back.recv(bytearray(100), 5)
    send.wait(DEADLINE_S)
    receive.wait(DEADLINE_S)
    pair.to.send(bytes(100), 6).wait(DEADLINE_S)
    other.wait(DEADLINE_S)
    assert eventually(lambda: under_way(pair.one) == ())


def test_a_wait_begins_once_and_new_requests_do_not_renew_it(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    waiting = [pair.to.send(bytes(10), 1)]
    assert eventually(lambda: [each.sends for each in under_way(pair.one)] == [1])
    (first,) = under_way(pair.one)
    waiting.append(pair.to.send(bytes(10), 1))
    assert eventually(lambda: [each.sends for each in under_way(pair.one)] == [2])
    assert under_way(pair.one)[0].progressed_s == first.progressed_s
    pair.back.recv(bytearray(10), 1).wait(DEADLINE_S)
    assert eventually(lambda: [each.sends for each in under_way(pair.one)] == [1])
    assert under_way(pair.one)[0].progressed_s > first.progressed_s
    pair.back.recv(bytearray(10), 1).wait(DEADLINE_S)
    for send in waiting:
        send.wait(DEADLINE_S)


def test_a_snapshot_has_the_thousand_connections_that_have_waited_longest(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    connections = [pair.one.connect(pair.listener.handle) for _ in range(1030)]
    early = [each.recv(bytearray(1)) for each in connections[:1020]]
    assert eventually(lambda: len(under_way(pair.one)) == 1020)
    late = [each.recv(bytearray(1)) for each in connections[1020:]]

    def omitted() -> int:
        return next(each.under_way_omitted for each in devices_of(os.getpid()) if each.address == A)

    assert eventually(lambda: omitted() == 6), omitted()
    seen = under_way(pair.one)
    since = sorted(each.progressed_s for each in seen)
    assert len(seen) == 1024
    assert since[1019] < since[1020]
    for each in connections:
        each.close()
    for receive in (*early, *late):
        with pytest.raises(TransportError):
            receive.wait(DEADLINE_S)


def test_forbidden_and_missing_processes_are_distinguished() -> None:
    survey = stats.survey([1, 2**22 + 1])  # no process has an id above 2^22
    assert survey.missing == (2**22 + 1,)
    if os.geteuid() != 0:
        assert survey.forbidden == (1,)


# -- snapshots, valid and invalid --------------------------------------------------------------------------------------


def with_checksum(body: bytes) -> bytes:
    """The snapshot after its first header fields, which include the checksum."""
    return struct.pack("=8sII", b"paralet\0", 1, zlib.crc32(body)) + body


def snapshot(
    lanes: int = 2,
    pid: int = 0,
    interface: bytes = b"eth0",
    longer: int = 0,
    cnps: bytes = b"",
    policy: bytes = b"ecmp",
    path_client: bytes = struct.pack("=15Q", *range(1, 16)),
    under_way: bytes = b"",
) -> bytes:
    """A snapshot as `hostlib.stats` describes it; `longer` adds bytes to each record of version 1."""
    header, lane = 64 + longer, 160 + longer
    device = 176 + len(path_client) + len(cnps) + len(under_way) + longer
    tail = bytes(longer)
    total = header + device + lanes * lane
    body = struct.pack("=QQqIIIIII", total, 7, 5_000_000_000, pid, header, device, lane, lanes, 0) + tail
    body += struct.pack("=16s16s16s", bytes(range(16)), interface, policy)
    body += struct.pack("=IIII14Q", 0x0A000001, 4791, 4096, 8, 10**9, *range(1, 14)) + path_client + cnps
    body += under_way + tail
    rows = (
        struct.pack("=IIII16s16Q", 0x0A000002, index, 77, 50_000 + index % 10_000, b"socket", 2500, *range(1, 16))
        for index in range(lanes)
    )
    return with_checksum(body + b"".join(row + tail for row in rows))


@pytest.mark.parametrize("longer", [0, 8, 24])
def test_snapshots_as_documented_are_read(longer: int) -> None:
    seen = stats.parse(snapshot(lanes=3, longer=longer) + b"the end of an earlier, larger snapshot")
    assert (seen.generation, seen.time_s, seen.guid) == (7, 5.0, bytes(range(16)).hex())
    assert (seen.name, seen.interface, seen.policy, seen.m) == ("10.0.0.1:4791", "eth0", "ecmp", 8)
    assert (seen.path_mtu, seen.line_rate_bps, seen.connections, seen.peers) == (4096, 10**9, 1, 2)
    assert list(asdict(seen.messages).values()) == [3, 4, 5, 6, 7]
    assert list(asdict(seen.discards).values()) == [8, 9, 10, 11, 12, 13, 0]
    assert [(lane.peer, lane.lane, lane.port) for lane in seen.lanes] == [
        ("10.0.0.2", index, 50_000 + index) for index in range(3)
    ]
    lane = seen.lanes[2]
    assert (lane.qpn, lane.port_method, lane.window, lane.rtt_s, lane.min_rtt_s) == (77, "socket", 2.5, 1e-9, 2e-9)
    assert list(asdict(lane).values())[8:21] == list(range(3, 16))
    assert list(asdict(lane).values())[21:] == [0, 0, 0.0, 0, 0, 0]  # from an older paralet


@pytest.mark.parametrize("longer", [0, 8])
def test_a_snapshot_may_have_counters_of_its_path_client(longer: int) -> None:
    seen = stats.parse(snapshot(policy=b"controller", longer=longer)).path_client
    assert seen is not None
    assert list(asdict(seen).values()) == [True, 2e-9, *range(3, 16)]
    assert stats.parse(snapshot(longer=longer)).path_client is None
    assert stats.parse(snapshot(policy=b"controller", path_client=b"")).path_client is None  # from an older paralet


def test_a_snapshot_may_count_congestion_notifications() -> None:
    assert stats.parse(snapshot(cnps=struct.pack("=Q", 14))).discards.cnps == 14
    assert stats.parse(snapshot()).discards.cnps == 0  # from an older paralet


def connections(*rows: bytes, size: int = 136, omitted: int = 0) -> bytes:
    """The part of a device's record about connections under way, with records of `size` bytes."""
    return struct.pack("=IIQ", size, len(rows), omitted) + b"".join(row.ljust(size, b"\0") for row in rows)


def connection(state: int = 1) -> bytes:
    numbers = (0x0A000002, 4792, 5, 6, state, 7, 8, 9, *range(10, 21))
    return struct.pack("=16s8I11Q", bytes(range(16)), *numbers)


@pytest.mark.parametrize("longer", [0, 8])
def test_a_snapshot_may_have_connections_under_way(longer: int) -> None:
    under_way = connections(connection(), connection(2), size=136 + longer, omitted=3)
    seen = stats.parse(snapshot(cnps=bytes(8), under_way=under_way, longer=longer))
    assert seen.under_way_omitted == 3
    assert seen.under_way is not None
    one, two = seen.under_way
    assert (one.peer, one.peer_port, one.peer_guid, one.id, one.remote_id) == (
        "10.0.0.2",
        4792,
        bytes(range(16)).hex(),
        5,
        6,
    )
    assert list(asdict(one).values())[5:] == ["open", 7, 8, 9, *range(10, 19), 19e-9, 20e-9]
    assert two.state == "closing"
    assert len(seen.lanes) == 2
    assert stats.parse(snapshot(cnps=bytes(8))).under_way is None  # from an older paralet
    assert stats.parse(snapshot(cnps=bytes(8), under_way=connections())).under_way == ()


def members(*rows: tuple[bytes, bytes, int], size: int = 40) -> bytes:
    """The part of a device's record from its IPv6 address on."""
    packed = (struct.pack("=16s16sI", *row).ljust(size, b"\0") for row in rows)
    return bytes(16) + struct.pack("=II", size, len(rows)) + b"".join(packed)


NICS = [(b"eth0", bytes(10) + b"\xff\xff\x0a\x00\x00\x01", 4791), (b"eth1", b"\xfd" + bytes(14) + b"\x01", 40_000)]


@pytest.mark.parametrize("size", [40, 48])
def test_a_snapshot_may_name_the_members_of_a_fused_device(size: int) -> None:
    seen = stats.parse(snapshot(cnps=bytes(8), under_way=connections(connection()) + members(*NICS, size=size)))
    assert seen.members == (stats.Member("eth0", "10.0.0.1", 4791), stats.Member("eth1", "fd00::1", 40_000))
    assert seen.address == "10.0.0.1"
    assert stats.parse(snapshot(cnps=bytes(8), under_way=connections() + members())).members == ()


def test_every_error_gives_one_sentence() -> None:
    good = snapshot()
    newer = good[:8] + struct.pack("=I", 2) + good[12:]
    short_lane = bytearray(good[16:])
    struct.pack_into("=I", short_lane, 52 - 16, 152)
    for data, sentence in (
        (b"", "has 0 bytes, less than the 64 of a header"),
        (b"x" + good[1:], "does not begin with paralet's magic bytes"),
        (newer, "has version 2 and this paralet reads 1: use the paralet of that process"),
        (good[:-1], f"claims {len(good)} bytes and has {len(good) - 1}"),
        (good[:-1] + b"x", "checksum is wrong"),
        (with_checksum(bytes(short_lane)), "lane record has 152 bytes, less than version 1's 160"),
        (snapshot(interface=b"\x1b[31mred"), "not printable"),
        (snapshot(interface=b"0123456789abcdef"), "padded with zeros"),
        (snapshot(interface=b"a\0b"), "padded with zeros"),
        (snapshot(cnps=bytes(8), under_way=connections(connection(), size=128)), "do not fit the snapshot's device"),
        (snapshot(cnps=bytes(8), under_way=connections(connection())[:-8]), "do not fit the snapshot's device record"),
        (snapshot(cnps=bytes(8), under_way=connections(connection(3))), "in the state 3, which is unknown"),
        (snapshot(cnps=bytes(8), under_way=connections() + members(*NICS, size=32)), "members of 32 bytes do not fit"),
        (snapshot(cnps=bytes(8), under_way=connections() + members(*NICS)[:-8]), "2 members of 40 bytes do not fit"),
    ):
        with pytest.raises(SnapshotError, match=sentence):
            stats.parse(data)


@given(st.data())
def test_damaged_snapshots_are_refused(data: st.DataObject) -> None:
    good = snapshot()
    if data.draw(st.booleans()):
        damaged = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        place = data.draw(st.integers(0, len(good) - 1))
        damaged = good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    with pytest.raises(SnapshotError):
        stats.parse(damaged)


@given(st.data())
def test_any_content_with_a_valid_checksum_is_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(snapshot(lanes=data.draw(st.integers(0, 3)))[16:])
    for _ in range(data.draw(st.integers(1, 4))):
        width = data.draw(st.sampled_from([1, 4, 8]))
        place = data.draw(st.integers(0, len(body) - width))
        body[place : place + width] = data.draw(st.binary(min_size=width, max_size=width))
    body = body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body
    try:
        seen = stats.parse(with_checksum(bytes(body)))
    except SnapshotError:
        return
    assert all(0 <= lane.port <= 0xFFFF for lane in seen.lanes)
    assert all(name.isprintable() for name in (seen.interface, seen.policy, *(lane.port_method for lane in seen.lanes)))


@contextmanager
def impostor(content: bytes, size: int | None = None) -> Iterator[int]:
    """A file of this process with the name of live counters: its descriptor."""
    file = os.memfd_create("paralet-stats")
    try:
        os.write(file, content)
        if size is not None:
            os.ftruncate(file, size)
        yield file
    finally:
        os.close(file)


@pytest.mark.parametrize(
    ("content", "size", "sentence"),
    [
        (b"nonsense", None, "less than the 64 of a header"),
        (snapshot()[:-20], None, "claims 680 bytes and has 660"),
        (b"", 2**40, "exceeds the limit of"),
    ],
)
def test_an_invalid_file_is_reported_and_skipped(content: bytes, size: int | None, sentence: str) -> None:
    with impostor(content, size):
        survey = stats.survey([os.getpid()])
    assert survey.processes == ()
    (reported,) = survey.unreadable
    assert reported.startswith(f"process {os.getpid()}: ")
    assert sentence in reported


def test_a_snapshot_with_another_owner_is_ignored() -> None:
    with impostor(snapshot(pid=os.getpid())):
        assert [device.interface for device in devices_of(os.getpid())] == ["eth0"]
    with impostor(snapshot(pid=os.getpid() + 1)):
        assert devices_of(os.getpid()) == ()


def test_an_empty_file_is_ignored() -> None:
    with impostor(b""):
        assert stats.survey([os.getpid()]) == stats.Survey((), (), (), ())
