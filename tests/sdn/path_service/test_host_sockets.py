# SPDX-License-Identifier: Apache-2.0
"""Hosts whose sockets native code reads: their renewals never reach Python, and all else goes on as before."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sdn._native import Done, Elephants, Sockets
from sdn._native import Host as NativeHost
from sdn.path_service.channels import PlainChannels
from sdn.path_service.connection import Connection
from sdn.path_service.host_sockets import HostSockets
from sdn.path_service.journal import Journal
from sdn.path_service.latency import Latency
from sdn.path_service.log_file import LogFile
from sdn.path_service.messages import MAX_HOST_LINE, Announce, Assign, Error, Ping, Pong, Release, to_line
from sdn.path_service.replay import replay
from sdn.path_service.server import Server
from sdn.path_service.service import Options
from tests.certificates import Issued
from tests.sdn.path_service import test_tls
from tests.sdn.path_service.sample import LANES, address
from tests.sdn.path_service.test_server import TIMEOUT_S, TOPOLOGY, Host, run, served

PEER = address(TOPOLOGY, 5)
MANY = 50


def renewal(number: int) -> tuple[Release, Announce]:
    return Release(number - 1), Announce(number, PEER, 1)


async def begun(host: Host) -> None:
    host.say(Announce(1, PEER, 1))
    await assigned(host, 1)


async def assigned(host: Host, number: int) -> Assign:
    """The answer to an announcement."""
    answer = await host.hear()
    assert isinstance(answer, Assign)
    assert (answer.id, len(answer.ports)) == (number, LANES)
    return answer


def keep_from_python(server: Server) -> None:
    def handle(*_: Any) -> Any:
        raise AssertionError("this has come to Python")

    server.service.handle = handle  # type: ignore[method-assign, assignment]


async def renews(server: Server, host: Host) -> None:
    """A host renews its elephant one by one, then many times at once, and pings."""
    await begun(host)
    keep_from_python(server)
    for number in range(2, MANY):
        host.say(*renewal(number))
        assert (await assigned(host, number)).generation == number
    host.say(*(line for number in range(MANY, 2 * MANY) for line in renewal(number)), Ping(7))
    for number in range(MANY, 2 * MANY):
        await assigned(host, number)
    assert await host.hear() == Pong(7)
    assert server.service.counts["announced"] == sum(server.latency.counts) == 2 * MANY - 1
    assert server.service.counts["released"] == 2 * MANY - 2
    assert server.latency.sum_s > 0
    (flow,) = server.service.flows(2)
    assert flow["ids"] == [2 * MANY - 1]
    assert flow["since_s"] > 0


def test_renewals_never_reach_python_and_are_logged_for_replay(tmp_path: Path) -> None:
    async def body(journal: Journal) -> None:
        async with served(journal=journal) as (server, at):
            await renews(server, await Host.greeted(at, 1))
            journal.sent(server.now())

    path = tmp_path / "events.jsonl"
    with LogFile(path) as lines:
        journal = Journal(lines)
        journal.head(TOPOLOGY, Options())
        run(lambda: body(journal))
    heard = [said for each in replay([path]) for conn, said in each.sends if isinstance(said, Assign) and said.id]
    assert [said.id for said in heard] == [*range(1, 2 * MANY)], "and the sums are right, which it has checked"


def test_renewals_by_tls_are_answered_in_the_same_way(service: Issued, first: Issued) -> None:
    async def body() -> None:
        async with test_tls.served(service) as (server, at):
            await renews(server, await test_tls.greeted(at, first, 0))

    run(body)


def test_renewals_in_pieces_and_between_other_lines_are_answered_in_order() -> None:
    async def body() -> None:
        async with served() as (_, at):
            host = await Host.greeted(at, 1)
            host.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await begun(host)
            other = address(TOPOLOGY, 4)
            said = [
                to_line(each)
                for number in range(2, 6)
                for each in (*renewal(number), Announce(1000 + number, other, 1), Ping(number))
            ]
            lines = b"".join(said)
            for at_byte in range(0, len(lines), 7):
                host.writer.write(lines[at_byte : at_byte + 7])
                await asyncio.sleep(0)
            generation = 1
            for number in range(2, 6):
                for each in (number, 1000 + number):
                    answer = await assigned(host, each)
                    assert answer.generation == generation + 1
                    generation += 1
                assert await host.hear() == Pong(number)

    run(body)


def test_a_service_that_may_not_answer_does_not() -> None:
    class Guard:
        leads = True

        def may_assign(self) -> bool:
            return self.leads

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    async def body() -> None:
        async with served() as (server, at):
            server.guard = guard = Guard()
            host = await Host.greeted(at, 1)
            await begun(host)
            guard.leads = False
            host.say(*renewal(2))
            async with asyncio.timeout(TIMEOUT_S):
                while server.service.counts["announced"] < 2:
                    await asyncio.sleep(0.005)
            guard.leads = True
            host.say(*renewal(3))
            assert (await assigned(host, 3)).generation == 3, "the second one was not answered"

    run(body)


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_host_whose_line_makes_the_service_step_down_hears_so(
    is_plain: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PlainChannels, "are_plain", is_plain)  # otherwise bytes come as they do from TLS

    class Guard:
        """Finds out that it leads no more when it is asked."""

        def __init__(self, server: Server) -> None:
            self.server = server
            self.leads = True

        def may_assign(self) -> bool:
            if not self.leads:
                self.server.turn_away("another service leads")
            return self.leads

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    async def body() -> None:
        for _ in range(10):
            async with served() as (server, at):
                server.guard = guard = Guard(server)
                host = await Host.greeted(at, 1)
                guard.leads = False
                host.say(Ping(1))
                assert await host.hear() == Error("standby", "another service leads")
                assert await host.closed() == b""

    run(body)
    assert caplog.text == ""


def test_a_host_that_python_fails_to_handle_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    received = Connection.data_received

    def data_received(connection: Connection, data: bytes) -> None:
        if b"fails" in data:
            raise MemoryError
        received(connection, data)

    async def body() -> None:
        async with served() as (server, at):
            hosts = [await Host.greeted(at, number) for number in (1, 2, 3)]
            monkeypatch.setattr(Connection, "data_received", data_received)
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            other = address(TOPOLOGY, 4)
            for host, line in zip(hosts, (b"", b"fails", b""), strict=True):
                host.writer.write(line + to_line(Announce(1, other, 1)))
            for host in (hosts[0], hosts[2]):
                await assigned(host, 1)
            assert await hosts[1].closed() == b""
            assert len(server.connections) == 2

    run(body)


def test_a_flood_of_renewals_is_read_in_short_rounds() -> None:
    sockets, done = Sockets(), Done(is_logged=False)
    elephants: Elephants[Any] = Elephants()
    ends = []
    for number in range(64):
        ours, theirs = socket.socketpair()
        theirs.sendall(to_line(Ping(1)) * 100)
        native = NativeHost(1e9, 1e9, MAX_HOST_LINE, 0.0)
        native.is_clear = True
        native.serve(elephants)
        sockets.add(number, os.dup(ours.fileno()), native)
        ends.append((ours, theirs))
    rounds = 0
    while done.answers < 6400 and rounds < 64:
        assert sockets.round(0.0, may_answer=True, most=64, most_s=0.0, done=done) == []
        rounds += 1
        assert done.answers == 100 * rounds, "without time a round handles one socket"
    assert (done.answers, rounds) == (6400, 64), "and each socket has its turn"
    with pytest.raises(ValueError, match="a socket of number 7 already"):
        sockets.add(7, os.dup(ends[0][0].fileno()), native)
    for end in ends:
        for each in end:
            each.close()


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_line_that_is_too_long_is_refused_though_it_is_a_ping(
    is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlainChannels, "are_plain", is_plain)

    async def body() -> None:
        async with served() as (_, at):
            host = await Host.greeted(at, 1)
            host.writer.write(to_line(Ping(1)).replace(b"{", b"{" + b" " * MAX_HOST_LINE, 1))
            refused = await host.hear()
            assert isinstance(refused, Error)
            assert refused.code == "line"

    run(body)


def test_times_of_renewals_are_those_of_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []
    monkeypatch.setattr(Latency, "note", lambda _latency, _seconds, count: noted.append(count))

    async def body() -> None:
        async with served() as (_, at):
            hosts = [await Host.greeted(at, number) for number in (1, 2)]
            for host in hosts:
                await begun(host)
            noted.clear()
            hosts[0].say(*renewal(2))
            hosts[1].say(*(line for number in range(2, 12) for line in renewal(number)))
            await assigned(hosts[0], 2)
            for number in range(2, 12):
                await assigned(hosts[1], number)
            assert sorted(noted) == [1, 10]

    run(body)


def test_what_a_host_said_before_it_closed_its_side_is_answered() -> None:
    async def body() -> None:
        async with served() as (server, at):
            host = await Host.greeted(at, 1)
            await begun(host)
            host.say(*renewal(2), Release(2), Ping(3))
            host.writer.write_eof()
            await assigned(host, 2)
            assert await host.hear() == Pong(3)
            assert await host.closed() == b""
            async with asyncio.timeout(TIMEOUT_S):
                while server.connections:
                    await asyncio.sleep(0.005)

    run(body)


def test_without_room_for_another_file_a_host_is_served_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(HostSockets, "take", take)

    async def body() -> None:
        async with served() as (_, at):
            await (await Host.greeted(at, 1)).works()

    run(body)


def test_a_protocol_is_told_when_answers_of_native_code_are_not_read() -> None:
    """A host that does not read is dropped for what it leaves unread, which its protocol counts from then on."""

    class Told(asyncio.Protocol):
        def __init__(self) -> None:
            self.waits, self.goes_on = asyncio.Event(), asyncio.Event()

        def pause_writing(self) -> None:
            self.waits.set()

        def resume_writing(self) -> None:
            self.goes_on.set()

    async def body() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is
            pings = MANY * MANY
            sockets = HostSockets(lambda: (0.0, True, Done(False)), lambda now_s, done: None)
            host = NativeHost(1e9, 1e9, MAX_HOST_LINE, 0.0)
            host.serve(Elephants())
            host.is_clear = True
            protocol = Told()
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, ours)
            taken = sockets.take(1, transport, protocol, host)
            theirs.sendall(to_line(Ping(1)) * pings)
            async with asyncio.timeout(TIMEOUT_S):
                await protocol.waits.wait()
                waits = taken.get_write_buffer_size()
                assert waits > 0
                theirs.setblocking(False)
                said = b""
                while len(said) < pings * len(to_line(Pong(1))):
                    more = await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
                    assert more, "the connection has ended"
                    said += more
                assert said == to_line(Pong(1)) * pings
                await protocol.goes_on.wait()
            taken.abort()
            sockets.close()

    run(body)
