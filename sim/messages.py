# SPDX-License-Identifier: Apache-2.0
"""Messages with dependencies: what the fluid model and the packet simulation have in common."""

from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sim.links import Floats

NO_CHANNEL = -1
"""The channel of a message that sends nothing."""

Longs = npt.NDArray[np.int64]


class Core(Protocol):
    """The part of a native simulation that concerns messages."""

    def add_waits(self, earlier: Longs, later: Longs) -> None: ...
    def delivered_s(self) -> Floats: ...
    @property
    def now_s(self) -> float: ...
    @property
    def undelivered(self) -> int: ...


_Core = TypeVar("_Core", bound=Core)


class MessageSimulation(Generic[_Core]):
    """A simulation of messages. Messages are numbered from 0 in the order in which they are added."""

    def __init__(self, core: _Core) -> None:
        self._core = core

    def add_waits(self, earlier: npt.ArrayLike, later: npt.ArrayLike) -> None:
        """Let message `later[i]` wait until message `earlier[i]` is delivered.

        Messages that one delivery makes ready become so in the order in which their waits for it were added.
        `later` must have been added since the last `advance`. Raises ValueError, and then adds no wait.
        """
        self._core.add_waits(np.asarray(earlier, dtype=np.int64), np.asarray(later, dtype=np.int64))

    @property
    def now_s(self) -> float:
        """Simulated time in seconds, from 0."""
        return self._core.now_s

    @property
    def undelivered(self) -> int:
        """Number of messages that are not delivered."""
        return self._core.undelivered

    def delivered_s(self) -> Floats:
        """Delivery time of each message in seconds; NaN while it is not delivered."""
        return self._core.delivered_s()


def columns(*values: npt.ArrayLike) -> tuple[npt.NDArray[Any], ...]:
    """Broadcast the attributes of messages to columns of equal length; single values stand for all messages."""
    return tuple(np.atleast_1d(column) for column in np.broadcast_arrays(*values))
