# SPDX-License-Identifier: Apache-2.0
"""One host's connection: splits bytes into lines, checks hello, limits the rate of lines."""

import asyncio
from typing import Protocol, cast

from sdn.path_service.limits import Limits
from sdn.path_service.messages import (
    MAX_HOST_LINE,
    VERSION,
    Error,
    ErrorCode,
    Hello,
    MessageError,
    from_host,
    to_line,
    version_of,
)

_CLOSE_TIMEOUT_S = 2.0  # how long an error is kept for a host that does not read it
_BUSY_S = 1.0  # between two "busy" errors


class Connections(Protocol):
    """The interface of the server that a connection needs."""

    limits: Limits

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

    def refusal(self, hello: Hello) -> tuple[ErrorCode, str] | None:
        """Why a device may not connect, as an error's code and text; None when it may."""
        ...

    def greet(self, now_s: float, number: int, hello: Hello) -> None:
        """Accept a device that `refusal` has nothing against, and answer its hello."""
        ...

    def handle(self, now_s: float, number: int, lines: list[bytes]) -> None:
        """Handle lines of a greeted connection. Raises MessageError at the first that is not a message."""
        ...


class Connection(asyncio.Protocol):
    """The protocol object of one TCP connection."""

    __slots__ = (
        "_busy_s",
        "_ended",
        "_full_s",
        "_greeted",
        "_held",
        "_number",
        "_partial",
        "_server",
        "_transport",
        "_who",
        "heard_s",
        "since_s",
    )

    def __init__(self, server: Connections) -> None:
        self._server = server
        self.since_s = self.heard_s = server.now()
        self._full_s = self.since_s  # when the token bucket for lines will be full
        self._partial = b""  # of a line
        self._held: list[bytes] = []  # lines beyond the rate
        self._busy_s = -_BUSY_S
        self._number = 0
        self._greeted = False
        self._ended = False

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self._who = f"{peer[0]}:{peer[1]}"
        self._transport.set_write_buffer_limits(high=self._server.limits.unread_bytes)
        self._number = self._server.admit(self)
        if not self._number:
            self.end("full", "there is no room for more connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._server.leave(self._number)

    def pause_writing(self) -> None:
        """Drop the connection: its write buffer is full, so the host does not read."""
        self._server.refused("unread", f"{self._who} dropped: it does not read what it is sent")
        self.abort()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        now_s = self.heard_s = self._server.now()
        if self._partial:
            data = self._partial + data
        lines = data.split(b"\n")
        self._partial = lines.pop()
        if len(data) > MAX_HOST_LINE and max(map(len, (self._partial, *lines))) > MAX_HOST_LINE:
            self.end("line", f"a line is longer than {MAX_HOST_LINE} bytes")
        elif self._held:
            self._held += lines
        elif lines:
            self._take(now_s, lines)

    # -- for the server ------------------------------------------------------------------------------------------------

    def write(self, line: bytes) -> None:
        """Sends a line, unless the connection has ended."""
        if not self._ended:
            self._transport.write(line)

    def end(self, code: ErrorCode, text: str) -> None:
        """Sends an error and closes. The log has it too, unless the service is stopping."""
        if self._ended:
            return
        if code != "stopping":
            self._server.refused(code, f"{self._who} refused: {code}: {text}")
        self.write(to_line(Error(code, text)))
        self._ended = True
        self._transport.close()
        asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT_S, self._transport.abort)

    def abort(self) -> None:
        """Closes at once; what has not been sent is lost."""
        self._ended = True
        self._transport.abort()

    # -- internal ------------------------------------------------------------------------------------------------------

    def _take(self, now_s: float, lines: list[bytes]) -> None:
        """Handles as many lines as the rate allows. While it holds the rest, it does not read from the host."""
        limits = self._server.limits
        full_s = self._full_s
        if full_s < now_s:
            full_s = now_s
        allowed = int(limits.burst_lines - (full_s - now_s) * limits.lines_per_s)
        if len(lines) > allowed:
            lines, self._held = lines[:allowed], lines[allowed:]
            self._hold(now_s)
        self._full_s = full_s + len(lines) / limits.lines_per_s
        try:
            if not self._greeted:
                lines = self._greet(now_s, lines)
            if lines and not self._ended:
                self._server.handle(now_s, self._number, lines)
        except MessageError as error:
            self.end("message", str(error))

    def _hold(self, now_s: float) -> None:
        limits = self._server.limits
        if now_s - self._busy_s >= _BUSY_S:
            self._busy_s = now_s
            self.write(to_line(Error("busy", f"only {limits.lines_per_s:g} lines a second are read")))
        self._transport.pause_reading()
        pause_s = min(len(self._held), limits.burst_lines / 2) / limits.lines_per_s
        asyncio.get_running_loop().call_later(pause_s, self._resume)

    def _resume(self) -> None:
        if self._ended:
            return
        lines, self._held = self._held, []
        self.heard_s = self._server.now()
        self._transport.resume_reading()
        self._take(self.heard_s, lines)

    def _greet(self, now_s: float, lines: list[bytes]) -> list[bytes]:
        """Handles the first line, which must be hello. Returns the lines after it. Raises MessageError."""
        if not lines:
            return lines
        version = version_of(lines[0])
        if version not in (None, VERSION):
            self.end("version", f"this service speaks version {VERSION}, not {version}")
            return []
        hello = from_host(lines[0])
        if not isinstance(hello, Hello):
            self.end("hello", "the first line must be hello")
        elif (refusal := self._server.refusal(hello)) is not None:
            self.end(*refusal)
        else:
            self._greeted = True
            self._server.greet(now_s, self._number, hello)
        return lines[1:]
