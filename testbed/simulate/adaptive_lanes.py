# SPDX-License-Identifier: Apache-2.0
"""Lanes that leave congested paths in the fluid model, under policies with a `Movement`.

The fluid model has no queues, and so neither queueing delays nor ECN marks. Instead, a lane counts as congested when
its max-min rate is well below the rate that it could have: a full link limits it, where a queue would build up. Lanes
compare rates periodically, in multiples of the unloaded round trip, and different lanes at different times.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from netmodel import ENTROPY_PORTS
from testbed.policies import Movement

_SLOW = 0.9
"""A lane below this fraction of the rate that it could have is slow."""

_PHASES = 8
"""Phases of a period: one eighth of all lanes compares rates in each."""

_Rates = npt.NDArray[np.float64]
_Ports = npt.NDArray[np.uint16]
_Numbers = npt.NDArray[np.int64]


class LaneMover:
    """Moves slow lanes to other ports. Deterministic by `seed`. The drawn ports differ from those of the engine."""

    def __init__(self, rule: Movement, round_trip_s: float, ports: _Ports, seed: int) -> None:
        """`ports`, by pair and lane, are changed in place."""
        self._rule = rule
        self._every_s = rule.round_trips * round_trip_s / _PHASES
        self._ports = ports
        self._good: npt.NDArray[np.uint16] = np.zeros((ports.size, max(rule.memory, 1)), dtype=np.uint16)
        self._next_good = np.zeros(ports.size, dtype=np.int64)
        self._rng = np.random.default_rng([seed, ports.size])
        self._phase = 0

    @property
    def next_s(self) -> float:
        """Time of the next comparison, in seconds."""
        return (self._phase + 1) * self._every_s

    def look(self, rates: _Rates, could_have: Callable[[_Rates], _Rates], dead: npt.NDArray[np.bool_]) -> _Numbers:
        """Move the slow lanes among those that are due; returns their numbers.

        `rates`, and `dead`, whether a link of the lane's path is dead, are by pair and lane. `could_have` gives, by
        pair, the rate of a lane that only its hosts' links limit.
        """
        self._phase += 1
        best = could_have(rates)[:, None] if self._rule.alone else rates.max(axis=1, keepdims=True)
        slow = ((rates > 0) & (rates < _SLOW * best)).ravel()
        is_dead = dead.ravel()
        # Neighbouring lanes, and the same lane of different pairs, are due in different phases.
        due = (np.arange(rates.size) + np.arange(rates.size) // rates.shape[1]) % _PHASES == self._phase % _PHASES
        if self._rule.memory:
            self._remember_good(np.flatnonzero(due & ~slow & ~is_dead & (rates.ravel() > 0)))
        moving = np.flatnonzero(due & (slow | is_dead))
        flat = self._ports.reshape(-1)
        for lane in moving.tolist():
            flat[lane] = self._other(lane, rates, is_dead)
        return moving

    def _remember_good(self, lanes: _Numbers) -> None:
        flat = self._ports.ravel()
        new = lanes[(self._good[lanes] != flat[lanes, None]).all(axis=1)]
        self._good[new, self._next_good[new] % self._rule.memory] = flat[new]
        self._next_good[new] += 1

    def _other(self, lane: int, rates: _Rates, is_dead: npt.NDArray[np.bool_]) -> int:
        port = int(self._ports.reshape(-1)[lane])
        if self._rule.memory:
            own = self._good[lane]
            if is_dead[lane]:
                own[own == port] = 0  # a port that timed out is retired
            for place in np.flatnonzero((own != 0) & (own != port)).tolist():
                good = int(own[place])
                own[place] = 0
                return good
        elif is_dead[lane] and not self._rule.alone:
            # After a timeout REPS uses only entropies that are known to be alive ("freezing").
            pair = lane // rates.shape[1]
            alive = np.flatnonzero(~is_dead.reshape(rates.shape)[pair])
            if alive.size:
                return int(self._ports[pair, self._rng.choice(alive)])
        return int(self._rng.integers(ENTROPY_PORTS.start, ENTROPY_PORTS.stop))
