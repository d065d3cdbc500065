# SPDX-License-Identifier: Apache-2.0
"""How fast jobs run that share links, flow by flow."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdn.planners.rates import max_min_rates
from sim.cluster.contention import PerStep, RunningJob
from sim.cluster.networks import FlowPaths
from sim.cluster.shape import Shape

_SAME = 1e-9
"""Flows end together whose ends are as close as this, relative to what the step has to send or to the time left."""


@dataclass(slots=True)
class _Sending:
    """The flows of a job's step that have not ended."""

    links: NDArray[np.int32]
    """By flow: its links, as in `FlowPaths`."""
    nic: NDArray[np.intp]
    """By flow: the number of its NIC, of which ParaLet's lanes share one."""
    whole_s: float
    """What each flow had to send, in seconds of a link."""
    left_s: NDArray[np.float64]
    """By flow: what it has to send yet."""
    rate: NDArray[np.float64]
    """By flow: its rate, as a part of a link."""
    stage_s: float
    """What is left until the next of these flows ends, in seconds without contention."""
    ends_next: NDArray[np.bool_]
    """By flow: whether the stage ends with it. It then has ended, whatever rounding has left of it."""
    speed: float = 1.0
    """By how much the stage shrinks in a second."""


class Fair(PerStep):
    """Flows have max-min fair rates, and a step ends with its last flow.

    A job computes, then runs each step once, `rounds` times. All flows of a step send equally much, and all NICs and
    links are equally fast. Each of ParaLet's m lanes carries 1 / m of its flow, or of the part of it that a plane
    carries. A flow that has ended leaves its links to others, which `PerStep` does not model: there all flows of a step
    are as slow as the slowest.

    The phases of a step are stages, each of which ends when a flow of the job ends.
    """

    def __init__(self, shape: Shape, rounds: int = 1) -> None:
        super().__init__(shape, rounds)
        self._sending: dict[int, _Sending] = {}

    def advance(self, passed_s: float) -> None:
        """Let flows send for `passed_s` seconds at the rates that were computed last."""
        for traffic in self._sending.values():
            traffic.left_s -= traffic.rate * passed_s
            traffic.stage_s -= traffic.speed * passed_s

    def _next(self, slot: int) -> float | None:
        if traffic := self._sending.get(slot):
            going = ~traffic.ends_next & (traffic.left_s > _SAME * traffic.whole_s)
            if going.any():
                traffic.links, traffic.nic, traffic.left_s = (
                    traffic.links[going],
                    traffic.nic[going],
                    traffic.left_s[going],
                )
                traffic.rate, traffic.ends_next = traffic.rate[going], traffic.ends_next[going]
                traffic.stage_s = self._lanes(slot) * float(traffic.left_s.min())
                return traffic.stage_s
            del self._sending[slot]
        return super()._next(slot)

    def _leave(self, slot: int, left_s: float) -> float:
        if traffic := self._sending.pop(slot, None):
            left_s = self._lanes(slot) * max(0.0, float(traffic.left_s.max()))
        return super()._leave(slot, left_s)

    def _work(self, slot: int) -> float:
        work, step = super()._work(slot), self._step[slot]
        if step < 0 or not work:
            return work
        paths = self._paths(slot)
        own = paths.links[paths.step == step]
        lanes, (flows, ways, hops) = self._lanes(slot), own.shape
        self._sending[slot] = _Sending(
            own.reshape(-1, hops),
            np.repeat(np.arange(flows * self._shape.planes), lanes),
            work / lanes,
            np.full(flows * ways, work / lanes),
            np.zeros(flows * ways),
            work,
            np.zeros(flows * ways, dtype=np.bool_),
        )
        return work

    def _paths(self, slot: int) -> FlowPaths:
        paths = self._running[slot].traffic.paths
        assert paths is not None  # this fidelity asks for them
        return paths

    def _lanes(self, slot: int) -> int:
        """Of a flow, in each plane."""
        return int(self._paths(slot).links.shape[1]) // self._shape.planes

    def _speeds(self, running: list[RunningJob]) -> NDArray[np.float64]:
        sending = list(self._sending.values())
        if sending:
            nics = np.cumsum([0, *(int(traffic.nic.max()) + 1 for traffic in sending)])
            own = np.concatenate([traffic.nic + first for traffic, first in zip(sending, nics[:-1], strict=True)])
            links = np.concatenate([traffic.links for traffic in sending])
            crossed = np.column_stack([links, own + self._shape.links]).astype(np.int32)
            rates = max_min_rates(np.ones(self._shape.links + int(nics[-1])), crossed, np.ones(len(crossed)))
            ends = np.cumsum([len(traffic.nic) for traffic in sending])
            for traffic, rate in zip(sending, np.split(rates, ends[:-1]), strict=True):
                traffic.rate = rate
                ends_s = traffic.left_s / rate
                first_s = float(ends_s.min())
                traffic.ends_next = ends_s <= first_s + _SAME * abs(first_s)
                traffic.speed = traffic.stage_s / first_s if first_s > 0 and traffic.stage_s > 0 else 1.0
        return np.array([self._sending[slot].speed if slot in self._sending else 1.0 for slot in self._running])
