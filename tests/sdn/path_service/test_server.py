# SPDX-License-Identifier: Apache-2.0
"""The path service on real sockets: hosts that break the rules do not affect others."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
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
from sdn.path_service.constraints import Constraints
from sdn.path_service.control.control import Control
from sdn.path_service.control.writer import Unstored
from sdn.path_service.group_lists import Group
from sdn.path_service.journal import Journal
from sdn.path_service.limits import Limits
from sdn.path_service.messages import (
    MAX_HOST_LINE,
    Announce,
    Answer,
    Assign,
    CanProbe,
    Error,
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
