# SPDX-License-Identifier: Apache-2.0
"""Connections under one epoll descriptor: that protocols see of them what they see of asyncio's own."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import uvloop

from sdn.path_service.streams import Stream, StreamServer

PATIENCE_S = 100


class Parrot(asyncio.Protocol):
    """Says again what it hears, and notes what becomes of it."""

    made: list[Parrot]

    def __init__(self) -> None:
        self.made.append(self)
        self.lost = False
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.stream = cast(Stream, transport)

    def data_received(self, data: bytes) -> None:
        if data == b"fail":
            raise RuntimeError("as told")
        self.stream.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def pause_writing(self) -> None:
        self.paused = True


@asynccontextmanager
async def served() -> AsyncIterator[tuple[StreamServer, tuple[str, int]]]:
    Parrot.made = []
    server = StreamServer(Parrot)
    try:
        yield server, server.listen("127.0.0.1", 0, backlog=100)
    finally:
        server.close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await body()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(patiently())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def answers(at: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*at)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()


def test_much_is_written_to_who_reads_slowly_and_all_of_it_before_the_end() -> None:
    async def body() -> None:
        async with served() as (server, at):
            reader, _ = await asyncio.open_connection(*at)
            await until(lambda: bool(Parrot.made))
            (parrot,) = Parrot.made
            sent = 0
            while not parrot.paused:  # as much as the kernel takes, and then what the protocol was promised
                parrot.stream.write(bytes(10_000))
                sent += 10_000
            parrot.stream.close()
            assert parrot.stream.is_closing()
            assert not parrot.lost
            assert len(await reader.read(-1)) == sent
            await until(lambda: parrot.lost)
            assert not server.streams

    run(body)


def test_what_is_longer_than_a_read_comes_whole_and_in_order() -> None:
    async def body() -> None:
        async with served() as (_, at):
            reader, writer = await asyncio.open_connection(*at)
            said = b"".join(struct.pack("<I", number) for number in range(200_000))
            writer.write(said)
            assert await reader.readexactly(len(said)) == said
            writer.write_eof()
            assert await reader.read() == b""

    run(body)


def test_who_goes_away_or_makes_the_protocol_fail_harms_nobody_else() -> None:
    async def body() -> None:
        async with served() as (server, at):
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            rude = socket.create_connection(at)
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reader, writer = await asyncio.open_connection(*at)
            await until(lambda: len(Parrot.made) == 2)
            rude.close()  # a reset
            writer.write(b"fail")
            assert await reader.read() == b""
            await answers(at)
            await until(lambda: all(parrot.lost for parrot in Parrot.made))
            assert not server.streams
            Parrot.made[0].stream.write(b"to nobody")
            Parrot.made[0].stream.abort()

    run(body)


def test_who_is_not_read_is_read_later() -> None:
    async def body() -> None:
        async with served() as (_, at):
            reader, writer = await asyncio.open_connection(*at)
            await until(lambda: bool(Parrot.made))
            (parrot,) = Parrot.made
            parrot.stream.pause_reading()
            writer.write(b"hello")
            await until(parrot.stream.unread)
            await answers(at)
            assert parrot.stream.unread()
            parrot.stream.resume_reading()
            assert await reader.readexactly(5) == b"hello"
            assert not parrot.stream.unread()

    run(body)


def test_when_descriptors_have_run_out_it_accepts_again_later() -> None:
    class Exhausted(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            raise OSError(errno.EMFILE, "too many open files")

    async def body() -> None:
        async with served() as (server, at):
            listener = server._listener
            assert listener is not None
            server._listener = Exhausted(fileno=listener.fileno())
            _, writer = await asyncio.open_connection(*at)
            await until(lambda: server._again is not None)
            assert not Parrot.made
            server._listener.detach()
            server._listener = listener
            writer.write(b"hello")
            await until(lambda: bool(Parrot.made))

    run(body)
