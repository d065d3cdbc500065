# SPDX-License-Identifier: Apache-2.0
"""What is between a connection's lines and the bytes on its socket: nothing, or TLS (`sdn.path_service.tls`)."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias, cast

from sdn.path_service.messages import ErrorCode
from sdn.path_service.turns import Worker

TLS_HANDSHAKE = 0x16
"""The first byte of a side that speaks TLS (RFC 8446, section 5.1). A line of JSON begins with none below 0x20."""
CERTIFIED = "certified"
"""The extra information of a transport: what the certificate of the other side is for, a `Certified`."""

Certified: TypeAlias = frozenset[str] | None
"""IP addresses in their usual form, which a certificate is for; None without a certificate."""
Refuse: TypeAlias = Callable[[ErrorCode, str], None]
"""Ends a connection for a reason, which is one sentence."""
Wait: TypeAlias = Callable[[str, Worker, bool], None]
"""Gives a worker turns, which the connections from one address share; others where it has had one, as the last argument
says: what has begun need not wait for all that begins."""


class Channels(Protocol):
    """Makes the protocol objects of sockets. Each hands what the other side has said to `inner`.

    `inner` gets a transport as soon as there is a connection, which may be before its lines can travel.
    """

    are_plain: bool
    """Whether the lines are the bytes on the socket."""

    def accept(self, inner: asyncio.Protocol, refuse: Refuse, wait: Wait) -> asyncio.Protocol:
        """For a connection that was accepted. `refuse` is called at most once.

        What is much work before the other side is known is done in turns that `wait` gives.
        """
        ...

    def dial(self, inner: asyncio.Protocol, refuse: Refuse, address: str) -> asyncio.Protocol:
        """For a connection to an address, for which the certificate of the other side must be."""
        ...


class PlainChannels:
    """Lines in the clear."""

    are_plain = True

    def accept(self, inner: asyncio.Protocol, refuse: Refuse, wait: Wait) -> asyncio.Protocol:
        return _Plain(inner, refuse)

    def dial(self, inner: asyncio.Protocol, refuse: Refuse, address: str) -> asyncio.Protocol:
        return inner


def certified(transport: asyncio.BaseTransport) -> Certified:
    """What the certificate of the other side is for."""
    return cast(Certified, transport.get_extra_info(CERTIFIED))


class _Plain(asyncio.Protocol):
    """Looks at the first byte: a host that speaks TLS is told that this service does not. Then `inner` takes over."""

    def __init__(self, inner: asyncio.Protocol, refuse: Refuse) -> None:
        self._inner = inner
        self._refuse = refuse

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._transport.set_protocol(self._inner)
        if data[0] == TLS_HANDSHAKE:
            self._refuse("tls", "it speaks TLS, and this path service was started without --tls-certificate")
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
