# SPDX-License-Identifier: Apache-2.0
"""Hosts of two path services, as the path client of `hostlib` behaves, and proxies that cut them off.

All run in one event loop. A host announces a new elephant as soon as the last one is answered.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from sdn.path_service import messages
from sdn.path_service.messages import Announce, Assign, Hello, Ping, Release, Vote, Voted, Welcome

At: TypeAlias = tuple[str, int]

LANES = 4
_PING_S = 0.5
_SILENT_S = 1.5
_LEAST_PAUSE_S = 0.05
_MOST_PAUSE_S = 10.0
_LASTS_S = 1.0  # a connection of this age works
_CONNECT_S = 1.0
_CUT_S = 0.025  # between two looks of a proxy whether it is still cut
_NEXT_S = 0.02  # between an answer and the next announcement


@dataclass
class Proxy:
    """A TCP port that leads to another one, until it is cut."""

    to: At | None = None
    """Where connections lead; none are made before."""
    forth: bool = True
    """Whether what clients send arrives."""
    back: bool = True
    at: At = ("", 0)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.at = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while not self.forth:
                await asyncio.sleep(_CUT_S)
            if self.to is None:
                return
            there, out = await asyncio.open_connection(*self.to)
            ways = self._copy(reader, out, True), self._copy(there, writer, False)
            copies = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()
                out.transport.abort()
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, forth: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                while not (self.forth if forth else self.back):  # what is on the way waits, as in TCP
                    await asyncio.sleep(_CUT_S)
                writer.write(data)
        while not (self.forth if forth else self.back):
            await asyncio.sleep(_CUT_S)


class BenchHost:
    """One device: its connection to one of the services, and what it was told."""

    def __init__(self, number: int, device: str, peer: str, token: str, services: Sequence[At]) -> None:
        self.device = device
        self.peer = peer
        self.ports: list[int] | None = None
        """Assigned last on this connection; None without a service."""
        self.generation = 0
        """The highest that has welcomed this host."""
        self.answered_s: list[float] = []
        """When announcements were answered."""
        self.by: list[tuple[float, int]] = []
        """When a service has welcomed it, and its generation."""
        self._random = random.Random(number)
        self._hello = Hello(1, token, device, f"{number:016x}", LANES)
        self._services = services
        self._at = 0
        self._voted: Voted | None = None
        self._id = 0

    async def run(self) -> None:
        """Connects and announces until it is cancelled."""
        pause_s, tried = _LEAST_PAUSE_S, 0
        while True:
            began_s, welcomed = time.monotonic(), len(self.by)
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._talk(*self._services[self._at])
            self.ports = None
            self._at = (self._at + 1) % len(self._services)
            if len(self.by) > welcomed and time.monotonic() - began_s >= _LASTS_S:
                pause_s, tried = _LEAST_PAUSE_S, 0
            tried += 1
            if tried >= len(self._services):
                tried = 0
                await asyncio.sleep(pause_s * self._random.uniform(0.5, 1))
                pause_s = min(_MOST_PAUSE_S, 1.25 * pause_s)

    async def _talk(self, address: str, port: int) -> None:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(address, port)
        pings = asyncio.create_task(self._ping(writer))
        try:
            voted = self._voted.generation if self._voted else 0
            hello = msgspec.structs.replace(self._hello, generation=self.generation, voted=voted)
            writer.write(messages.to_line(hello))
            while True:
                async with asyncio.timeout(_SILENT_S):
                    line = await reader.readuntil(b"\n")
                match messages.from_service(line):
                    case Vote(generation, service, trial):
                        answer = self._vote(Voted(generation, service), trial)
                        if answer is not None:
                            writer.write(messages.to_line(answer))
                    case Welcome() as welcome:
                        if welcome.generation < self.generation:
                            return
                        self.generation = welcome.generation
                        self.by.append((time.monotonic(), welcome.generation))
                        self._announce(writer)
                    case Assign() as assign if assign.id is not None:
                        self.ports = assign.ports
                        if assign.id == self._id:
                            self.answered_s.append(time.monotonic())
                            asyncio.get_running_loop().call_later(_NEXT_S, self._announce, writer)
                    case messages.Error():
                        return
        finally:
            pings.cancel()
            writer.transport.abort()

    def _vote(self, vote: Voted, trial: bool) -> Voted | None:
        is_new = vote.generation > max(self.generation, self._voted.generation if self._voted else 0)
        if trial and (is_new or vote == self._voted):
            return Voted(vote.generation, vote.service, True)
        if is_new:
            self._voted = vote
        return self._voted

    def _announce(self, writer: asyncio.StreamWriter) -> None:
        """The same elephant's successor, so that its path stays."""
        if not writer.transport.is_closing():
            self._id += 1
            said = Release(self._id - 1), Announce(self._id, self.peer, 1 << 26, "bench")
            writer.write(b"".join(messages.to_line(message) for message in said))

    async def _ping(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(_PING_S)
            if self.ports is not None:
                writer.write(messages.to_line(Ping(1)))
