# SPDX-License-Identifier: Apache-2.0
"""Lanes that leave bad paths, as a fluid model can have them: policies `adaptive`, `recycled` and `plb`.

There are no queues here, so no round trips or marks that grow with them. What stands for both: a lane whose max-min
rate is clearly below the rate it could have is held back by a link that is full, where a queue would stand. When lanes
look is given in round trips of the unloaded fabric, and each looks at a moment of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmodel import ENTROPY_PORTS
from testbed.spec import PolicyName

_CLEARLY = 0.9
"""A lane below this part of the rate that it could have is slow."""

_PHASES = 8
"""Moments, within the time between two looks, at which lanes look: every eighth of them at each."""

_Rates = npt.NDArray[np.float64]
_Ports = npt.NDArray[np.uint16]
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rule:
    """`round_trips`: between two looks of a lane. `alone`: a lane compares itself with what its hosts' links would let
    it have, else with the best lane to the same peer. `memory`: ports that did well, kept by lane, to come back to."""

    round_trips: int
    alone: bool
    memory: int


RULES: dict[PolicyName, Rule] = {
    # hostlib/native/src/engine/path_policy.cpp: three bad flowlets in a row, of four round trips each (4 BDP / m at
    # 1 / m of the line rate), compared with the peer's best lane; four recycled ports.
    "adaptive": Rule(round_trips=12, alone=False, memory=4),
    # REPS (Bonato et al., arXiv 2407.21625): every acknowledgement without a mark has its entropy used again, every
    # other one has it replaced.
    "recycled": Rule(round_trips=1, alone=False, memory=0),
    # PLB (Qureshi et al., SIGCOMM 2022) with the default of Linux: 12 congested rounds of a flow that never rests.
    "plb": Rule(round_trips=12, alone=True, memory=0),
}


class Mover:
    """Looks at lanes in turn and moves those that do badly. Deterministic by `seed`; its ports are not the engine's."""

    def __init__(self, rule: Rule, round_trip_s: float, ports: _Ports, seed: int) -> None:
        """`ports` by pair and lane; they are changed in place."""
        self._rule = rule
        self._every_s = rule.round_trips * round_trip_s / _PHASES
        self._ports = ports
        self._good: npt.NDArray[np.uint16] = np.zeros((ports.size, max(rule.memory, 1)), dtype=np.uint16)
        self._next_good = np.zeros(ports.size, dtype=np.int64)
        self._rng = np.random.default_rng([seed, ports.size])
        self._turn = 0

    @property
    def next_s(self) -> float:
        """When lanes look next."""
        return (self._turn + 1) * self._every_s

    def look(self, rates: _Rates, could_have: Callable[[_Rates], _Rates], dead: npt.NDArray[np.bool_]) -> _Numbers:
        """The lanes whose turn it is and which have just taken other ports, by number.

        `rates` and `dead`, whether a link of its path is dead, by pair and lane; `could_have` gives by pair what a lane
        of its would have if only its hosts' links held it back.
        """
        self._turn += 1
        best = could_have(rates)[:, None] if self._rule.alone else rates.max(axis=1, keepdims=True)
        slow = ((rates > 0) & (rates < _CLEARLY * best)).ravel()
        gone = dead.ravel()
        # Lanes next to each other look at different moments, and so do the same lanes of different pairs.
        mine = (np.arange(rates.size) + np.arange(rates.size) // rates.shape[1]) % _PHASES == self._turn % _PHASES
        if self._rule.memory:
            self._remember(np.flatnonzero(mine & ~slow & ~gone & (rates.ravel() > 0)))
        moving = np.flatnonzero(mine & (slow | gone))
        flat = self._ports.reshape(-1)
        for lane in moving.tolist():
            flat[lane] = self._other(lane, rates, gone)
        return moving

    def _remember(self, lanes: _Numbers) -> None:
        flat = self._ports.ravel()
        new = lanes[(self._good[lanes] != flat[lanes, None]).all(axis=1)]
        self._good[new, self._next_good[new] % self._rule.memory] = flat[new]
        self._next_good[new] += 1

    def _other(self, lane: int, rates: _Rates, gone: npt.NDArray[np.bool_]) -> int:
        port = int(self._ports.reshape(-1)[lane])
        if self._rule.memory:
            own = self._good[lane]
            if gone[lane]:
                own[own == port] = 0  # a port that timed out is retired
            for place in np.flatnonzero((own != 0) & (own != port)).tolist():
                good = int(own[place])
                own[place] = 0
                return good
        elif gone[lane] and not self._rule.alone:
            # After a timeout REPS uses only entropies that are known to be alive ("freezing").
            pair = lane // rates.shape[1]
            alive = np.flatnonzero(~gone.reshape(rates.shape)[pair])
            if alive.size:
                return int(self._ports[pair, self._rng.choice(alive)])
        return int(self._rng.integers(ENTROPY_PORTS.start, ENTROPY_PORTS.stop))
