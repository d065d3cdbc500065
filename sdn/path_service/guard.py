# SPDX-License-Identifier: Apache-2.0
"""Whether a path service may answer hosts that it shares with others: one interface for all ways to decide that."""

import asyncio
from typing import Protocol

from sdn.path_service.messages import Hello, Voted


class Guard(Protocol):
    """Where two services share hosts: whether this one may answer them. See `sdn.path_service.availability`."""

    def may_assign(self) -> bool:
        """Whether it leads now. Where it does not, this is the time to find out what follows."""
        ...

    def refusal(self, hello: Hello) -> str | None:
        """Why a host is sent to the other service, in one sentence; None where it is not."""
        ...

    def greeted(self, number: int, hello: Hello) -> None:
        """The host of this connection is served."""
        ...

    def left(self, number: int) -> None:
        """The connection of a host has ended."""
        ...

    def voted(self, number: int, vote: Voted) -> None:
        """A host has answered a `Vote`."""
        ...

    def is_meant(self, line: bytes) -> bool:
        """Whether the first line of a connection comes from the other service."""
        ...

    def meet(self, transport: asyncio.Transport, first: bytes, rest: bytes) -> None:
        """The other service has connected, and has said its first line and perhaps more."""
        ...
