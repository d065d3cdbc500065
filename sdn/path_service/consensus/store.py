# SPDX-License-Identifier: Apache-2.0
"""What path services need of a consensus store: at most one leads at a time, and only that one writes.

All functions block, and none for long where the store does not answer. `look`, `lead`, `settle` and `leave` are called
by one thread, `write` and `changes` by another one.
"""

from dataclasses import dataclass
from typing import Protocol

from sdn.path_service.control.book import Change, Draft, State


class ConsensusError(Exception):
    """The store does not answer, or refuses a request: one sentence."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look has found."""

    leader: str | None
    """The service that leads, as it calls itself; None: nobody does, so that this service may seek to."""
    is_this: bool
    """This service leads. Its lease was renewed during the look."""
    is_failing: bool
    """The service that leads has not renewed its lease for half of that time."""
    services: int
    """That are there, with this one."""
    generation: int
    last: int
    """The number of the last change."""


class ConsensusStore(Protocol):
    """See the module."""

    lease_s: float
    """Seconds for which a renewal of the lease holds. The store may have chosen more than it was asked for."""

    @property
    def entries(self) -> State:
        """What the store has, as `lead` or `settle` has read and `write` has changed it."""
        ...

    @property
    def last(self) -> int:
        """The number of the last change of `entries`."""
        ...

    def look(self) -> Seen:
        """Renews the lease of this service, and sees who leads. Raises ConsensusError."""
        ...

    def lead(self, above: int) -> int | None:
        """Leads, unless another service does by now. Returns the generation, higher than `above` and all before.

        Raises ConsensusError; then the next `look` tells whether this service leads.
        """
        ...

    def settle(self, above: int) -> int | None:
        """Reads what is in the store: whatever this service has tried to write before is written by then, or never.

        Returns the generation, which becomes a higher one than `above` if it is not; None: this service does not lead.
        Raises ConsensusError.
        """
        ...

    def write(self, draft: Draft) -> Change:
        """Writes a change, if this service leads. Raises ConsensusError, with nothing written, and UnknownError."""
        ...

    def changes(self, after: int, most: int) -> list[Change]:
        """The first `most` changes after this number that are kept. Raises ConsensusError."""
        ...

    def leave(self) -> None:
        """Gives the lease back, so that another service may lead at once. Raises ConsensusError."""
        ...


class UnknownError(ConsensusError):
    """The store has not answered, so that a change may be written or not. `settle` finds out."""
