# SPDX-License-Identifier: Apache-2.0
"""The path service on real sockets: hosts that break the rules do not affect others."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netmodel import PortRef, forwarding
from sdn.path_service import admin, admin_server
from sdn.path_service import server as server_module
from sdn.path_service.constraints import Constraints
from sdn.path_service.control.control import Control
from sdn.path_service.control.writer import Unstored
from sdn.path_service.group_lists import Group
from sdn.path_service.journal import Journal
from sdn.path_service.limits import Limits
from sdn.path_service.log_file import LogError, LogFile
from sdn.path_service.messages import (
    MAX_HOST_LINE,
    Announce,
    Answer,
    Assign,
    CanProbe,
    Error,
    Hello,
    HostMessage,
    Moved,
    Ping,
    Pong,
    Probed,
    Release,
    ServiceMessage,
    Welcome,
    from_service,
    to_line,
)
from sdn.path_service.next_hops import listed
from sdn.path_service.pinning import Sends
from sdn.path_service.replay import replay
from sdn.path_service.run import raise_file_limit
from sdn.path_service.server import Server, bind
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import LANES, TOKEN, address, fabric, hello

TIMEOUT_S = 100
TOPOLOGY = fabric()


class Host:
    """A connection that sends the lines that the test chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, at: tuple[str, int], source: str = "127.0.0.1") -> Host:
        return cls(*await asyncio.open_connection(*at, limit=1 << 21, local_addr=(source, 0)))

    @classmethod
    async def greeted(
        cls, at: tuple[str, int], host: int, instance: int = 0, lanes: int = LANES, source: str = "127.0.0.1"
    ) -> Host:
        made = await cls.to(at, source)
        made.say(hello(TOPOLOGY, host, instance, lanes))
        assert isinstance(await made.hear(), Welcome)
        return made

    def say(self, *messages: HostMessage | bytes) -> None:
        self.writer.write(b"".join(m if isinstance(m, bytes) else to_line(m) for m in messages))

    async def hear(self) -> ServiceMessage:
        async with asyncio.timeout(TIMEOUT_S):
            return from_service(await self.reader.readuntil(b"\n"))

    async def refused(self) -> str:
        """The code of the error, after which the service closes."""
        error = await self.hear()
        assert isinstance(error, Error)
        assert await self.closed() == b""
        return error.code

    async def closed(self) -> bytes:
        """All lines until the service closes the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def works(self, peer: int = 5) -> None:
        """A host that does as it should is served."""
        self.say(Announce(999, address(TOPOLOGY, peer), 1), Release(999), Ping(3))
        answer = await self.hear()
        assert isinstance(answer, Assign)
        assert answer.id == 999
        assert len(answer.ports) == LANES
        assert await self.hear() == Pong(3)


@asynccontextmanager
async def served(
    limits: Limits | None = None, journal: Journal | None = None, options: Options | None = None
) -> AsyncIterator[tuple[Server, tuple[str, int]]]:
    server = Server(PathService(TOPOLOGY, options), TOKEN, limits=limits, journal=journal)
    at = await server.start(bind("127.0.0.1", 0))
    try:
        yield server, at
    finally:
        await server.close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body())  # type: ignore[arg-type]


HELLO = to_line(hello(TOPOLOGY, 1))


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


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (HELLO.replace(TOKEN.encode(), b"only for guests"), "token"),
        (HELLO.replace(b'"version":1', b'"version":3'), "version"),
        (b'{"type":"hello","version":7,"new":true}\n', "version"),
        (HELLO.replace(b"10.0.0.2", b"10.9.9.9"), "device"),
        (b'{"type":"ping","nonce":1}\n', "hello"),
        (b"GET / HTTP/1.1\r\nHost: me\r\n\r\n", "message"),
        (b"\n", "message"),
        (b"x" * (MAX_HOST_LINE + 1), "line"),
        (HELLO + b" " * (MAX_HOST_LINE + 1), "line"),
        (HELLO + HELLO, "message"),
        (HELLO + b'{"type":"launch"}\n', "message"),
        (HELLO + b'{"type":"announce","id":1}\n', "message"),
    ],
)
def test_invalid_input_is_refused_with_a_log_line(said: bytes, code: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def body() -> None:
        async with served() as (server, at):
            good = await Host.greeted(at, 0)
            bad = await Host.to(at)
            bad.say(said)
            heard = [from_service(line) for line in (await bad.closed()).splitlines()]
            error = heard[-1]
            assert isinstance(error, Error)
            assert error.code == code
            assert server.counts == {code: 1}
            await good.works()
            assert len(server.connections) == 1
            assert server.service.status()["hosts"] == 1

    run(body)
    (line,) = [record.message for record in caplog.records if " refused: " in record.message]
    assert code in line
    assert TOKEN not in line


@pytest.mark.parametrize("key", ["generation", "voted"])
def test_a_generation_that_cannot_be_is_refused(key: str) -> None:
    async def body() -> None:
        async with served() as (_, at):
            host = await Host.to(at)
            host.say(HELLO.rstrip(b"}\n") + b',"%s":%d}\n' % (key.encode(), 1 << 40))
            error = await host.hear()
            assert isinstance(error, Error)
            assert (error.code, error.text) == ("message", f"generation {1 << 40} cannot be: this one is 1")

    run(body)


@pytest.mark.parametrize("text", ["\x1b[31m", "\n1.2.3.4:5 refused: token: x", "\x9b2J", "\u202egnol"])
@pytest.mark.parametrize("place", ["type", "device"])
def test_a_log_line_is_one_line_without_control_characters(
    text: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sdn.path_service")
    said = {**json.loads(HELLO), place: text}

    async def body() -> None:
        async with served() as (_, at):
            host = await Host.to(at)
            host.say(json.dumps(said, ensure_ascii=False).encode() + b"\n")
            assert await host.refused() in ("message", "device")

    run(body)
    (line,) = [record.getMessage() for record in caplog.records if " refused: " in record.getMessage()]
    assert line.isprintable()
    assert text.split()[0].strip("\x1b\x9b\u202e") in line, "it still says what came"


def test_a_message_may_arrive_in_pieces() -> None:
    async def body() -> None:
        async with served() as (_, at):
            host = await Host.to(at)
            for letter in HELLO + to_line(Ping(8)):
                host.say(bytes([letter]))
                await asyncio.sleep(0)
            assert isinstance(await host.hear(), Welcome)
            assert await host.hear() == Pong(8)
            host.say(b'{"type":"announce","id":')
            host.writer.close()
            await (await Host.greeted(at, 0)).works()

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


def test_an_error_of_the_service_ends_one_connection_only() -> None:
    async def body() -> None:
        async with served() as (server, at):
            bad, good = await Host.greeted(at, 0), await Host.greeted(at, 1)
            handle = server.service.handle

            def fails(now_s: float, conn: int, said: Any) -> Any:
                if conn == 1:
                    raise RuntimeError("a mistake")
                return handle(now_s, conn, said)

            server.service.handle = fails  # type: ignore[method-assign]
            bad.say(Release(1))
            assert await bad.closed() == b""
            await good.works()

    run(body)


def test_an_error_of_a_tick_is_logged_and_ticks_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with served(options=Options(forecast=True)) as (server, _):
            ticked, again = itertools.count(), asyncio.Event()

            def fails_once(now_s: float) -> Any:
                if next(ticked) == 0:
                    raise RuntimeError("a mistake")
                again.set()
                return []

            server.service.tick = fails_once  # type: ignore[method-assign]
            async with asyncio.timeout(TIMEOUT_S):
                await again.wait()

    run(body)
    assert "a mistake" in caplog.text


def test_the_same_device_object_again_replaces_its_connection() -> None:
    async def body() -> None:
        async with served() as (server, at):
            first = await Host.greeted(at, 0)
            beside = await Host.greeted(at, 0, instance=1)
            second = await Host.greeted(at, 0)
            assert await first.refused() == "replaced"
            await second.works()
            await beside.works()
            assert server.service.status()["hosts"] == 2

    run(body)


def test_a_failed_link_moves_data_and_acknowledgements_at_once() -> None:
    async def body() -> None:
        async with served() as (server, at):
            one, other = await Host.greeted(at, 1), await Host.greeted(at, 3)
            one.say(Announce(1, address(TOPOLOGY, 3), 1))
            first, back = await one.hear(), await other.hear()
            assert isinstance(first, Assign)
            assert isinstance(back, Assign)
            assert (back.id, back.peer) == (None, address(TOPOLOGY, 1))
            (flow,) = server.service.flows(1)
            server.constrain(Constraints(frozenset([TOPOLOGY.link_at(PortRef.parse(flow["path"][1]))])))
            second, back = await one.hear(), await other.hear()
            assert isinstance(second, Assign)
            assert second.id == 1
            assert second.ports != first.ports
            assert isinstance(back, Assign)

    run(body)


def test_hosts_are_informed_when_the_service_stops() -> None:
    async def body() -> None:
        async with served() as (server, at):
            host = await Host.greeted(at, 0)
            await server.close()
            assert await host.refused() == "stopping"

    run(body)


def test_a_server_that_was_not_started_can_be_closed() -> None:
    async def body() -> None:
        journal = Journal(SimpleNamespace(add=lambda line: None))
        for fails in (False, True):
            server = Server(PathService(TOPOLOGY), TOKEN, journal=journal)
            if fails:
                listener = bind("127.0.0.1", 0)
                listener.close()
                with pytest.raises(OSError, match="Bad file descriptor"):
                    await server.start(listener)
            await server.close()

    run(body)


# -- fuzz ----------------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
ids = st.integers(0, 5) | st.integers()


@pytest.mark.parametrize("version", [1, 2])
def test_a_host_is_answered_in_its_version(version: int) -> None:
    async def body() -> None:
        async with served() as (server, at):
            host = await Host.to(at)
            host.say(HELLO.replace(b'"version":1', b'"version":%d' % version))
            welcome = await host.hear()
            assert isinstance(welcome, Welcome)
            assert (welcome.version, welcome.probe) == (version, False)
            host.say(CanProbe(100.0), Probed(7, (Answer(49164, "hop", "8.8.8.8"),)), Moved("10.9.9.9", ()))  # not asked
            await host.works()
            assert server.service.status()["hosts"] == 1

    run(body)


peers = st.sampled_from([address(TOPOLOGY, host) for host in range(6)]) | st.text(max_size=20)
ports = st.integers(-1, 70_000)
answers = st.tuples(ports, st.sampled_from(["hop", "none", "failed", "perhaps"]), peers, st.none() | st.floats(0, 2))
FROM_HOSTS = ["hello", "announce", "release", "measured", "report", "ping", "probe", "probed", "moved"]
nearly = st.fixed_dictionaries(
    {"type": st.sampled_from([*FROM_HOSTS, "assign", "pong"])},
    optional={
        "id": ids,
        "peer": peers,
        "bytes": st.integers(-1, 2**64),
        "job": st.text(max_size=70),
        "repeat_s": st.floats(allow_nan=False),
        "peer_port": ports,
        "flows": st.lists(st.fixed_dictionaries({"id": ids, "bytes": ids, "seconds": st.floats(0, 2)}), max_size=3),
        "lane": ids,
        "port": ids,
        "reason": st.sampled_from(["rtt", "loss", "mood"]),
        "nonce": ids,
        "version": ids,
        "rate": st.floats(),
        "ask": ids,
        "answers": st.lists(answers, max_size=70),
        "token": st.sampled_from([TOKEN, "no"]),
        "device": peers,
        "instance": st.sampled_from(["0" * 16, "0" * 15]),
        "lanes": ids,
        "more": anything,
    },
)
lines = st.one_of(
    nearly.map(lambda message: json.dumps(message).encode()),
    anything.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=100),
    st.integers(1, 3000).map(lambda depth: b'{"type":"ping","x":' + b"[" * depth),
)


@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(lines, max_size=8), greeted=st.booleans(), cut=st.integers(0, 40))
def test_garbage_affects_only_its_sender(said: list[bytes], greeted: bool, cut: int) -> None:
    async def body() -> None:
        async with served(options=Options(forecast=True)) as (server, at):
            good = await Host.greeted(at, 5, instance=9)
            bad = await Host.to(at)
            text = (HELLO if greeted else b"") + b"\n".join(said) + b"\n"
            bad.say(text[: len(text) - cut])
            bad.writer.write_eof()
            for line in (await bad.closed()).splitlines():
                from_service(line)
            good.say(Ping(4))
            while await good.hear() != Pong(4):  # an elephant to it may have been announced
                pass
            await good.works(peer=2)
            assert server.service.status()["commodities"] == 0

    run(body)


# -- the event log -------------------------------------------------------------------------------------------------


def test_a_replay_gives_the_same_messages(tmp_path: Path) -> None:
    sent: list[tuple[int, ServiceMessage]] = []
    options = Options(forecast=True, rates=True)

    async def body(journal: Journal) -> None:
        async with served(journal=journal, options=options) as (server, at):
            deliver = server.deliver

            def heard(sends: Any) -> None:
                sent.extend(sends)
                deliver(sends)

            server.deliver = heard  # type: ignore[method-assign]
            hosts = [await Host.greeted(at, host) for host in range(6)]
            for turn in range(1, 13):
                for number, host in enumerate(hosts):
                    peer = address(TOPOLOGY, (number + 2 + turn % 3) % 6)
                    host.say(Announce(turn, peer, 5, "bert", 0.05), b' { "type" : "release", "id":%d }\n' % (turn - 1))
                if turn == 6:
                    dead, drained = (frozenset([TOPOLOGY.link_at(PortRef("leaf1", port))]) for port in (3, 4))
                    pin = {(address(TOPOLOGY, 0), address(TOPOLOGY, 5)): (drained, dead)}
                    server.constrain(Constraints(dead, drained, pin))
                    hosts.pop().writer.close()
                if turn == 9:
                    server.next_hops(listed({
                        switch: {to: tuple(reversed(ports)) for to, ports in own.items()}
                        for switch, own in forwarding(TOPOLOGY).groups.items()
                    }))  # fmt: skip
                await asyncio.sleep(0.03)
            await hosts[0].hear()

    path = tmp_path / "events.jsonl"
    with LogFile(path) as lines:
        journal = Journal(lines)
        journal.head(TOPOLOGY, options)
        run(lambda: body(journal))
    again = [send for replayed in replay([path]) for send in replayed.sends]
    assert len(sent) > 60
    assert again == sent
    assert TOKEN not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_reload_keeps_the_next_hops_that_were_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    read = {
        switch: {to: tuple(reversed(ports)) for to, ports in own.items()}
        for switch, own in forwarding(TOPOLOGY).groups.items()
    }
    dead = Constraints(frozenset([TOPOLOGY.link_at(PortRef("leaf1", 3))]))
    sent: list[tuple[int, ServiceMessage]] = []

    async def told(host: Host) -> dict[str, list[int]]:
        """The ports towards each peer, as far as the host was told since the last time."""
        host.say(Ping(1))
        ports: dict[str, list[int]] = {}
        while (message := await host.hear()) != Pong(1):
            assert isinstance(message, Assign)
            ports[message.peer] = message.ports
        return ports

    async def body(journal: Journal) -> None:
        async with served(journal=journal) as (server, at):
            deliver = server.deliver

            def heard(sends: Any) -> None:
                sent.extend(sends)
                deliver(sends)

            server.deliver = heard  # type: ignore[method-assign]
            host = await Host.greeted(at, 0)
            server.next_hops(listed(read))
            server.constrain(dead, {"what": "a link has died since"})
            host.say(*(Announce(peer, address(TOPOLOGY, peer), 1) for peer in range(2, 6)))
            before = await told(host)
            assert len(before) == 4
            server.succeed(PathService(TOPOLOGY, Options("greedy")), dead, None, "me")
            assert await told(host) == {}
            assert server.service.dead == dead.dead
            host.say(*(Announce(10 + peer, address(TOPOLOGY, peer), 1) for peer in range(2, 6)))
            assert await told(host) == before
            assert "read them anew" not in caplog.text
            for planner in ("optimal", "greedy"):
                server.succeed(PathService(fabric(spines=4), Options(planner)), Constraints(), None, "me")
            assert caplog.text.count("read them anew") == 1
            await told(host)

    path = tmp_path / "events.jsonl"
    with LogFile(path) as lines:
        journal = Journal(lines)
        journal.head(TOPOLOGY, Options())
        run(lambda: body(journal))
    replayed = [send for each in replay([path]) for send in each.sends]
    heard = [[send for send in sends if not isinstance(send[1], Pong)] for sends in (replayed, sent)]
    assert heard[0] == heard[1], "and native code has sent pongs by itself"


def test_preparations_without_a_step_are_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when another program takes the processor between two looks at the clock."""
    logged: list[bytes] = []
    clock = itertools.count()
    monkeypatch.setattr(server_module, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))

    async def body() -> None:
        async with served(journal=Journal(SimpleNamespace(add=logged.append))) as (_, at):
            host = await Host.greeted(at, 0)
            for _ in range(5):
                await host.works()
                await asyncio.sleep(0.02)

    run(body)
    assert len(logged) > 5
    assert not [line for line in logged if b'"prepared":0' in line]


def test_a_replay_takes_only_ticks_for_ticks(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    lines: list[bytes] = []
    journal = Journal(SimpleNamespace(add=lines.append))
    journal.head(TOPOLOGY, Options(rates=True))
    journal.hello(1.0, 1, hello(TOPOLOGY, 0), "10.0.0.1:7")
    journal.said(2.0, 1, [to_line(Announce(1, address(TOPOLOGY, 5), 5)).strip()])
    journal.prepared(3.0, 0)
    journal.refused(3.5, "me", "no")
    journal.tick(4.0)
    path.write_bytes(b"".join(lines))
    counts = [len(replayed.sends) for replayed in replay([path])]
    assert counts == [0, 1, 0, 0, 1]  # the tick sends the elephant its rate
    path.write_bytes(lines[0] + b'{"at":"","t":1.0}\n')
    with pytest.raises(LogError, match=r":2: this is no event"):
        list(replay([path]))


def test_a_log_that_is_wrong_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "events.jsonl", tmp_path / "other"
    with LogFile(path, max_waiting_bytes=10_000) as lines:
        journal = Journal(lines)
        journal.head(TOPOLOGY, Options())
        journal.said(1.0, 1, [b'{"type":"ping"}'] * 5000)
        assert lines.dropped == 1
        journal.tick(2.0)
    with pytest.raises(LogError, match=r":2: 1 events are missing here"):
        list(replay([path]))
    whole = path.read_text().splitlines()
    for text, sentence in (
        ("{}", "missing required field `at`"),
        (whole[0].replace('"log":3', '"log":2'), "not a log of version 3"),
        (whole[2], "begins in the middle: give the parts before this one too"),
        (f'{whole[0]}\n{{"at":"","t":1,"sent":3,"sum":7}}', "the service decided otherwise"),
    ):
        other.write_text(text + "\n")
        with pytest.raises(LogError, match=sentence):
            list(replay([other]))


# -- the operator's socket -----------------------------------------------------------------------------------------


def test_the_operators_socket(tmp_path: Path) -> None:
    path = tmp_path / "sock"

    async def body() -> None:
        async with served() as (server, at):
            close = await admin_server.listen(server, TOKEN, admin_server.bind(path), Control(server, Unstored()))
            assert path.stat().st_mode & 0o777 == 0o600
            host = await Host.greeted(at, 0)
            host.say(Announce(1, address(TOPOLOGY, 4), 7))
            await host.hear()

            async def ask(request: admin.Request) -> dict[str, Any]:
                return await asyncio.to_thread(admin.ask, path, request)

            assert (await ask(admin.Status(TOKEN)))["elephants"] == 1
            assert (await ask(admin.Flows(TOKEN)))["flows"][0]["bytes"] == 7
            assert sum(link["up"] for link in (await ask(admin.Paths(TOKEN)))["links"]) == 1
            assert (await ask(admin.LinkChange(TOKEN, "leaf1:3")))["links"] == ["leaf1:3 spine1:1"]
            groups = listed(forwarding(TOPOLOGY).groups)
            assert (await ask(admin.NextHopsRead(TOKEN, groups)))["switches"] == len(TOPOLOGY.switches)
            assert (await ask(admin.Status(TOKEN)))["dead_links"] == []  # they are all used
            for wrong, sentence in (
                (admin.Status("guess"), "the token is not this path service's"),
                (
                    admin.NextHopsRead(TOKEN, {"leaf1": [Group([1], ["here"])]}),
                    "'here' does not appear to be an IPv4 or",
                ),
                (admin.LinkChange(TOKEN, "leaf9"), "'leaf9' is not a link"),
            ):
                with pytest.raises(admin.AdminError, match=sentence):
                    await ask(wrong)
            with pytest.raises(admin.AdminError, match="another path service listens"):
                admin_server.bind(path)
            close()
            with pytest.raises(admin.AdminError, match="no path service listens"):
                await ask(admin.Status(TOKEN))

    run(body)


def test_operators_requests_are_bounded_and_do_not_hold_up_hosts(tmp_path: Path) -> None:
    path = tmp_path / "sock"

    async def body() -> None:
        async with served() as (server, at):
            close = await admin_server.listen(server, TOKEN, admin_server.bind(path), Control(server, Unstored()))
            host = await Host.greeted(at, 0)
            host.say(*(Announce(n, address(TOPOLOGY, 4), 7, peer_port=1 + n) for n in range(500)))
            while len(server.service._pinning.pairs) < 500:
                await asyncio.sleep(0)
            silent = [await asyncio.open_unix_connection(path) for _ in range(40)]
            loop = asyncio.get_running_loop()
            parts = []

            def count() -> None:
                parts.append(1)
                if not asked.done():
                    loop.call_soon(count)

            asked = loop.run_in_executor(None, admin.ask, path, admin.Flows(TOKEN))
            loop.call_soon(count)
            flows = (await asked)["flows"]
            assert [flow["ids"] for flow in flows] == [[n] for n in range(500)]
            assert len(parts) > 500 / 64, "the event loop ran while the answer was made"
            ended = [reader.at_eof() for reader, _ in silent]
            assert ended == [True] * 25 + [False] * 15
            close()

    run(body)


def test_connections_are_limited_by_file_descriptors() -> None:
    server = Server(PathService(TOPOLOGY), TOKEN)
    assert 0 < server._room < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
