# SPDX-License-Identifier: Apache-2.0
"""Hosts whose sockets native code reads: their renewals never reach Python, and all else goes on as before."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from sdn._renewals import Done, Elephants
from sdn._renewals import Host as NativeHost
from sdn.path_service.host_sockets import HostSockets
from sdn.path_service.journal import Journal
from sdn.path_service.log_file import LogFile
from sdn.path_service.messages import Announce, Assign, Ping, Pong, Release, to_line
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
            host = NativeHost(1e9, 1e9, 0.0)
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
                    said += await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
                assert said == to_line(Pong(1)) * pings
                await protocol.goes_on.wait()
            taken.abort()
            sockets.close()

    run(body)
