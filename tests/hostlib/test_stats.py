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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostlib import Device, TransportError, _engine, stats
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
def other(**environment: str) -> Iterator[Other]:
    with subprocess.Popen(
        [sys.executable, stats_process.__file__, str(MESSAGES)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
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
        assert [lane.port for lane in two.lanes][:2] == peer.ask("ports")
        assert {lane.port_method for lane in (*one.lanes, *two.lanes)} == {"socket"}


def test_a_process_names_its_build_its_job_and_its_rank() -> None:
    with other(SLURM_JOB_ID="77", RANK="3", SLURM_PROCID="9") as process:
        (seen,) = stats.survey([process.process.pid]).processes
    assert (seen.job, seen.rank) == ("77", "3")
    assert {device.version for device in seen.devices} == {_engine.build()[0]}
    assert {device.back_end for device in seen.devices} == {"soft"}
    with other(PARALET_JOB="bert", SLURM_JOB_ID="77", RANK="\x1b[31m", SLURM_PROCID="9" * 65) as process:
        (seen,) = stats.survey([process.process.pid]).processes
    assert (seen.job, seen.rank) == ("bert", "")


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


NICS = [(b"eth0", bytes(10) + b"\xff\xff\x0a\x00\x00\x01", 4791), (b"eth1", b"\xfd" + bytes(14) + b"\x01", 40_000)]
COUNTS = [len(stats.COUNTERS[group]) for group in ("messages", "discards", "path_client")]
PER_LANE = len(stats.COUNTERS["lane"])


def with_checksum(body: bytes) -> bytes:
    """The snapshot after its first header fields, which include the checksum."""
    return struct.pack("=8sII", b"paralet\0", 2, zlib.crc32(body)) + body


def snapshot(
    lanes: int = 2,
    pid: int = 0,
    interface: bytes = b"eth0",
    longer: int = 0,
    policy: bytes = b"ecmp",
    connections: Sequence[bytes] = (),
    connection_bytes: int = 152,
    nics: Sequence[tuple[bytes, bytes, int]] = (),
    nic_bytes: int = 40,
    missing: int = 0,
) -> bytes:
    """A snapshot as `hostlib.stats` describes it.

    `longer`, a multiple of 8, adds fields or counters to each record that may have more, `missing` leaves out counters
    of the path client, and the sizes of connections and NICs may be wrong.
    """
    more = longer // 8
    counts = [COUNTS[0] + more, COUNTS[1] + more, COUNTS[2] + more - missing]
    lane = 104 + 8 * PER_LANE + longer
    rows = [connection.ljust(connection_bytes, b"\0")[:connection_bytes] for connection in connections]
    rows += [struct.pack("=16s16sII", *nic, 0).ljust(nic_bytes, b"\0")[:nic_bytes] for nic in nics]
    # Every counter is its position among those of the device, from 3 on: connections and peers are 1 and 2.
    numbers, position = [], 3
    for known, count in zip(COUNTS, counts, strict=True):
        numbers += [*range(position, position + known), *([0] * more)][:count]
        position += known
    sizes = struct.pack("=8I", *counts, connection_bytes, len(connections), nic_bytes, len(nics), 0)
    device = struct.pack("=16s16s16sIIII", bytes(range(16)), interface, policy, 0x0A000001, 4791, 4096, 8)
    device += struct.pack("=QQQ16sQQ", 10**9, 1, 2, bytes(16), 1, 2) + sizes + struct.pack("=Q", 3)
    device += struct.pack(f"={len(numbers)}Q", *numbers) + b"".join(rows)
    header = 64 + longer
    total = header + len(device) + lanes * lane
    body = struct.pack("=QQqIIIIII", total, 7, 5_000_000_000, pid, header, len(device), lane, lanes, 0)
    rows = [
        struct.pack("=IIII16s16s", 0x0A000002, index, 77, 50_000 + index % 10_000, b"socket", bytes(16))
        + struct.pack(f"={7 + PER_LANE}Q", 2500, *range(1, 7 + PER_LANE))
        + bytes(longer)
        for index in range(lanes)
    ]
    return with_checksum(body + bytes(longer) + device + b"".join(rows))


def connection(state: int = 1) -> bytes:
    numbers = (0x0A000002, 4792, 5, 6, state, 7, 8, 9, *range(10, 21))
    return struct.pack("=16s8I11Q16s", bytes(range(16)), *numbers, bytes(16))


@pytest.mark.parametrize(
    ("group", "kind", "others"),
    [
        ("messages", stats.Messages, set()),
        ("discards", stats.Discards, set()),
        ("path_client", stats.PathClient, {"connected", "since_s"}),
    ],
)
def test_every_counter_of_the_table_is_a_field(group: str, kind: Any, others: set[str]) -> None:
    assert {field.name for field in fields(kind)} == stats.COUNTERS[group].keys() | others


def test_every_counter_of_lanes_is_a_field_behind_the_others() -> None:
    assert [field.name for field in fields(stats.LaneSnapshot)][12:] == list(stats.COUNTERS["lane"])


@pytest.mark.parametrize("longer", [0, 8, 24])
def test_snapshots_as_documented_are_read(longer: int) -> None:
    seen = stats.parse(snapshot(lanes=3, longer=longer) + b"the end of an earlier, larger snapshot")
    assert (seen.generation, seen.time_s, seen.guid) == (7, 5.0, bytes(range(16)).hex())
    assert (seen.name, seen.interface, seen.policy, seen.m) == ("10.0.0.1:4791", "eth0", "ecmp", 8)
    assert (seen.path_mtu, seen.line_rate_bps, seen.connections, seen.peers) == (4096, 10**9, 1, 2)
    counted = [getattr(seen.messages, name) for name in stats.COUNTERS["messages"]]
    counted += [getattr(seen.discards, name) for name in stats.COUNTERS["discards"]]
    assert counted == list(range(3, 3 + COUNTS[0] + COUNTS[1]))
    assert [(lane.peer, lane.lane, lane.port) for lane in seen.lanes] == [
        ("10.0.0.2", index, 50_000 + index) for index in range(3)
    ]
    lane = seen.lanes[2]
    assert (lane.qpn, lane.port_method, lane.window, lane.rtt_s, lane.min_rtt_s) == (77, "socket", 2.5, 1e-9, 2e-9)
    assert (lane.unfinished, lane.outstanding_bytes, lane.waiting_since_s, lane.member) == (3, 4, 5e-9, 6)
    assert [getattr(lane, name) for name in stats.COUNTERS["lane"]] == list(range(7, 7 + PER_LANE))


@pytest.mark.parametrize("longer", [0, 8])
def test_a_snapshot_has_counters_of_its_path_client(longer: int) -> None:
    seen = stats.parse(snapshot(policy=b"controller", longer=longer)).path_client
    assert seen is not None
    first = 3 + COUNTS[0] + COUNTS[1]
    assert [getattr(seen, name) for name in stats.COUNTERS["path_client"]] == list(range(first, first + COUNTS[2]))
    assert (seen.connected, seen.since_s) == (True, 2e-9)
    assert stats.parse(snapshot(longer=longer)).path_client is None


@pytest.mark.parametrize("longer", [0, 8])
def test_a_snapshot_has_connections_under_way(longer: int) -> None:
    rows = [connection(), connection(2)]
    seen = stats.parse(snapshot(connections=rows, connection_bytes=152 + longer, longer=longer))
    assert seen.under_way_omitted == 3
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
    assert stats.parse(snapshot()).under_way == ()


@pytest.mark.parametrize("size", [40, 48])
def test_a_snapshot_names_the_members_of_a_fused_device(size: int) -> None:
    seen = stats.parse(snapshot(connections=[connection()], nics=NICS, nic_bytes=size))
    assert seen.members == (stats.Member("eth0", "10.0.0.1", 4791), stats.Member("eth1", "fd00::1", 40_000))
    assert seen.address == "10.0.0.1"
    assert stats.parse(snapshot()).members == ()


def test_every_error_gives_one_sentence() -> None:
    good = snapshot()
    newer = good[:8] + struct.pack("=I", 3) + good[12:]
    least = 104 + 8 * PER_LANE
    short_lane, cut_off = bytearray(good[16:]), bytearray(snapshot(nics=NICS)[16:])
    struct.pack_into("=I", short_lane, 52 - 16, least - 8)
    struct.pack_into("=I", cut_off, 64 + 144 - 16, 3)
    for data, sentence in (
        (b"", "has 0 bytes, less than the 64 of a header"),
        (b"x" + good[1:], "does not begin with paralet's magic bytes"),
        (newer, "has version 3 and this paralet reads 2: use the paralet of that process"),
        (good[:-1], f"claims {len(good)} bytes and has {len(good) - 1}"),
        (good[:-1] + b"x", "checksum is wrong"),
        (with_checksum(bytes(short_lane)), f"lane record has {least - 8} bytes, less than version 2's {least}"),
        (snapshot(interface=b"\x1b[31mred"), "not printable"),
        (snapshot(interface=b"0123456789abcdef"), "padded with zeros"),
        (snapshot(interface=b"a\0b"), "padded with zeros"),
        (snapshot(missing=1), f"has {COUNTS[2] - 1} counters of path_client and this paralet reads {COUNTS[2]}"),
        (snapshot(connections=[connection()], connection_bytes=128), "1 connections of 128 bytes do not fit the"),
        (snapshot(connections=[connection(3)]), "in the state 3, which is unknown"),
        (snapshot(nics=NICS, nic_bytes=32), "2 members of 32 bytes do not fit"),
        (with_checksum(bytes(cut_off)), "3 members of 40 bytes do not fit"),
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
        (snapshot()[:-20], None, f"claims {len(snapshot())} bytes and has {len(snapshot()) - 20}"),
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
