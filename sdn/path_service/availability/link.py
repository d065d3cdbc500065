# SPDX-License-Identifier: Apache-2.0
"""A TCP connection between two path services: lines of JSON both ways."""

import asyncio
from collections.abc import Callable
from typing import cast

from sdn.path_service.availability.messages import MAX_LINE, Ours, line_of, read
from sdn.path_service.channels import Certified, certified
from sdn.path_service.messages import MessageError


class Link(asyncio.Protocol):
    """The protocol object of one connection. `said` gets each message.

    `ended` is called once: with the reason where the connection was of no use, in one sentence, of which the other
    service is "it".
    """

    def __init__(self, said: Callable[[Ours], None], ended: Callable[[str | None], None]) -> None:
        self._said = said
        self._ended = ended
        self._partial = bytearray()
        self._transport: asyncio.Transport | None = None

    def take(self, transport: asyncio.Transport, rest: bytes) -> None:
        """Has a connection that another protocol had, which has received this and not handled it."""
        transport.set_protocol(self)
        self._transport = transport
        if rest:
            self.data_received(rest)

    def write(self, message: Ours) -> None:
        """Sends a message, unless the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(line_of(message))

    def close(self) -> None:
        """Ends the connection. `ended` is not called."""
        self._ended = lambda why: None
        self._said = lambda message: None
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(_CLOSE_S, self._transport.abort)

    def fail(self, why: str) -> None:
        """Ends the connection for a reason."""
        ended = self._ended
        self.close()
        ended(why)

    @property
    def certified(self) -> Certified:
        """What the certificate of the other side is for."""
        return None if self._transport is None else certified(self._transport)

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(None)

    def data_received(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._partial) + lines[0]
            self._partial = bytearray(rest)
        else:
            self._partial += rest
        try:
            for line in lines:
                self._said(read(line))
            if len(self._partial) > MAX_LINE:
                raise MessageError(f"a line is longer than {MAX_LINE} bytes")
        except MessageError as error:
            self.fail(str(error))


_CLOSE_S = 2.0
"""How long what was written last is kept for a service that does not read it."""
