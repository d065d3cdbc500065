# SPDX-License-Identifier: Apache-2.0
"""The fluid simulation: the native core with NumPy arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim._native import FluidSimulation
from sim.links import Floats
from sim.messages import MessageSimulation, columns
from sim.paths import Paths

PRECISION = 1e-12
"""Relative change of a link's fair share below which the change is not propagated to other links."""


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages as columns; single values stand for all.

    A message with `channel` NO_CHANNEL sends nothing: it is delivered `delay_s` after it is ready.
    """

    channel: npt.ArrayLike
    bits: npt.ArrayLike = 0.0
    delay_s: npt.ArrayLike = 0.0
    """Time from the last bit sent until delivery, in seconds."""
    release_s: npt.ArrayLike = 0.0
    """The earliest time, in seconds, at which each message may start."""
    milestone: npt.ArrayLike = False
    """Whether `Simulation.advance` returns when the message is delivered."""


class Simulation(MessageSimulation[FluidSimulation]):
    """Max-min fair rates of the channels that have data to send, updated whenever that set changes.

    A channel sends its ready messages one after the other, over all of its flows at once. A message is ready when its
    release time has come and all messages that it waits for are delivered. Rates are exact (progressive filling). With
    `stale_s` above 0, capacity freed by finished channels is redistributed up to `stale_s` later. This is faster and
    never overestimates rates. The simulation is deterministic.
    """

    def __init__(self, rate_bps: npt.ArrayLike, *, stale_s: float = 0.0, precision: float = PRECISION) -> None:
        """`rate_bps` has the finite rate of each link. All methods raise ValueError for arguments that do not fit."""
        super().__init__(FluidSimulation(np.asarray(rate_bps, dtype=np.float64), precision, stale_s))

    def add_channels(self, paths: Paths) -> None:
        """Channels and their flows are numbered from 0 in the order in which they are added."""
        self._core.add_channels(paths.flows, paths.uses, paths.links, paths.shares, paths.weight)

    def add_messages(self, messages: Messages) -> int:
        """The number of the first message; the others follow it."""
        channel, bits, delay_s, release_s, milestone = columns(
            messages.channel, messages.bits, messages.delay_s, messages.release_s, messages.milestone
        )
        return self._core.add_messages(
            channel.astype(np.int32),
            bits.astype(np.float64),
            delay_s.astype(np.float64),
            release_s.astype(np.float64),
            milestone.astype(np.bool_),
        )

    def set_rate(self, link: int, rate_bps: float) -> None:
        """Change the rate of a link, in bit/s; 0 is a dead link."""
        self._core.set_capacity(link, rate_bps)

    def set_paths(self, flows: npt.ArrayLike, paths: Paths) -> None:
        """Move each of these flows to its path in `paths`, which has them in the same order. Weights do not change."""
        self._core.set_paths(np.asarray(flows, dtype=np.int64), paths.uses, paths.links, paths.shares)

    def advance(self, until_s: float = np.inf) -> list[int]:
        """Advance time to `until_s` or to the next milestone. Returns the milestones just delivered.

        An empty list means that `until_s` is reached or, where it is infinite, that no event is left. Messages that are
        then `undelivered` wait for each other or for a link of rate 0.
        """
        return self._core.advance(until_s)

    @property
    def stuck(self) -> bool:
        """Whether no event is left until something is added or changed."""
        return self._core.stuck

    @property
    def fillings(self) -> int:
        """The number of times that all rates were recomputed."""
        return self._core.fillings

    @property
    def repairs(self) -> int:
        """The number of times that only the rates around a change were computed."""
        return self._core.repairs

    def begun_s(self) -> Floats:
        """Start time of each message in seconds: when its first bit was sent; NaN while it is not sent."""
        return self._core.begun_s()

    def rates_bps(self) -> Floats:
        """Rate of each flow in bit/s after the last `advance`."""
        return self._core.rates_bps()

    def flow_bits(self) -> Floats:
        """Bits that each flow has sent on its current path; bits sent on earlier paths are not included."""
        return self._core.flow_bits()

    def link_bits(self) -> Floats:
        """Bits that have crossed each link."""
        return self._core.link_bits()
