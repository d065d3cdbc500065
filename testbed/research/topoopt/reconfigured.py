# SPDX-License-Identifier: Apache-2.0
"""Iterations on circuits that change meanwhile: OCS-reconfig and SiP-ML (TopoOpt, sections 5.1 and 5.7, app. E.4, F).

The fabric measures what is left to send in fixed intervals, finds circuits for it by Algorithm 5, and stops all
transfers for the time that the switches take. Computing goes on. Without forwarding a transfer waits until its servers
have a circuit.
"""

from collections import Counter
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from sdn.topoopt import BalancedRoutes, Circuit, reconfigure, ring_circuits
from testbed.research.topoopt.estimates import Estimator, Job, Strategy
from testbed.research.topoopt.fabrics import switch
from testbed.simulate.task_graphs import LoadedGraph
from testbed.training.per_operator import iteration
from testbed.training.tasks import TaskGraph

_MOST = 100_000
"""Measurements after which a simulation is given up."""


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """How circuits change."""

    latency_s: float
    """The seconds for which all circuits are dark when they change."""
    period_s: float
    """From one reconfiguration to the next measurement."""
    forwarding: bool
    """Whether hosts relay; all servers are then connected."""
    diminish: float = 0.5
    """What a circuit leaves of its pair's demand (equation 2); 1 for SiP-ML."""
    always: bool = True
    """Whether circuits also change where nothing waits to be sent; Algorithm 5 says nothing else. They are then those
    of pairs in numerical order."""


OCS = Reconfiguration(10e-3, 50e-3, forwarding=True)
"""OCS-reconfig of section 5.1."""
SIP_ML = Reconfiguration(25e-6, 1e-3, forwarding=False, diminish=1.0)
"""SiP-ML of section 5.1. The paper does not print its interval."""


def iteration_s(
    job: Job, strategy: Strategy, degree: int, rate_bps: float, how: Reconfiguration, measured: int = 4
) -> float:
    """The mean time of an iteration, without the first one, which begins with `degree` rings.

    There are three iterations, or as many as last for `measured` intervals on an ideal switch. Raises RuntimeError
    where transfers never end.
    """
    graph = iteration(job.network, strategy, job.servers, job.batch, job.profile)
    shortest_s = Estimator(job, switch(job.servers, degree * rate_bps))(strategy).schedule_s
    iterations = max(3, 1 + ceil(measured * (how.period_s + how.latency_s) / shortest_s))
    many, joins = repeated(graph, iterations)
    run = _Run(many, job.servers, degree, rate_bps, how)
    ends_s = run.ends_s()[joins]
    return float(ends_s[-1] - ends_s[0]) / (iterations - 1)


def repeated(graph: TaskGraph, times: int) -> tuple[TaskGraph, list[int]]:
    """`times` copies of a graph, each after all of the one before, and the tasks that end them."""
    many = TaskGraph(graph.devices)
    joins: list[int] = []
    for _ in range(times):
        first = len(many.tasks)
        many.tasks += graph.tasks
        many.after += [[first + wait for wait in waits] or joins[-1:] for waits in graph.after]
        joins.append(many.join(range(first, len(many.tasks))))
    return many, joins


class _Run:
    """One simulation. Link servers * i + j is all circuits from i to j; dark ones have a rate of 0."""

    def __init__(self, graph: TaskGraph, servers: int, degree: int, rate_bps: float, how: Reconfiguration) -> None:
        self._servers, self._degree, self._rate_bps, self._how = servers, degree, rate_bps, how
        self._loaded = LoadedGraph(graph, np.zeros(servers**2), lambda src, dst, _: (servers * src + dst,))
        self._pairs = servers * self._loaded.transfers[:, 0] + self._loaded.transfers[:, 1]
        self._circuits: Counter[Circuit] = Counter()
        self._set(Counter(degree * ring_circuits(range(servers), 1)))

    def ends_s(self) -> npt.NDArray[np.float64]:
        """The end of each task."""
        simulation, how = self._loaded.simulation, self._how
        for _ in range(_MOST):
            simulation.advance(simulation.now_s + how.period_s)
            if not simulation.undelivered:
                return self._loaded.ends_s()
            demand = self._demand()
            if not demand.any() and not how.always:
                continue
            found = reconfigure(demand, self._degree, diminish=how.diminish, connected=how.forwarding)
            circuits = Counter(found)
            if circuits != self._circuits:
                self._light(Counter())
                simulation.advance(simulation.now_s + how.latency_s)
                self._set(circuits)
        raise RuntimeError(f"transfers have not ended after {_MOST} measurements")

    def _demand(self) -> npt.NDArray[np.float64]:
        left = np.bincount(self._pairs, self._loaded.unsent_bits(), self._servers**2)
        return np.asarray(left, dtype=np.float64).reshape(self._servers, self._servers)

    def _set(self, circuits: Counter[Circuit]) -> None:
        if self._how.forwarding:
            self._loaded.move(self._routes(circuits)[self._pairs])
        self._circuits = circuits
        self._light(circuits)

    def _light(self, circuits: Counter[Circuit]) -> None:
        """Set the rates of these circuits, and 0 for those that are in place and not among them."""
        for a, b in {**self._circuits, **circuits}:
            self._loaded.simulation.set_rate(self._servers * a + b, self._rate_bps * circuits[a, b])

    def _routes(self, circuits: Counter[Circuit]) -> npt.NDArray[np.int32]:
        """By pair: the links of a shortest route, chosen so that circuits have even numbers of pairs."""
        balanced = BalancedRoutes(self._servers, circuits.elements())
        rows = np.full((self._servers**2, self._servers), -1, dtype=np.int32)
        pairs = np.unique(self._pairs)
        found = balanced.add_all(pairs // self._servers, pairs % self._servers, np.ones(pairs.size), 1)
        for pair, (way,) in zip(pairs.tolist(), found, strict=True):
            links = self._servers * np.array(way[:-1]) + np.array(way[1:])
            rows[pair, : links.size] = links
        return rows[:, : max(1, int((rows >= 0).sum(axis=1).max()))]
