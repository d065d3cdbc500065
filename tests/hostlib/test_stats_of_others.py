# SPDX-License-Identifier: Apache-2.0
"""Live counters that a user makes up cost others little, and cannot pass for another user's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from hostlib import published, stats
from hostlib.port_owners import Endpoint, port_owners
from hostlib.published import Amounts, Budgets, Identity, LimitError, Limits
from hostlib.stats import Process, without_false_claims
from tests.hostlib.test_stats import connection, impostor, snapshot
from tests.testbed.live.snapshots import device

ME = os.getpid()
SMALL = Amounts(files=10_000, read_bytes=1 << 20, rereads=3, lanes=50)


@contextmanager
def impostors(*contents: bytes) -> Iterator[None]:
    with ExitStack() as stack:
        for content in contents:
            stack.enter_context(impostor(content))
        yield


def test_four_snapshots_of_74000_lanes_are_read_in_part() -> None:
    large = snapshot(lanes=74_000, pid=ME)
    with impostors(large, large, large, large):
        survey = stats.survey()
    (own,) = (process for process in survey.processes if process.pid == ME)
    lanes = sum(len(device.lanes) for device in own.devices)
    assert 0 < lanes <= Limits().process.lanes
    assert own.devices[0].lanes_omitted == 74_000 - lanes
    sentences = [
        sentence for sentence in survey.left_out if sentence.startswith(f"process {ME} of user {os.getuid()}: ")
    ]
    assert any("it has more lanes than one look reads" in sentence for sentence in sentences)
    assert any(f"{74_000 - lanes:,} lanes are left out" in sentence for sentence in sentences)


def test_bytes_files_and_lanes_are_limited() -> None:
    for amounts, words in (
        (replace(SMALL, read_bytes=1000), "bytes"),
        (replace(SMALL, files=3), "open files"),
        (replace(SMALL, lanes=0), "lanes"),
    ):
        limits = Limits(process=amounts, user=SMALL, all=SMALL)
        with impostors(snapshot(pid=ME), snapshot(pid=ME)):
            survey = stats.survey([ME], limits)
        assert any(f"it has more {words} than one look reads" in sentence for sentence in survey.left_out), words


def test_snapshots_that_always_change_are_not_read_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr("time.sleep", naps.append)
    with impostors(*[b"x" * 100] * 20):
        survey = stats.survey([ME], Limits(process=SMALL, user=SMALL, all=SMALL))
    assert len(naps) == SMALL.rereads
    assert len(survey.unreadable) == 4, "three sentences, and how many more there are"
    assert survey.unreadable[3] == f"process {ME}: and 17 more like these"


def test_one_user_does_not_take_the_room_of_another() -> None:
    amounts = replace(SMALL, lanes=10)
    budgets = Budgets(Limits(process=amounts, user=replace(SMALL, lanes=15), all=replace(SMALL, lanes=40)))
    budgets.of(1000).take("lanes", 10)
    with pytest.raises(LimitError, match="user 1000 has more lanes"):
        budgets.of(1000).take("lanes", 6)
    budgets.of(1001).take("lanes", 10)
    budgets.of(1002).take("lanes", 10)
    with pytest.raises(LimitError, match="it has more lanes"):
        budgets.of(1003).take("lanes", 11)
    budgets.of(1003).take("lanes", 10)
    with pytest.raises(LimitError, match="all users together have more lanes"):
        budgets.of(1004).take("lanes", 1)


def test_records_of_a_device_are_limited() -> None:
    with pytest.raises(stats.SnapshotError, match="65 members"):
        stats.parse(snapshot(nics=[(b"eth0", bytes(16), 4791)] * 65))
    with pytest.raises(stats.SnapshotError, match="1025 connections"):
        stats.parse(snapshot(connections=[connection()] * 1025))


def test_the_owner_is_the_kernels() -> None:
    with impostor(snapshot(pid=ME)):
        (process,) = stats.survey([ME]).processes
    assert process.uid == os.getuid()


def test_a_file_that_another_user_has_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a set-user-ID program inherits it from its caller."""
    monkeypatch.setattr(published, "identity_of", lambda pid: Identity("S", pid, 4242))
    with impostor(snapshot(pid=ME)) as file:
        if os.getuid() == 0:
            os.fchown(file, 1000, 1000)  # root's own files are trusted
        survey = stats.survey([ME])
    assert survey.processes == ()
    assert "whose process it is not, made one of its snapshots" in survey.unreadable[0]


def test_the_socket_tells_whose_device_it_is() -> None:
    v4, v6 = (socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6))
    with v4, v6:
        v4.bind(("127.0.0.1", 0))
        v6.bind(("::1", 0))
        endpoints: list[Endpoint] = [("udp", "127.0.0.1", v4.getsockname()[1]), ("udp", "::1", v6.getsockname()[1])]
        assert port_owners(ME, endpoints) == {endpoint: {os.getuid()} for endpoint in endpoints}
        for _, address, port in endpoints:
            true = Process(ME, "job", (device(address=address, udp_port=port),), uid=os.getuid())
            false = Process(ME, "liar", (device(address=address, udp_port=port, guid="b"),), uid=4242)
            other = Process(ME, "liar", (device(address="10.0.0.9"),), uid=4242)
            kept, sentences = without_false_claims([false, true, other])
            assert kept == [true, other]
            assert sentences == [
                f"process {ME} of user 4242 claims {true.devices[0].name}, which is another user's: it is left out"
            ]
    assert port_owners(ME, endpoints) == {}


def test_a_tcp_port_belongs_to_who_listens_there_and_not_to_who_has_the_udp_port_of_that_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        port = listener.getsockname()[1]
        udp.bind(("127.0.0.1", 0))
        endpoints: list[Endpoint] = [("tcp", "127.0.0.1", port), ("tcp", "127.0.0.1", udp.getsockname()[1])]
        with socket.create_connection(("127.0.0.1", port)):
            assert port_owners(ME, endpoints) == {endpoints[0]: {os.getuid()}}
            over_tcp = Process(ME, "job", (device(address="127.0.0.1", udp_port=port, protocol="tcp"),), uid=4242)
            over_udp = Process(ME, "job", (device(address="127.0.0.1", udp_port=port),), uid=os.getuid())
            assert without_false_claims([over_tcp, over_udp]) == ([over_tcp, over_udp], [])


def test_claims_about_which_the_kernel_knows_nothing_stay_and_are_told() -> None:
    claims = [Process(ME, "job", (device(address="192.0.2.1"),), uid=uid) for uid in (1000, 1001)]
    kept, sentences = without_false_claims(claims)
    assert kept == claims
    assert sentences == [
        f"192.0.2.1:4791 is claimed by user 1000 (process {ME}), user 1001 (process {ME}): at most one of them is right"
    ]
    of_one_user = [replace(claim, uid=7) for claim in claims]
    assert without_false_claims(of_one_user) == (of_one_user, [])
