# SPDX-License-Identifier: Apache-2.0
"""One host's connection: bytes to lines and back, hello, and what a single connection may take."""

import asyncio
from typing import TYPE_CHECKING, cast

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

if TYPE_CHECKING:
    from sdn.path_service.server import Server

_LINGER_S = 2.0  # for which an error that its host does not read is kept
_BUSY_S = 1.0  # between two errors "busy"


class Connection(asyncio.Protocol):
    """Made for each TCP connection, by `Server`."""

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

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.since_s = self.heard_s = self._full_s = server.now()  # the last: when as many lines as ever may be taken
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
        """The host does not read."""
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

    # -- by the service ------------------------------------------------------------------------------------------------

    def write(self, line: bytes) -> None:
        if not self._ended:
            self._transport.write(line)

    def end(self, code: ErrorCode, text: str) -> None:
        """Tells the host, and the log unless the service stops, why; and closes."""
        if self._ended:
            return
        if code != "stopping":
            self._server.refused(code, f"{self._who} refused: {code}: {text}")
        self.write(to_line(Error(code, text)))
        self._ended = True
        self._transport.close()
        asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        self._ended = True
        self._transport.abort()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _take(self, now_s: float, lines: list[bytes]) -> None:
        """As many lines as the rate allows; the others are held back, and the host is not read meanwhile."""
        limits = self._server.limits
        full_s = self._full_s
        if full_s < now_s:
            full_s = now_s
        now = int(limits.burst_lines - (full_s - now_s) * limits.lines_per_s)
        if len(lines) > now:
            lines, self._held = lines[:now], lines[now:]
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
        """Hello, from a stranger; the lines after it. Raises MessageError."""
        if not lines:
            return lines
        server = self._server
        version = version_of(lines[0])
        if version not in (None, VERSION):
            self.end("version", f"this service speaks version {VERSION}, not {version}")
            return []
        hello = from_host(lines[0])
        if not isinstance(hello, Hello):
            self.end("hello", "the first line must be hello")
        elif not server.right(hello.token):
            self.end("token", "the token is not this service's")
        elif not server.service.knows(hello.device):
            self.end("device", f"{hello.device} is no device of topology {server.service.topology.name}")
        else:
            self._greeted = True
            server.greet(now_s, self._number, hello)
        return lines[1:]
