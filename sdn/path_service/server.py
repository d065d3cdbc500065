# SPDX-License-Identifier: Apache-2.0
"""The path service on TCP: carries messages between hosts and a `PathService`, and enforces `Limits`.

It has one thread and one event loop. Limits bound what a connection that has not said hello, a faulty host or a busy
host may cost the others. Every refusal is sent to the host as an error and logged in one line.
"""

import asyncio
import hmac
import logging
import resource
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence

from netmodel import Link
from sdn.path_service.assignments import Sends
from sdn.path_service.connection import Connection
from sdn.path_service.journal import Journal
from sdn.path_service.limits import Limits
from sdn.path_service.messages import VERSION, ErrorCode, Hello, HostMessage, MessageError, Welcome, from_host, to_line
from sdn.path_service.service import PathService

log = logging.getLogger(__name__)

TICK_S = 0.05
"""Seconds between two calls of `PathService.tick`."""
_SWEEP_S = 0.5
_IDLE_S = 0.02  # without a host's message for this time, the service is idle
_IDLE_SHARE = 0.25  # part of the time spent on failover plans while idle
_BUSY_SHARE = 0.05  # and while busy
_BACKLOG = 4096  # connections that wait to be accepted
_SPARE_FILES = 64  # descriptors reserved for other uses than connections


class Server:
    """Hosts' connections to one `PathService`. Create it, `await start`, and finally `await close`."""

    def __init__(
        self, service: PathService, token: str, *, limits: Limits | None = None, journal: Journal | None = None
    ) -> None:
        self.service = service
        self.limits = limits or Limits()
        self.journal = journal
        self.connections: dict[int, Connection] = {}
        self.greeting: dict[int, Connection] = {}
        """Those of `connections` that have not said hello, oldest first."""
        self._token = token.encode()
        self._room = self.limits.connections or resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES
        self._numbers = 0
        self._heard_s = 0.0
        self._swept_s = 0.0
        self._prepared_s = 0.0
        self._spare_s = 0.0  # time that may be spent on failover plans; below 0 after a step that took long
        self.counts: Counter[str] = Counter()
        """Refusals by error code."""
        self._log = _BoundedLog(self.limits.log_lines_per_s)
        self._server: asyncio.Server | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._hurry: asyncio.Handle | None = None

    async def start(self, listener: socket.socket) -> tuple[str, int]:
        """Accepts connections at a socket of `bind`. Returns its address and port."""
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._server = await self._loop.create_server(lambda: Connection(self), sock=listener, backlog=_BACKLOG)
        self._every(_SWEEP_S, self._sweep)
        if self.service.options.forecast or self.service.options.rates:
            self._every(TICK_S, self.tick)
        self._every(_IDLE_S, self._prepare)
        at: tuple[str, int] = listener.getsockname()[:2]
        return at

    async def close(self) -> None:
        """Stops listening, informs every host and closes all connections."""
        for timer in self._timers.values():
            timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections.values()):
            connection.end("stopping", "the path service stops")
        await asyncio.sleep(0)  # sends the last lines
        for connection in list(self.connections.values()):
            connection.abort()

    def now(self) -> float:
        """Seconds since the start, in whole microseconds, which is the event log's resolution."""
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
        """Send hosts new ports after links went down or came back. Raises KeyError as `PathService.link`."""
        now_s = self.now()
        sends = self.service.link(now_s, links, up)
        if self.journal is not None:
            self.journal.links(now_s, links, up)
        self.deliver(sends)
        self._log.write(f"{', '.join(f'{link.a} to {link.b}' for link in links)}: {'up' if up else 'down'}")

    def tick(self) -> None:
        """Let the service do the work that is due, and send what results."""
        self._hurry = None
        now_s = self.now()
        if self.journal is not None:
            self.journal.tick(now_s)
        self.deliver(self.service.tick(now_s))

    # -- for connections -----------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> int:
        """A number for a new connection, 0 when there is no room.

        When half of the room is taken by connections that have not said hello, the oldest of them is closed.
        """
        if len(self.greeting) > self._room // 2:
            next(iter(self.greeting.values())).end("hello", "no hello came, and other connections need the room")
        if len(self.connections) >= self._room:
            return 0
        self._numbers += 1
        self.connections[self._numbers] = self.greeting[self._numbers] = connection
        return self._numbers

    def leave(self, number: int) -> None:
        """Handle the end of a connection: the commodities of its device end, and the device is back on ECMP."""
        if self.connections.pop(number, None) is None:
            return
        if self.greeting.pop(number, None) is not None:
            return
        now_s = self.now()
        if self.journal is not None:
            self.journal.gone(now_s, number)
        self.deliver(self.service.disconnect(now_s, number))

    def refusal(self, hello: Hello) -> tuple[ErrorCode, str] | None:
        """Why a device may not connect: a wrong token, or an address outside the topology; None when it may."""
        if not hmac.compare_digest(hello.token.encode(), self._token):  # takes the same time for every wrong token
            return "token", "the token is not this service's"
        if not self.service.knows(hello.device):
            return "device", f"{hello.device} is not a device of topology {self.service.topology.name}"
        return None

    def greet(self, now_s: float, number: int, hello: Hello) -> None:
        """Accept a device that `refusal` has nothing against. An earlier connection of the same device object ends."""
        del self.greeting[number]
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
        """Handles lines of a host that has said hello.

        Raises MessageError at the first line that is not a message; the lines before it have been handled.
        """
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
        """Counts and logs a refusal."""
        self.counts[code] += 1
        self._log.write(text)

    # -- timers --------------------------------------------------------------------------------------------------------

    def _every(self, seconds: float, work: Callable[[], None]) -> None:
        def again() -> None:
            work()
            self._timers[work] = self._loop.call_later(seconds, again)

        self._timers[work] = self._loop.call_later(seconds, again)

    def _sweep(self) -> None:
        """Closes connections that have been silent for too long."""
        now_s = self.now()
        late, self._swept_s = now_s - self._swept_s > 2 * _SWEEP_S, now_s
        if late:  # this process was held up, so there may be unread data of any host
            return
        for connection in list(self.greeting.values()):
            if now_s - connection.since_s <= self.limits.hello_s:
                break  # the others connected later
            connection.end("hello", f"no hello came within {self.limits.hello_s:g} s")
        for connection in list(self.connections.values()):
            if now_s - connection.heard_s > self.limits.silent_s:
                connection.end("silent", f"nothing was heard for {self.limits.silent_s:g} s")
        self._log.refill()

    def _prepare(self) -> None:
        """Makes failover plans in a share of the time, a larger one while idle. A long step delays the next ones."""
        begin_s = self.now()
        share = _IDLE_SHARE if begin_s - self._heard_s > _IDLE_S else _BUSY_SHARE
        late = begin_s - self._prepared_s > 2 * _IDLE_S  # the event loop is overloaded
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


def bind(address: str, port: int) -> socket.socket:
    """A TCP socket that hosts may connect to; they are accepted later. Raises OSError when the address is not free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=_BACKLOG)


class _BoundedLog:
    """Writes log lines at a limited rate, so that refused connections cannot fill a disk."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = self._most = 10 * per_s
        self._dropped = 0

    def write(self, text: str) -> None:
        """Logs a line, or counts it when the rate is exceeded."""
        if self._left < 1:
            self._dropped += 1
            return
        self._left -= 1
        log.info(text)

    def refill(self) -> None:
        """To be called every _SWEEP_S: allows more lines, and logs how many were dropped."""
        self._left = min(self._most, self._left + self._per_s * _SWEEP_S)
        if self._dropped and self._left >= 1:
            log.info("and %d lines more like these", self._dropped)
            self._dropped = 0
