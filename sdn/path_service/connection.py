# SPDX-License-Identifier: Apache-2.0
"""One host's connection: splits bytes into lines, checks hello, limits the rate of lines and the bytes it holds."""

import asyncio
import logging
from typing import Protocol, cast

from netmodel.printable import printable
from sdn._native import Host
from sdn.path_service.channels import Certified, certified
from sdn.path_service.limits import Limits
from sdn.path_service.messages import (
    MAX_HOST_LINE,
    VERSIONS,
    Error,
    ErrorCode,
    Hello,
    MessageError,
    from_host,
    to_line,
    version_of,
)
from sdn.path_service.turns import Share

log = logging.getLogger(__name__)

FEW = 2
"""Lines that are handled without a look at the clock: usually a release and an announcement."""
_CLOSE_TIMEOUT_S = 2.0  # how long an error is kept for a host that does not read it
_BUSY_S = 1.0  # between two "busy" errors
_SLOW_BYTES = 1 << 14  # unread by a host before they are counted
_UNCOUNTED_BYTES = 1 << 10  # that are read at once and wait for their turn without being counted


class Connections(Protocol):
    """The interface of the server that a connection needs."""

    limits: Limits
    is_busy: bool
    """Whether connections wait for turns."""

    def now(self) -> float:
        """Seconds since the server was started."""
        ...

    def admit(self, connection: "Connection") -> int:
        """A number, above 0, for a new connection; 0 when there is no room."""
        ...

    def leave(self, number: int) -> None:
        """Forget the connection of this number, which has ended."""
        ...

    def refused(self, code: str, text: str) -> None:
        """Counts and logs that something was refused."""
        ...

    def hand_over(self, connection: "Connection", number: int, lines: list[bytes], partial: bytes) -> bool:
        """Whether the first line comes from another service, which has the connection from now on."""
        ...

    def refusal(self, hello: Hello, certified: Certified) -> tuple[ErrorCode, str] | None:
        """Why a device with such a certificate may not connect, as an error's code and text; None when it may."""
        ...

    def greet(self, now_s: float, number: int, hello: Hello) -> None:
        """Accept a device that `refusal` has nothing against, and answer its hello."""
        ...

    def answer(self, connection: "Connection", data: bytes) -> bytes:
        """Answer what needs no decision. Returns what is left of `data`."""
        ...

    def read_by_native(self, connection: "Connection", transport: asyncio.Transport) -> asyncio.Transport:
        """Have native code read from a connection, if its bytes are lines. Returns its transport from now on."""
        ...

    def share(self, host: str) -> Share:
        """What the connections from an address share."""
        ...

    def wait(self, share: Share, connection: "Connection") -> None:
        """Give a connection turns, until nothing of its work is left."""
        ...

    def handle_now(self, now_s: float, connection: "Connection", share: Share, lines: list[bytes]) -> str:
        """Handle a few lines of a greeted connection, while nobody waits.

        The text says why a line is not a message, or is empty.
        """
        ...

    def handle_in_turn(self, now_s: float, connection: "Connection", lines: list[bytes]) -> str:
        """As `handle_now`, in a turn."""
        ...

    def handle(self, now_s: float, number: int, lines: list[bytes], until_s: float) -> tuple[int, str]:
        """Handle lines of a greeted connection until this time of the clock, one or more.

        Returns the number of lines that were handled. The text says why the line after them is not a message, or is
        empty.
        """
        ...

    def hold(self, number: int, size: int) -> None:
        """A connection holds this many received bytes that it has not handled."""
        ...

    def unread(self, number: int, size: int) -> None:
        """A connection holds this many bytes that its host does not read."""
        ...


class Connection(asyncio.Protocol):
    """The protocol object of one TCP connection."""

    __slots__ = (
        "_busy_s",
        "_ended",
        "_fault",
        "_greeted",
        "_held_bytes",
        "_is_counted",
        "_is_held",
        "_is_last",
        "_is_waiting",
        "_lines",
        "_partial",
        "_paused",
        "_server",
        "_share",
        "_slow",
        "_transport",
        "came_s",
        "host",
        "number",
        "since_s",
        "who",
    )

    def __init__(self, server: Connections) -> None:
        self._server = server
        self.since_s = server.now()
        self.host = Host(server.limits.lines_per_s, server.limits.burst_lines, MAX_HOST_LINE, self.since_s)
        """What native code knows of it: when something was heard, and how many lines the rate allows."""
        self._lines: list[bytes] = []  # whole lines that are still to be handled
        self.came_s = self.since_s  # when the first of these lines came
        self._partial = bytearray()  # of the line after them
        self._fault: tuple[ErrorCode, str] | None = None  # the error that follows these lines
        self._is_last = False  # the host has closed its side after these lines
        self._held_bytes = 0  # received since all whole lines were handled
        self._is_counted = False  # whether the server counts them
        self._is_waiting = False  # for a turn
        self._is_held = False  # until the rate allows more lines
        self._paused = False  # reading
        self._slow = False  # the host leaves bytes unread
        self._busy_s = -_BUSY_S
        self.number = 0  # given by the server; 0 without one
        self._greeted = False
        self._ended = False

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self._share = self._server.share(str(peer[0]))
        self.who = f"{peer[0]}:{peer[1]}"
        self._transport.set_write_buffer_limits(high=_SLOW_BYTES)
        self.number = self._server.admit(self)
        if not self.number:
            self.end("full", "there is no room for more connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()
        self._server.leave(self.number)

    def pause_writing(self) -> None:
        """The host leaves bytes unread: from now on they are counted."""
        self._slow = True
        self._count_unread()

    def resume_writing(self) -> None:
        """The host reads again."""
        self._slow = False
        self._server.unread(self.number, 0)

    def data_received(self, data: bytes) -> None:
        if self._ended or self._fault:
            return
        if self.host.is_clear and (not (data := self._server.answer(self, data)) or self._ended):
            return  # the service may have stepped down before it answered
        lines = data.split(b"\n")
        rest = lines.pop()
        is_usual = self._greeted and len(lines) <= FEW and len(data) <= MAX_HOST_LINE
        if is_usual and not (rest or self._partial or self._is_waiting or self._server.is_busy):
            if self._take(lines, in_turn=False):
                self.host.is_clear = not self._ended
                return
        elif not lines:
            self.host.heard_s = self._server.now()
        if self._partial:
            if lines:
                lines[0] = bytes(self._partial) + lines[0]
                self._partial = bytearray(rest)
            else:
                self._partial += rest
        elif rest:
            self._partial = bytearray(rest)
        if len(data) > MAX_HOST_LINE or len(self._partial) > MAX_HOST_LINE or (lines and len(lines[0]) > MAX_HOST_LINE):
            self._check_lengths(lines)
        if lines and not self._lines:
            self.came_s = self._server.now()
        self._lines += lines
        self._held_bytes += len(data)
        if self._partial or self._is_counted or self._held_bytes > _UNCOUNTED_BYTES:
            self._count_held()
        if (self._lines or self._fault) and not self._is_waiting:
            self._is_waiting = True
            self._server.wait(self._share, self)

    def eof_received(self) -> bool:
        """Keeps the connection open until its lines have been answered."""
        if self._ended or not self._is_waiting:
            return False
        self._is_last = True
        return True

    @property
    def has_said(self) -> bool:
        """Whether lines have come that wait for their turn."""
        return bool(self._lines)

    # -- for the server ------------------------------------------------------------------------------------------------

    def write(self, line: bytes) -> None:
        """Sends a line, unless the connection has ended."""
        if not self._ended:
            self._transport.write(line)
            if self._slow:
                self._count_unread()

    def end(self, code: ErrorCode, text: str) -> None:
        """Sends an error and closes. The log has it too, unless the service is stopping."""
        if self._ended:
            return
        if code not in ("stopping", "standby"):
            self._server.refused(code, f"{self.who} refused: {code}: {text}")
        self.write(to_line(Error(code, text)))
        if self._ended:
            return
        self._close()

    def _close(self) -> None:
        """What has not been sent is sent, if the host takes it soon."""
        self._let_go()
        self._transport.close()
        asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT_S, self._transport.abort)

    def abort(self) -> None:
        """Closes at once; what has not been sent is lost."""
        self._let_go()
        self._transport.abort()

    def let_go(self) -> asyncio.Transport:
        """The transport, which another protocol has from now on."""
        self._pause(False)
        self._let_go()
        return self._transport

    def drop_unread(self, why: str) -> None:
        """Closes because of what the host has not read."""
        if not self._ended:
            self._server.refused("unread", f"{self.who} dropped: {why}")
            self.abort()

    def turn(self, until_s: float) -> bool:
        """Handles lines until this time of the clock, as far as the rate allows. Returns whether to call again."""
        if self._ended:
            return False
        try:
            self._handle(until_s)
        except Exception:
            self._fail()
        return bool(self._lines) and not self._is_held

    # -- internal ------------------------------------------------------------------------------------------------------

    def _take(self, lines: list[bytes], *, in_turn: bool) -> bool:
        """Handles all of a few lines, which is the usual case; False, with nothing done, when the rate forbids it."""
        server, now_s = self._server, self._server.now()
        if not self.host.allow(len(lines), now_s):
            return False
        try:
            if in_turn:
                wrong = server.handle_in_turn(now_s, self, lines)
            else:
                wrong = server.handle_now(now_s, self, self._share, lines)
        except Exception:
            self._fail()
        else:
            if wrong:
                self.end("message", wrong)
        return True

    def _fail(self) -> None:
        log.exception("%s dropped: its lines cannot be handled", printable(self.who))
        self.abort()

    def _handle(self, until_s: float) -> None:
        if self._greeted and 0 < len(self._lines) <= FEW and self._take(self._lines, in_turn=True):
            if not self._ended:
                self._lines.clear()
                self._finish()
            return
        now_s = self.host.heard_s = self._server.now()
        lines, limits = self._lines, self._server.limits
        full_s = max(self.host.full_s, now_s)
        allowed = int(limits.burst_lines - (full_s - now_s) * limits.lines_per_s)
        if lines and allowed <= 0:
            self._hold(now_s)
            return
        done, wrong = 0, ""
        if lines and not self._greeted:
            if self._server.hand_over(self, self.number, lines, bytes(self._partial)):
                return
            done, wrong = self._greet(now_s, lines[0])
        if not wrong and not self._ended and done < min(allowed, len(lines)):
            more, wrong = self._server.handle(now_s, self.number, lines[done:allowed], until_s)
            done += more
        self.host.full_s = full_s + done / limits.lines_per_s
        del lines[:done]
        if wrong:
            self.end("message", wrong)
        elif lines:
            self._pause(True)
        else:
            self._finish()

    def _greet(self, now_s: float, line: bytes) -> tuple[int, str]:
        """Handles the first line, which must be hello. Returns 1 and why it is no message, or ""."""
        version = version_of(line)
        if version not in (None, *VERSIONS):
            spoken = " and ".join(map(str, VERSIONS))
            self.end("version", f"this service speaks versions {spoken}, not {version}")
            return 1, ""
        try:
            hello = from_host(line)
        except MessageError as error:
            return 1, str(error)
        if not isinstance(hello, Hello):
            self.end("hello", "the first line must be hello")
        elif (refusal := self._server.refusal(hello, certified(self._transport))) is not None:
            self.end(*refusal)
        else:
            self._server.hold(self.number, 0)  # from now on it counts among the greeted
            self._greeted = True
            if not (self._is_last or self._paused or self._transport.get_write_buffer_size()):
                self._transport = self._server.read_by_native(self, self._transport)
                self._transport.set_write_buffer_limits(high=_SLOW_BYTES)
            self._server.greet(now_s, self.number, hello)
        return 1, ""

    def _check_lengths(self, lines: list[bytes]) -> None:
        """Drops the first line that is too long and all that follows; the lines before it are still handled."""
        for i, line in enumerate(lines):
            if len(line) > MAX_HOST_LINE:
                del lines[i:]
                break
        else:
            if len(self._partial) <= MAX_HOST_LINE:
                return
        self._partial = bytearray()
        self._fault = "line", f"a line is longer than {MAX_HOST_LINE} bytes"
        self._pause(True)

    def _finish(self) -> None:
        """All lines have been handled: ends the connection if nothing may follow, and goes on reading if not."""
        if self._fault:
            self.end(*self._fault)
        elif self._is_last:
            self._close()
        else:
            self._is_waiting = False
            self.host.is_clear = not self._partial
            self._held_bytes = len(self._partial)
            if self._is_counted:
                self._count_held()
            self._pause(False)

    def _hold(self, now_s: float) -> None:
        """Handles no more lines, and reads none, until the rate allows some."""
        limits = self._server.limits
        if now_s - self._busy_s >= _BUSY_S:
            self._busy_s = now_s
            self.write(to_line(Error("busy", f"only {limits.lines_per_s:g} lines a second are read")))
        self._is_held = True
        self._pause(True)
        pause_s = min(len(self._lines), limits.burst_lines / 2) / limits.lines_per_s
        asyncio.get_running_loop().call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._is_held = False
        if not self._ended:
            self._server.wait(self._share, self)

    def _pause(self, pause: bool) -> None:
        """Stops or goes on reading from the host."""
        if pause != self._paused and not self._ended:
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _count_held(self) -> None:
        self._is_counted = self._held_bytes > 0
        self._server.hold(self.number, self._held_bytes)

    def _count_unread(self) -> None:
        size = self._transport.get_write_buffer_size()
        if size > self._server.limits.unread_bytes:
            self.drop_unread("it does not read what it is sent")
        elif not self._ended:
            self._server.unread(self.number, size)

    def _let_go(self) -> None:
        """Forgets what it holds: the connection has ended."""
        self._ended = True
        self.host.serve(None)
        self._lines.clear()
        self._partial = bytearray()
        self._held_bytes = 0
        self._server.hold(self.number, 0)
        self._server.unread(self.number, 0)
