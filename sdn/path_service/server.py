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
from collections.abc import Callable
from functools import partial
from typing import Any

from netmodel import dump_topology
from sdn._native import Done
from sdn.path_service.bounded_log import BoundedLog
from sdn.path_service.channels import Certified, Channels, PlainChannels
from sdn.path_service.connection import Connection
from sdn.path_service.constraints import Constraints
from sdn.path_service.group_lists import Listed
from sdn.path_service.guard import Guard
from sdn.path_service.held_bytes import HeldBytes
from sdn.path_service.host_lines import Said, lines_of
from sdn.path_service.host_sockets import HostSockets
from sdn.path_service.journal import Journal
from sdn.path_service.latency import Latency
from sdn.path_service.limits import Limits
from sdn.path_service.messages import (
    PROBING,
    ErrorCode,
    Hello,
    HostMessage,
    MessageError,
    Voted,
    Wait,
    Welcome,
    from_host,
    to_line,
    usual_from_host,
)
from sdn.path_service.next_hops import unlisted
from sdn.path_service.pinning import Sends
from sdn.path_service.service import PathService
from sdn.path_service.spare_time import SPARE_EVERY_S, SpareTime
from sdn.path_service.succession import take_over
from sdn.path_service.turns import Share, Turns, Worker

log = logging.getLogger(__name__)

TICK_S = 0.05
"""Seconds between two calls of `PathService.tick`."""
_SWEEP_S = 0.5
_BACKLOG = 4096  # connections that wait to be accepted
_PUMP_S = 0.001  # of work before the event loop reads what has come
_DIRECT_S = 0.004  # of short work that is done where it is read, before hosts take turns
_LONG_S = 0.0005  # of work that was for one host at once, after which hosts take turns
_HOSTS_WEIGHT = 6  # of the time of hosts, where handshakes that begin have 1, and those that have begun 1
_SPARE_FILES = 64  # descriptors reserved for other uses than connections
_MOST_AHEAD = 1 << 32  # generations: a store that was repaired counts from the Unix time on


class Server:
    """Hosts' connections to one `PathService`. Create it, `await start`, and finally `await close`."""

    def __init__(
        self,
        service: PathService,
        token: str,
        *,
        limits: Limits | None = None,
        journal: Journal | None = None,
        generation: int = 1,
        channels: Channels | None = None,
    ) -> None:
        self.service = service
        self.limits = limits or Limits()
        self.journal = journal
        self.connections: dict[int, Connection] = {}
        self.greeting: dict[int, Connection] = {}
        """Those of `connections` that have not said hello, oldest first."""
        self.token = token
        """Of hosts, and of operators unless they have one of their own."""
        self.channels = channels or PlainChannels()
        """Of connections to come."""
        self.generation = generation
        """Of this service: higher than of all that have served the same hosts before."""
        self._room = self.limits.connections or resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES
        self._groups: Listed | None = None  # of the switches of this topology, if they were read
        self._numbers = 0
        self._swept_s = 0.0
        self.guard: Guard | None = None
        """None where no other service shares the hosts."""
        self.held: dict[int, Hello] = {}
        """Connections of hosts that wait until this service leads."""
        self.counts: Counter[str] = Counter()
        """Refusals by error code."""
        self.latency = Latency()
        self.spare = SpareTime(self.now, lambda: self.service.prepare(), self._note_prepared)
        """What is left of the time that hosts need."""
        self._log = BoundedLog(log, self.limits.log_lines_per_s)
        self._server: asyncio.Server | None = None
        self._sockets: HostSockets | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._hurry: asyncio.Handle | None = None
        self._turns = Turns()
        self._hosts = Turns(within=(self._turns, Share(_HOSTS_WEIGHT)))
        self._strangers = {has_begun: Turns(within=(self._turns, Share())) for has_begun in (False, True)}
        self.is_busy = False
        """Whether connections wait for turns, or much has been handled since the last ones."""
        self._used_s = 0.0  # by `handle_now` since the last turns
        self._greeting_bytes = HeldBytes(self.limits.greeting_bytes)
        self._received_bytes = HeldBytes(self.limits.received_bytes)
        self._unread_bytes = HeldBytes(self.limits.all_unread_bytes)

    async def start(self, listener: socket.socket) -> tuple[str, int]:
        """Accepts connections at a socket of `bind`. Returns its address and port."""
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._sockets = HostSockets(self._begin_answers, self._end_answers)
        self._server = await self._loop.create_server(self._accept, sock=listener, backlog=_BACKLOG)
        self._every(_SWEEP_S, self._sweep)
        self._every(TICK_S, self._tick_if_needed)
        self._every(SPARE_EVERY_S, self.spare.prepare)
        at: tuple[str, int] = listener.getsockname()[:2]
        return at

    async def close(self) -> None:
        """Stops listening, informs every host and closes all connections. `start` may have failed before."""
        for timer in self._timers.values():
            timer.cancel()
        if self._server is not None:
            self._server.close()
            if self.journal is not None:
                self.journal.sent(self.now())
        for connection in list(self.connections.values()):
            connection.end("stopping", "the path service stops")
        await asyncio.sleep(0)  # sends the last lines
        for connection in list(self.connections.values()):
            connection.abort()
        if self._sockets is not None:
            self._sockets.close()

    def now(self) -> float:
        """Seconds since the start, in whole microseconds, which is the log's resolution."""
        return int(1e6 * (self._loop.time() - self._began_s)) / 1e6

    def deliver(self, sends: Sends) -> None:
        """Sends messages to the connections that they are for."""
        connections = self.connections
        if self.journal is not None:
            self.journal.sends(sends)
        if self.guard is not None and not self.guard.may_assign():
            return
        for number, lines in lines_of(sends):
            connection = connections.get(number)
            if connection is not None:
                connection.write(lines)
        if self._hurry is None and self.service.busy:
            self._hurry = self._loop.call_later(0, self.tick)

    def constrain(self, constraints: Constraints, reason: dict[str, Any] | None = None) -> None:
        """Send hosts new ports after what limits paths has changed. Raises KeyError as `PathService.constrain`.

        `reason` is for the log: the number of the `change`, `who` asked, and `what` was asked.
        """
        now_s = self.now()
        sends = self.service.constrain(now_s, constraints)
        if self.journal is not None:
            self.journal.constrained(now_s, constraints, reason or {})
        self.deliver(sends)

    def succeed(self, new: PathService, constraints: Constraints, hash_name: str | None, who: str) -> None:
        """Go on with a service for another topology or with other options, and the same hosts.

        Raises SuccessionError, with no change.

        No host is answered meanwhile: it takes as long as to plan all elephants anew.
        """
        now_s = self.now()
        same = dump_topology(new.topology) == dump_topology(self.service.topology)
        groups = self._groups if same else None
        sends = take_over(now_s, self.service, new, constraints, None if groups is None else unlisted(groups))
        if groups is not self._groups:
            self.tell("next hops were read of another topology: read them anew")
        self.service, self._groups = new, groups
        for number, connection in self.connections.items():
            connection.host.serve(new.elephants_of(number))
        if self.journal is not None:
            self.journal.reloaded(now_s, new, hash_name, constraints, who, groups)
        self.deliver(sends)

    def next_hops(self, groups: Listed) -> None:
        """Send hosts new ports after the switches were read. Raises ValueError for what is not an IP address."""
        now_s = self.now()
        sends = self.service.next_hops(now_s, unlisted(groups))
        self._groups = groups
        if self.journal is not None:
            self.journal.next_hops(now_s, groups)
        self.deliver(sends)
        self._log.write(f"the next hops of {len(groups)} switches were read")

    def tick(self) -> None:
        """Let the service do the work that is due, and send what results."""
        self._hurry = None
        now_s = self.now()
        if self.journal is not None:
            self.journal.tick(now_s)
        self.deliver(self.service.tick(now_s))

    def _tick_if_needed(self) -> None:
        if self.service.needs_ticks:
            self.tick()

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
        if self.greeting.pop(number, None) is not None or self.held.pop(number, None) is not None:
            return
        if self.guard is not None:
            self.guard.left(number)
        now_s = self.now()
        if self.journal is not None:
            self.journal.gone(now_s, number)
        self.deliver(self.service.disconnect(now_s, number))

    def refusal(self, hello: Hello, certified: Certified) -> tuple[ErrorCode, str] | None:
        """Why a device may not connect; None when it may.

        Its token is wrong, its address is outside the topology, or its certificate is for other addresses.
        """
        if not hmac.compare_digest(
            hello.token.encode(), self.token.encode()
        ):  # takes the same time for every wrong token
            return "token", "the token is not this service's"
        if not self.service.knows(hello.device):
            return "device", f"{hello.device} is not a device of topology {self.service.topology.name}"
        if certified is not None and hello.device not in certified:
            return "certificate", f"its certificate is not for {hello.device}"
        named = max(hello.generation or 0, hello.voted)
        if named > self.generation + _MOST_AHEAD:
            return "message", f"generation {named} cannot be: this one is {self.generation}"
        if self.guard is not None and (why := self.guard.refusal(hello)) is not None:
            return "standby", why
        return None

    def greet(self, now_s: float, number: int, hello: Hello) -> None:
        """Accept a device that `refusal` has nothing against. An earlier connection of the same device object ends.

        Where this service does not lead, the device waits until it does.
        """
        self.greeting.pop(number, None)
        if self.guard is not None and not self.guard.may_assign():
            self.held[number] = hello
            return
        connection = self.connections[number]
        probe = self.service.offers_probes and hello.version >= PROBING
        router_rate = self.service.options.router_answers if probe else 1.0
        generation = 0
        if hello.generation is not None:
            # A higher one is that of a store that was lost: with another service beside it, `refusal` yields to that.
            generation = self.generation = max(self.generation, hello.generation)
        connection.write(to_line(Welcome(hello.version, secrets.token_hex(8), probe, router_rate, generation)))
        sends, replaced = self.service.connect(now_s, number, hello)
        connection.host.serve(self.service.elephants_of(number))
        if self.journal is not None:
            self.journal.hello(now_s, number, hello, connection.who)
        if replaced is not None and replaced in self.connections:
            old = self.connections.pop(replaced)
            old.end("replaced", "the same device object has connected again")
            if self.guard is not None:
                self.guard.left(replaced)
        if self.guard is not None:
            self.guard.greeted(number, hello)
        self.deliver(sends)

    def release(self) -> None:
        """This service leads now: accepts the devices that wait."""
        held, self.held = self.held, {}
        for number, hello in held.items():
            if number in self.connections:
                self.greet(self.now(), number, hello)

    def keep_waiting(self) -> None:
        """Tells the devices that wait that this service is there."""
        for number in self.held:
            self.connections[number].write(to_line(Wait()))

    def turn_away(self, why: str, *, held_only: bool = False) -> None:
        """Sends hosts to the other service: all, or those that wait."""
        for number in list(self.held if held_only else {*self.connections} - {*self.greeting}):
            connection = self.connections[number]
            connection.end("standby", why)
            self.leave(number)

    def hand_over(self, connection: Connection, number: int, lines: list[bytes], partial: bytes) -> bool:
        """Whether a new connection's first line comes from the other service, which has the connection from now on."""
        if self.guard is None or not self.guard.is_meant(lines[0]):
            return False
        del self.greeting[number], self.connections[number]
        self.hold(number, 0)
        first, rest = lines[0], b"".join(line + b"\n" for line in lines[1:]) + partial
        self.guard.meet(connection.let_go(), first, rest)
        return True

    def answer(self, connection: Connection, data: bytes) -> bytes:
        """Answers what needs no decision. Returns what is left of `data`."""
        now_s, may_answer, done = self._begin_answers()
        if not may_answer:
            connection.host.is_clear = False
            return data
        data, said = connection.host.answer(connection.number, data, now_s, done)
        if said:
            connection.write(said)
            self._end_answers(now_s, done)
        return data

    def read_by_native(self, connection: Connection, transport: asyncio.Transport) -> asyncio.Transport:
        """Has native code read from a connection, if its bytes are lines. Returns its transport from now on."""
        if self._sockets is None or not self.channels.are_plain:
            return transport
        try:
            return self._sockets.take(connection.number, transport, connection, connection.host)
        except OSError:  # no descriptor is left for a moment
            return transport

    def _begin_answers(self) -> tuple[float, bool, Done]:
        return self.now(), self.guard is None or self.guard.may_assign(), Done(self.journal is not None)

    def _end_answers(self, now_s: float, done: Done) -> None:
        """These lines of hosts were answered without a decision."""
        self.spare.heard_s = now_s
        if done.renewed:
            self.service.counts["announced"] += done.renewed
            self.service.counts["released"] += done.renewed
            for took_s, renewed in done.renewals:
                self.latency.note(took_s, renewed)
        if self.journal is not None:
            self.journal.answered(now_s, done)

    def share(self, host: str) -> Share:
        """What the connections from an address share."""
        return self._hosts.share(host)

    def wait(self, share: Share, connection: Connection) -> None:
        """Gives a connection turns, until nothing of its work is left."""
        self._hosts.wait(share, connection)
        self._call_pump()

    def handle_now(self, now_s: float, connection: Connection, share: Share, lines: list[bytes]) -> str:
        """Handles a few lines of a host that has said hello, while nobody waits.

        The text says why a line is not a message, or is empty.
        """
        begin_s = time.perf_counter()
        announced, wrong = self._handle_few(now_s, connection, lines)
        took_s = time.perf_counter() - begin_s
        if announced:
            self.latency.note(took_s, announced)
        self._hosts.charge(share, took_s)
        self._used_s += took_s
        if self._used_s > _DIRECT_S or took_s > _LONG_S:
            self._call_pump()
        return wrong

    def handle_in_turn(self, now_s: float, connection: Connection, lines: list[bytes]) -> str:
        """As `handle_now`, in a turn."""
        announced, wrong = self._handle_few(now_s, connection, lines)
        if announced:
            self.latency.note(self.now() - connection.came_s, announced)
        return wrong

    def _handle_few(self, now_s: float, connection: Connection, lines: list[bytes]) -> tuple[int, str]:
        """Returns the number of announcements in these lines, and why one is not a message."""
        number = connection.number
        if self.held and number in self.held:
            return 0, self._hear_held(number, lines)
        self.spare.heard_s = now_s
        messages = usual_from_host(lines)
        counts, wrong = self.service.counts, ""
        announced = counts["announced"]
        if messages is None:
            messages = []
            try:
                for line in lines:
                    messages.append(self._message(line, number))
            except MessageError as error:
                wrong = str(error)
        sends = self.service.handle(now_s, number, messages)
        self._say(now_s, number, lines[: len(messages)], sends)
        return counts["announced"] - announced, wrong

    def _say(self, now_s: float, number: int, lines: list[bytes], sends: Sends) -> None:
        """Sends what results from these lines of a host, each of which is a message."""
        if self.journal is not None and lines:
            self.journal.said(now_s, number, lines)
        self.deliver(sends)

    def handle(self, now_s: float, number: int, lines: list[bytes], until_s: float) -> tuple[int, str]:
        """Handles lines of a host that has said hello, until this time of the clock; one or more.

        Returns the number of lines that were handled. The text says why the line after them is not a message, or is
        empty.
        """
        if number in self.held:
            return len(lines), self._hear_held(number, lines)
        announced = self.service.counts["announced"]
        self.spare.heard_s = now_s
        said = Said(lines, until_s, partial(self._message, number=number))
        sends = self.service.handle(now_s, number, said)
        self._say(now_s, number, lines[: said.count], sends)
        waited_s = self.now() - self.connections[number].came_s if number in self.connections else 0.0
        self.latency.note(waited_s, self.service.counts["announced"] - announced)
        return said.count, said.wrong

    def _hear_held(self, number: int, lines: list[bytes]) -> str:
        """Handles lines of a host that waits, which votes and does nothing else. Returns why one is no message."""
        try:
            for line in lines:
                self._message(line, number)
        except MessageError as error:
            return str(error)
        return ""

    def _message(self, line: bytes, number: int) -> HostMessage:
        """The message in a line of a host that has said hello. Raises MessageError."""
        message = from_host(line)
        if type(message) is Hello:
            raise MessageError("hello comes once, and first")
        if type(message) is Voted and self.guard is not None:
            self.guard.voted(number, message)
        return message

    def hold(self, number: int, size: int) -> None:
        """A connection holds this many received bytes. Those that have held some for longest make room."""
        greeting = number in self.greeting
        oldest = (self._greeting_bytes if greeting else self._received_bytes).hold(number, size)
        if oldest is not None:
            code: ErrorCode = "hello" if greeting else "line"
            self.connections[oldest].end(code, "a line has not ended, and others need the room")

    def unread(self, number: int, size: int) -> None:
        """A connection holds this many bytes for a host that does not read them."""
        oldest = self._unread_bytes.hold(number, size)
        if oldest is not None:
            self.connections[oldest].drop_unread("it does not read what it is sent, and others need the room")

    def refused_operator(self, who: str, text: str) -> None:
        """Logs that an operator's request was refused."""
        if self.journal is not None:
            self.journal.refused(self.now(), who, text)

    def tell(self, text: str) -> None:
        """Logs a line."""
        self._log.write(text)

    def refused(self, code: str, text: str) -> None:
        """Counts and logs a refusal. The event log has it, too, where a host speaks for an address of another."""
        self.counts[code] += 1
        if self._log.write(text) and code == "certificate" and self.journal is not None:
            who, _, why = text.partition(" refused: ")
            self.journal.refused(self.now(), who, why)

    def _accept(self) -> asyncio.Protocol:
        connection = Connection(self)
        return self.channels.accept(connection, connection.end, self._wait_as_stranger)

    def _wait_as_stranger(self, host: str, worker: Worker, has_begun: bool) -> None:
        turns = self._strangers[has_begun]
        turns.wait(turns.share(host), worker)
        self._call_pump()

    def _call_pump(self) -> None:
        if not self.is_busy:
            self.is_busy = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Gives turns for a while, then lets the event loop read what has come."""
        self._used_s = 0.0
        self.is_busy = self._turns.run(_PUMP_S)
        if self.is_busy:
            self._loop.call_soon(self._pump)

    # -- timers --------------------------------------------------------------------------------------------------------

    def _every(self, seconds: float, work: Callable[[], None]) -> None:
        def again() -> None:
            try:
                work()
            finally:  # the event loop logs an error
                self._timers[work] = self._loop.call_later(seconds, again)

        self._timers[work] = self._loop.call_later(seconds, again)

    def _sweep(self) -> None:
        """Closes connections that have been silent for too long."""
        now_s = self.now()
        if self.journal is not None:
            self.journal.sent(now_s)
        late, self._swept_s = now_s - self._swept_s > 2 * _SWEEP_S, now_s
        if late:  # this process was held up, so there may be unread data of any host
            return
        for connection in list(self.greeting.values()):
            if now_s - connection.since_s <= self.limits.hello_s:
                break  # the others connected later
            if not connection.has_said:
                connection.end("hello", f"no hello came within {self.limits.hello_s:g} s")
        for connection in list(self.connections.values()):
            if now_s - connection.host.heard_s > self.limits.silent_s:
                connection.end("silent", f"nothing was heard for {self.limits.silent_s:g} s")
        self._log.refill(_SWEEP_S)

    def _note_prepared(self, at_s: float, steps: int) -> None:
        if self.journal is not None:
            self.journal.prepared(at_s, steps)


def bind(address: str, port: int) -> socket.socket:
    """A TCP socket that hosts may connect to; they are accepted later. Raises OSError when the address is not free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=_BACKLOG)
