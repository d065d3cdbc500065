# SPDX-License-Identifier: Apache-2.0
"""Jobs on one cluster: over a fat-tree that they share, and one after another on shards (TopoOpt, section 5.6, app. C).

On TopoOpt, a job has circuits of its own among its servers, its shard. So it runs as on a cluster of that size, but it
waits until its circuits are set.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from testbed.research.topoopt.reconfigured import repeated
from testbed.simulate.task_graphs import LoadedGraph
from testbed.training.tasks import Task, TaskGraph

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FatTree:
    """A fat-tree with three tiers of switches of `ports` ports: ports^3 / 4 servers, all links of `rate_bps`.

    Each pod has ports / 2 edge switches of ports / 2 servers. Edge switches have `uplinks` of their ports / 2 uplinks.
    """

    ports: int
    rate_bps: float
    uplinks: int

    @property
    def servers(self) -> int:
        """All servers, numbered by edge switch."""
        return self.ports**3 // 4

    @property
    def links_bps(self) -> Floats:
        """Up and down: links of servers, of edge switches, of aggregation switches."""
        return np.full(6 * self.servers, self.rate_bps)

    def route(self, src: int, dst: int, choice: int) -> list[int]:
        """The links from one server to another; `choice` decides like a hash at the first two switches."""
        half, all_links = self.ports // 2, self.servers
        up, down = src // half, dst // half
        if up == down:
            return [src, all_links + dst]
        aggregation, core = choice % self.uplinks, choice // self.uplinks % half
        edges = [2 * all_links + half * up + aggregation, 3 * all_links + half * down + aggregation]
        if up // half == down // half:
            return [src, *edges, all_links + dst]
        tops = [half * (half * (edge // half) + aggregation) + core for edge in (up, down)]
        return [src, edges[0], 4 * all_links + tops[0], 5 * all_links + tops[1], edges[1], all_links + dst]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedJob:
    """An iteration of a job, with its devices numbered from 0, and their servers."""

    graph: TaskGraph
    servers: tuple[int, ...]
    alone_s: float
    """About the time of an iteration without other jobs."""


def shared_iterations_s(jobs: Sequence[PlacedJob], tree: FatTree, seed: int, longest: float = 2.0) -> list[list[float]]:
    """By job: the times of its iterations while all jobs run, without the first one if there are others.

    Every job begins at a random moment and runs for about `longest` times the longest `alone_s` and one more iteration.
    Each transfer takes a random path, as if switches hashed its port.
    """
    random = np.random.default_rng(seed)
    horizon_s = longest * max(job.alone_s for job in jobs)
    whole = TaskGraph(tree.servers)
    ends: list[list[int]] = []
    for job in jobs:
        many, joins = repeated(_placed(job, tree), 1 + ceil(horizon_s / job.alone_s))
        first = len(whole.tasks)
        whole.tasks.append(Task(None, (), float(random.uniform(0.0, job.alone_s))))
        whole.after.append([])
        for task, waits in zip(many.tasks, many.after, strict=True):
            whole.tasks.append(task)
            whole.after.append([first + 1 + wait for wait in waits] or [first])
        ends.append([first, *(first + 1 + join for join in joins)])
    choices = random.integers(0, tree.ports**2, size=sum(len(task.senders) for task in whole.tasks)).tolist()
    loaded = LoadedGraph(whole, tree.links_bps, lambda src, dst, number: tree.route(src, dst, choices[number]))
    loaded.simulation.advance()
    moments = loaded.ends_s()
    busy_until_s = min(moments[own[-1]] for own in ends)
    found = []
    for own in ends:
        times = np.diff(moments[own])
        counted = [float(time) for time, end in zip(times[1:], moments[own][2:], strict=True) if end <= busy_until_s]
        found.append(counted or [float(times[0])])
    return found


def _placed(job: PlacedJob, tree: FatTree) -> TaskGraph:
    """The job's graph, with servers for devices."""
    tasks = [replace(task, devices=tuple(job.servers[device] for device in task.devices)) for task in job.graph.tasks]
    return TaskGraph(tree.servers, tasks, job.graph.after)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job in the order of arrival, on `servers` servers for `seconds`."""

    arrival_s: float
    servers: int
    seconds: float


def starts_s(jobs: Sequence[QueuedJob], servers: int, setup_s: float, *, look_ahead: bool) -> list[float]:
    """When each job starts on shards of one cluster, first come, first served.

    Setting the circuits of a job takes `setup_s`: minutes on patch panels, which a robot changes. With `look_ahead`,
    each server has two ports at every interface, and is in two topologies at most (appendix C). The circuits of a job
    are then set while its servers still run other jobs: from its arrival on, when the second ports of all its servers
    are free. Otherwise they are set when its servers are free.

    Raises ValueError for a job on more servers than there are.
    """
    free_s = np.zeros(servers)  # when the last job of a server ends
    second_s = np.zeros(servers)  # when its second port is free: its last job has turned to it
    earliest_s, found = 0.0, []
    for job in jobs:
        if not 1 <= job.servers <= servers:
            raise ValueError(f"a job on {job.servers} servers does not fit on {servers}")
        taken = np.lexsort((second_s, free_s))[: job.servers]
        ready_s = max(job.arrival_s, earliest_s, float(free_s[taken].max()))
        begun_s = max(job.arrival_s, float(second_s[taken].max())) if look_ahead else ready_s
        start_s = max(ready_s, begun_s + setup_s)
        free_s[taken], second_s[taken] = start_s + job.seconds, start_s
        earliest_s = ready_s  # no job overtakes another one
        found.append(start_s)
    return found
