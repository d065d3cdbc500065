# SPDX-License-Identifier: Apache-2.0
"""Messages over channels, from event to event: the native core in the terms of arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim import _fluid
from sim.links import Floats
from sim.paths import Paths

PRECISION = 1e-12
"""Relative change of a link's fair share below which others are not told of it."""

_Longs = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages as columns; single values stand for all. `channel` -1: nothing is sent, `delay_s` passes."""

    channel: npt.ArrayLike
    bits: npt.ArrayLike = 0.0
    delay_s: npt.ArrayLike = 0.0
    """From the last bit sent until it is delivered."""
    release_s: npt.ArrayLike = 0.0
    """Not before."""
    milestone: npt.ArrayLike = False
    """Whether `Simulation.advance` returns when it is delivered."""


class Simulation:
    """Max-min fair rates of channels that have something to send, brought up to date whenever that changes.

    A channel sends the messages that are ready one after the other, over all of its flows at once. A message is ready
    when its release time has come and all messages that it waits for have been delivered. Rates are exact (progressive
    filling); with `stale_s` above 0, what finished channels leave is given to others up to so much later, all at
    once: faster, and never too good. Nothing is random.
    """

    def __init__(self, rate_bps: npt.ArrayLike, *, stale_s: float = 0.0, precision: float = PRECISION) -> None:
        """`rate_bps` by link, finite. Raises ValueError, as all methods do, for arrays that do not fit."""
        self._core = _fluid.Simulation(np.asarray(rate_bps, dtype=np.float64), precision, stale_s)

    def add_channels(self, paths: Paths) -> None:
        """Channels are numbered in the order in which they are added, from 0; so are their flows."""
        self._core.add_channels(paths.flows, paths.uses, paths.links, paths.shares, paths.weight)

    def add_messages(self, messages: Messages) -> int:
        """The number of the first; the others follow it."""
        columns = np.broadcast_arrays(
            messages.channel, messages.bits, messages.delay_s, messages.release_s, messages.milestone
        )
        channel, bits, delay_s, release_s, milestone = (np.atleast_1d(column) for column in columns)
        return self._core.add_messages(
            channel.astype(np.int32),
            bits.astype(np.float64),
            delay_s.astype(np.float64),
            release_s.astype(np.float64),
            milestone.astype(np.bool_),
        )

    def add_waits(self, earlier: npt.ArrayLike, later: npt.ArrayLike) -> None:
        """`later[i]` waits for `earlier[i]`. Only for messages added since the last `advance`."""
        self._core.add_waits(np.asarray(earlier, dtype=np.int64), np.asarray(later, dtype=np.int64))

    def set_rate(self, link: int, rate_bps: float) -> None:
        """From now on the link has this rate; 0 is a dead one."""
        self._core.set_capacity(link, rate_bps)

    def set_paths(self, flows: npt.ArrayLike, paths: Paths) -> None:
        """From now on each of these flows uses what `paths` has for it, in their order; weights stay as they are."""
        self._core.set_paths(np.asarray(flows, dtype=np.int64), paths.uses, paths.links, paths.shares)

    def advance(self, until_s: float = np.inf) -> list[int]:
        """Let time pass until then, or until a milestone; the milestones just delivered.

        An empty answer means that `until_s` has come or, where that is infinite, that nothing happens any more: what is
        then `undelivered` waits in a circle, or for a link of rate 0.
        """
        return self._core.advance(until_s)

    @property
    def now_s(self) -> float:
        """The time, from 0."""
        return self._core.now_s

    @property
    def undelivered(self) -> int:
        """How many messages are not delivered."""
        return self._core.undelivered

    @property
    def stuck(self) -> bool:
        """Whether nothing happens any more until something is added or set."""
        return self._core.stuck

    @property
    def fillings(self) -> int:
        """How often rates were computed from nothing."""
        return self._core.fillings

    @property
    def repairs(self) -> int:
        """How often it was enough to compute those around a change."""
        return self._core.repairs

    def begun_s(self) -> Floats:
        """By message: when its first bit was sent; NaN if it was not."""
        return self._core.begun_s()

    def delivered_s(self) -> Floats:
        """By message; NaN if it was not."""
        return self._core.delivered_s()

    def rates_bps(self) -> Floats:
        """By flow, as of the last `advance`."""
        return self._core.rates_bps()

    def flow_bits(self) -> Floats:
        """By flow: what it has sent on its path; what it sent on paths that it has left is not among it."""
        return self._core.flow_bits()

    def link_bits(self) -> Floats:
        """By link: what has crossed it."""
        return self._core.link_bits()
