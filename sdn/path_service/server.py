# SPDX-License-Identifier: Apache-2.0
"""The path service on TCP: carries messages between hosts and a `PathService`, and keeps everybody within bounds.

One thread, one event loop. What a stranger, a broken host or a busy one may cost the others is bounded: `Limits` says
by how much. Whatever is refused is told to the host in an error, and to the log in one line.
"""

import asyncio
import hmac
import logging
import resource
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from netmodel import Link
from sdn.path_service.connection import Connection
from sdn.path_service.journal import Journal
from sdn.path_service.messages import VERSION, Hello, HostMessage, MessageError, Welcome, from_host, to_line
from sdn.path_service.service import PathService, Sends

log = logging.getLogger(__name__)

TICK_S = 0.05
_SWEEP_S = 0.5
_IDLE_S = 0.02  # after so long without an event there is time to prepare for failures
_IDLE_SHARE = 0.25  # of which so much is used
_BUSY_SHARE = 0.05  # and of the time between events
_SPARE_FILES = 64  # descriptors left for other things than connections


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection, and all of them, may take."""

    hello_s: float = 5.0
    """By when a connection must have said hello."""
    silent_s: float = 30.0
    """After which a silent connection is closed."""
    lines_per_s: float = 500.0
    """Read from one connection in the long run; the rest waits at the host."""
    burst_lines: int = 512
    unread_bytes: int = 1 << 20
    """Kept for a host that does not read; one that leaves more is dropped."""
    connections: int | None = None
    """None: as many as file descriptors allow."""
    log_lines_per_s: float = 50.0
    """Of which more than ten seconds' worth is not kept up; the rest is counted."""


class Server:
    """Hosts' connections to one `PathService`. Make it, `await start`, and in the end `await close`."""

    def __init__(
        self, service: PathService, token: str, *, limits: Limits | None = None, journal: Journal | None = None
    ) -> None:
        self.service = service
        self.limits = limits or Limits()
        self.journal = journal
        self.connections: dict[int, Connection] = {}
        self.strangers: dict[int, Connection] = {}
        """Those of `connections` that have not said hello, the oldest first."""
        self._token = token.encode()
        self._room = self.limits.connections or resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES
        self._numbers = 0
        self._heard_s = 0.0
        self._swept_s = 0.0
        self._prepared_s = 0.0
        self._spare_s = 0.0  # time that may go into preparing; below 0: that was taken too much
        self.counts: Counter[str] = Counter()
        """What was refused, by code."""
        self._says = _Sayings(self.limits.log_lines_per_s)
        self._server: asyncio.Server | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._hurry: asyncio.Handle | None = None

    async def start(self, address: str, port: int) -> tuple[str, int]:
        """Listens; the address and port where. Raises OSError when that cannot be."""
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._server = await self._loop.create_server(lambda: Connection(self), address, port, backlog=4096)
        self._every(_SWEEP_S, self._sweep)
        if self.service.options.forecast or self.service.options.rates:
            self._every(TICK_S, self.tick)
        self._every(_IDLE_S, self._prepare)
        at: tuple[str, int] = self._server.sockets[0].getsockname()
        return at

    async def close(self) -> None:
        """Stops listening and tells every host."""
        for timer in self._timers.values():
            timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections.values()):
            connection.end("stopping", "the path service stops")
        await asyncio.sleep(0)  # lets the last lines out
        for connection in list(self.connections.values()):
            connection.abort()

    def now(self) -> float:
        """Seconds since the start, in whole microseconds: as exact as the event log has them."""
        return int(1e6 * (self._loop.time() - self._began_s)) / 1e6

    def deliver(self, sends: Sends) -> None:
        """Sends messages to the connections that they are for."""
        connections = self.connections
        for number, message in sends:
            connection = connections.get(number)
            if connection is not None:
                connection.write(to_line(message))
        if self.service.busy and self._hurry is None:
            self._hurry = self._loop.call_later(0, self.tick)

    def links(self, links: Sequence[Link], up: bool) -> None:
        """Links have gone down or come back: whoever is concerned is told. Raises KeyError as `PathService.link`."""
        now_s = self.now()
        sends = self.service.link(now_s, links, up)
        if self.journal is not None:
            self.journal.links(now_s, links, up)
        self.deliver(sends)
        self._says.say(f"{', '.join(f'{link.a} to {link.b}' for link in links)}: {'up' if up else 'down'}")

    def tick(self) -> None:
        """Lets the path service do what is due by itself."""
        self._hurry = None
        now_s = self.now()
        if self.journal is not None:
            self.journal.tick(now_s)
        self.deliver(self.service.tick(now_s))

    # -- for connections -----------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> int:
        """A number for a new connection, 0 when there is no room. The oldest stranger makes room for a newer one."""
        if len(self.strangers) > self._room // 2:
            next(iter(self.strangers.values())).end("hello", "others wait to say hello, and you have not")
        if len(self.connections) >= self._room:
            return 0
        self._numbers += 1
        self.connections[self._numbers] = self.strangers[self._numbers] = connection
        return self._numbers

    def leave(self, number: int) -> None:
        if self.connections.pop(number, None) is None:
            return
        if self.strangers.pop(number, None) is not None:
            return
        now_s = self.now()
        if self.journal is not None:
            self.journal.gone(now_s, number)
        self.deliver(self.service.disconnect(now_s, number))

    def right(self, token: str) -> bool:
        """Whether the token is the service's, found out in a time that tells nothing of it."""
        return hmac.compare_digest(token.encode(), self._token)

    def greet(self, now_s: float, number: int, hello: Hello) -> None:
        """Takes in a device whose token is right and whose address is known."""
        del self.strangers[number]
        connection = self.connections[number]
        connection.write(to_line(Welcome(VERSION, secrets.token_hex(8))))
        sends, replaced = self.service.connect(now_s, number, hello)
        if self.journal is not None:
            self.journal.hello(now_s, number, hello)
        if replaced is not None and replaced in self.connections:
            old = self.connections.pop(replaced)
            old.end("replaced", "the same device object has connected again")
        self.deliver(sends)

    def handle(self, now_s: float, number: int, lines: list[bytes]) -> None:
        """Lines of a host that has said hello. Raises MessageError at the first that is none, the others being done."""
        self._heard_s = now_s
        messages: list[HostMessage] = []
        try:
            for line in lines:
                message = from_host(line)
                if type(message) is Hello:
                    raise MessageError("hello comes once, and first")
                messages.append(message)
        finally:
            sends = self.service.handle(now_s, number, messages)
            if self.journal is not None and messages:
                self.journal.said(now_s, number, lines[: len(messages)])
            self.deliver(sends)

    def refused(self, code: str, text: str) -> None:
        """Tells the log of something that ended, or was never begun."""
        self.counts[code] += 1
        self._says.say(text)

    # -- by the clock --------------------------------------------------------------------------------------------------

    def _every(self, seconds: float, work: Callable[[], None]) -> None:
        def again() -> None:
            work()
            self._timers[work] = self._loop.call_later(seconds, again)

        self._timers[work] = self._loop.call_later(seconds, again)

    def _sweep(self) -> None:
        """Ends what has been silent for too long."""
        now_s = self.now()
        late, self._swept_s = now_s - self._swept_s > 2 * _SWEEP_S, now_s
        if late:  # it was us who did not listen: what hosts have said meanwhile is still to be read
            return
        for stranger in list(self.strangers.values()):
            if now_s - stranger.since_s <= self.limits.hello_s:
                break  # the others came later
            stranger.end("hello", f"nothing said hello within {self.limits.hello_s:g} s")
        for connection in list(self.connections.values()):
            if now_s - connection.heard_s > self.limits.silent_s:
                connection.end("silent", f"nothing was heard for {self.limits.silent_s:g} s")
        self._says.sum_up()

    def _prepare(self) -> None:
        """Makes plans for failures, mostly while nobody waits for answers. One that took long is made up for later."""
        begin_s = self.now()
        share = _IDLE_SHARE if begin_s - self._heard_s > _IDLE_S else _BUSY_SHARE
        late = begin_s - self._prepared_s > 2 * _IDLE_S  # there is too much to do already
        self._prepared_s = begin_s
        self._spare_s = min(_IDLE_S, self._spare_s + share * _IDLE_S)
        if late or self._spare_s < 0:
            return
        steps, more, left_s = 0, True, self._spare_s
        clock = time.perf_counter
        begun_s = clock()
        while more and clock() - begun_s < left_s:
            more = self.service.prepare()
            steps += 1
        self._spare_s -= clock() - begun_s
        if self.journal is not None and (more or steps > 1):
            self.journal.prepared(begin_s, steps)


class _Sayings:
    """Log lines, so many a second and no more: strangers must not fill a disk."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = self._most = 10 * per_s
        self._unsaid = 0

    def say(self, text: str) -> None:
        if self._left < 1:
            self._unsaid += 1
            return
        self._left -= 1
        log.info(text)

    def sum_up(self) -> None:
        """To be called every _SWEEP_S."""
        self._left = min(self._most, self._left + self._per_s * _SWEEP_S)
        if self._unsaid and self._left >= 1:
            log.info("and %d lines more like these", self._unsaid)
            self._unsaid = 0
