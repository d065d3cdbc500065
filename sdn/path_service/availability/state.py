# SPDX-License-Identifier: Apache-2.0
"""What operators and metrics are told of path services that share hosts, and what operators may ask of them."""

from typing import Literal, Protocol

import msgspec


class State(msgspec.Struct, frozen=True):
    """What one of the services knows."""

    role: str
    generation: int
    peer: str
    """The other service, or what it knows of it."""
    followed: bool
    """Whether this service leads and another one could take over, with all of its data."""
    lag_s: float | None
    """While followed: since the beat that the other service acknowledged last. While following: since the last one."""
    lag_changes: int
    """While followed: changes that the other one does not have yet."""
    takeovers: int
    """How often this process has taken over from the other service."""
    held: int
    """Hosts that wait until this service leads."""
    witnesses: int = 0
    """Hosts that decide when the two do not hear each other, as far as this service knows."""
    decides: Literal["hosts", "etcd"] = "hosts"
    """Who decides which service leads."""


class Availability(Protocol):
    """One of the services, for the operator's socket."""

    def state(self) -> State:
        """What holds now."""
        ...

    def promote(self, who: str) -> None:
        """Leads, because an operator says that no other service does. Raises RefusedError."""
        ...
