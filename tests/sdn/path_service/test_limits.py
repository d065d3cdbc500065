# SPDX-License-Identifier: Apache-2.0
"""What a host or a stranger may cost the path service, on real sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import time

import pytest

from sdn.path_service.limits import Limits
from sdn.path_service.messages import (
    MAX_HOST_LINE,
    Announce,
    Assign,
    Error,
    Hello,
    Ping,
    Pong,
    Welcome,
    from_service,
    to_line,
)
from sdn.path_service.pinning import Sends
from sdn.path_service.run import raise_file_limit
from sdn.path_service.server import Server
from sdn.path_service.service import PathService
from tests.sdn.path_service.sample import TOKEN, address, hello
from tests.sdn.path_service.test_server import HELLO, TIMEOUT_S, TOPOLOGY, Host, run, served


def test_hosts_that_come_at_once_are_not_told_that_no_hello_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, those were whose hello waited for its turn for longer than one may be on its way."""
    connect = PathService.connect

    def slow(service: PathService, now_s: float, conn: int, said: Hello) -> tuple[Sends, int | None]:
        time.sleep(0.02)
        return connect(service, now_s, conn, said)

    monkeypatch.setattr(PathService, "connect", slow)

    async def body() -> None:
        async with served(Limits(hello_s=0.1)) as (server, at):
            hosts = [await Host.to(at) for _ in range(40)]
            for instance, host in enumerate(hosts):
                host.say(hello(TOPOLOGY, 0, instance))
            for host in hosts:
                assert isinstance(await host.hear(), Welcome)
            assert not server.counts

    run(body)


def test_silent_connections_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def body() -> None:
        async with served(Limits(hello_s=1.0, silent_s=1.0)) as (_, at):
            stranger, host = await Host.to(at), await Host.greeted(at, 0)
            assert await stranger.refused() == "hello"
            assert await host.refused() == "silent"

    run(body)
    assert sum("refused" in record.message for record in caplog.records) == 2


@pytest.mark.timeout(600)
def test_thousands_of_silent_connections_do_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    limit = raise_file_limit()
    free = limit - len(os.listdir("/proc/self/fd"))  # tests before may have left some open
    silent = min(10_000, (free - 200) // 2)  # both ends are in this process
    print(f"{silent} silent connections: {limit} file descriptors allow no more" if silent < 10_000 else silent)

    async def body() -> None:
        async with served(Limits(hello_s=2.0)) as (server, at):
            good = await Host.greeted(at, 0)
            for number in range(silent):
                sock = socket.socket()
                sock.setblocking(False)
                crowd.append(sock)
                await asyncio.get_running_loop().sock_connect(sock, at)
                if number % 1000 == 0:
                    await good.works()
            late = await Host.greeted(at, 1)  # there is room for who has something to say
            async with asyncio.timeout(TIMEOUT_S):
                while server.counts["hello"] < silent:
                    await asyncio.sleep(0.1)
            assert not server.greeting
            await late.works()
            await good.works()

    crowd: list[socket.socket] = []
    try:
        run(body)
    finally:
        for sock in crowd:
            sock.close()
    logged = [record.message for record in caplog.records if record.name == "sdn.path_service.server"]
    assert 0 < len(logged) <= silent


def test_the_oldest_connection_without_hello_makes_room() -> None:
    async def body() -> None:
        async with served(Limits(connections=10)) as (server, at):
            crowd = [await Host.to(at) for _ in range(8)]
            assert await crowd[0].refused() == "hello"
            hosts = [await Host.greeted(at, host) for host in range(4)]
            assert len(server.connections) <= 10
            for host in hosts:
                await host.works()

    run(body)


def test_the_number_of_connections_is_limited() -> None:
    async def body() -> None:
        async with served(Limits(connections=2)) as (_, at):
            hosts = [await Host.greeted(at, host) for host in (0, 1)]
            assert await (await Host.to(at)).refused() == "full"
            for host in hosts:
                await host.works()

    run(body)


def test_lines_beyond_the_rate_are_read_later_and_not_lost() -> None:
    async def body() -> None:
        async with served(Limits(lines_per_s=200, burst_lines=20)) as (_, at):
            host, other = await Host.greeted(at, 0), await Host.greeted(at, 1)
            host.say(*(Ping(number) for number in range(60)))
            heard = [await host.hear()]
            await other.works()
            while heard[-1] != Pong(59):
                heard.append(await host.hear())
            assert [message.nonce for message in heard if isinstance(message, Pong)] == list(range(60))
            assert {message.code for message in heard if isinstance(message, Error)} == {"busy"}

    run(body)


def test_a_host_that_does_not_read_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def body() -> None:
        limits = Limits(unread_bytes=10_000, lines_per_s=1e9, burst_lines=1_000_000)
        async with served(limits) as (server, at):
            deaf, other = await Host.greeted(at, 0), await Host.greeted(at, 1)
            deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
            flood = to_line(Announce(1, address(TOPOLOGY, 5), 1)) * 100
            async with asyncio.timeout(TIMEOUT_S):
                while server.counts["unread"] == 0:
                    deaf.say(flood)
                    await asyncio.sleep(0)
            await other.works()
            assert server.service.status()["hosts"] == 1

    run(body)
    assert sum("does not read" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_a_host_whose_lines_are_much_work_does_not_hold_up_others(source: str) -> None:
    async def body() -> None:
        async with served() as (server, at):
            faulty = await Host.greeted(at, 0, lanes=1024, source=source)
            other = await Host.greeted(at, 1)
            peer = address(TOPOLOGY, 5)
            faulty.say(*(Announce(1, peer, 1, peer_port=port) for port in range(1000, 1500)))
            handled = []
            while server.service.counts["announced"] < 500:
                before = server.service.counts["announced"]
                other.say(Ping(1))
                await other.hear()
                if before:
                    handled.append(server.service.counts["announced"] - before)
            assert len(handled) >= 10, "others are answered while the lines of one are handled"
            assert sorted(handled)[len(handled) // 2] <= 20
            while not isinstance(answer := await faulty.hear(), Assign) or answer.peer_port != 1499:
                pass
            await other.works()

    run(body)


def test_what_connections_without_hello_hold_is_bounded_and_the_oldest_go() -> None:
    async def body() -> None:
        async with served(Limits(greeting_bytes=1_000_000)) as (server, at):
            silent = await Host.to(at)
            crowd = []
            for number in range(100):
                crowd.append(await Host.to(at))
                crowd[-1].say(b"x" * 60_000)
                if number % 20 == 0:
                    late = await Host.greeted(at, 0, instance=number)
                    await late.works()
            while server.counts["hello"] < 84:
                await asyncio.sleep(0.01)
            assert sum(connection._held_bytes for connection in server.connections.values()) <= 1_000_000
            assert await crowd[0].refused() == "hello"
            silent.say(HELLO)
            assert isinstance(await silent.hear(), Welcome)
            crowd[-1].say(b"\n")
            assert await crowd[-1].refused() == "message"

    run(body)


def test_unfinished_lines_of_all_hosts_are_bounded() -> None:
    async def body() -> None:
        async with served(Limits(received_bytes=150_000)) as (server, at):
            hosts = [await Host.greeted(at, number) for number in range(4)]
            for number, host in enumerate(hosts):
                host.say(b" " * 60_000)
                while not server.counts["line"] and sum(c._held_bytes for c in server.connections.values()) < (
                    60_000 * (number + 1)
                ):
                    await asyncio.sleep(0.001)
            assert await hosts[0].refused() == "line"
            assert await hosts[1].refused() == "line"
            hosts[3].say(to_line(Ping(6)))
            assert await hosts[3].hear() == Pong(6)

    run(body)


def test_bytes_that_all_hosts_leave_unread_are_bounded() -> None:
    async def body() -> None:
        limits = Limits(unread_bytes=1 << 40, all_unread_bytes=300_000, lines_per_s=1e9, burst_lines=1_000_000)
        async with served(limits) as (server, at):
            deaf = [await Host.greeted(at, number) for number in (0, 1)]
            for host in deaf:
                host.writer.transport.pause_reading()  # type: ignore[attr-defined]
            flood = to_line(Announce(1, address(TOPOLOGY, 5), 1)) * 100
            async with asyncio.timeout(TIMEOUT_S):
                while not server.counts["unread"]:
                    deaf[0].say(flood)
                    await asyncio.sleep(0)
            await (await Host.greeted(at, 2)).works()
            assert server.service.status()["hosts"] == 2

    run(body)


def test_lines_before_one_that_is_too_long_are_served() -> None:
    async def body() -> None:
        async with served(Limits(lines_per_s=200, burst_lines=20)) as (server, at):
            one, many = await Host.greeted(at, 0), await Host.greeted(at, 1)
            received = [connection.data_received for connection in server.connections.values()]
            said = to_line(Announce(7, address(TOPOLOGY, 5), 1)) + to_line(Ping(8))
            received[0](said + b"x" * (MAX_HOST_LINE + 1))  # read together
            answer = await one.hear()
            assert isinstance(answer, Assign)
            assert answer.id == 7
            assert await one.hear() == Pong(8)
            assert await one.refused() == "line"
            said = b"".join(to_line(Ping(number)) for number in range(60))
            received[1](said + b"x" * (MAX_HOST_LINE + 1) + b"\n" + to_line(Ping(99)))
            heard = [from_service(line) for line in (await many.closed()).splitlines()]
            assert [pong.nonce for pong in heard if isinstance(pong, Pong)] == list(range(60))
            assert [error.code for error in heard if isinstance(error, Error)] == ["busy", "line"]

    run(body)


def test_lines_before_the_end_of_a_connection_are_answered() -> None:
    async def body() -> None:
        async with served(Limits(lines_per_s=200, burst_lines=20)) as (server, at):
            host = await Host.greeted(at, 0)
            host.say(*(Ping(number) for number in range(60)))
            host.writer.write_eof()
            said = [from_service(line) for line in (await host.closed()).splitlines()]
            assert [pong.nonce for pong in said if isinstance(pong, Pong)] == list(range(60))
            assert not server.connections

    run(body)


def test_connections_are_limited_by_file_descriptors() -> None:
    server = Server(PathService(TOPOLOGY), TOKEN)
    assert 0 < server._room < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
