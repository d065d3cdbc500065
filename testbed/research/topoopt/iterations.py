# SPDX-License-Identifier: Apache-2.0
"""An iteration simulated on the fluid model, with all-reduces divided among the rings of a fabric."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from testbed.research.topoopt.estimates import Estimator, Job, Strategy
from testbed.research.topoopt.fabrics import Fabric, switch
from testbed.simulate.task_graphs import run_fluid
from testbed.training.per_operator import iteration
from testbed.training.tasks import TaskGraph


def simulate_s(job: Job, strategy: Strategy, fabric: Fabric) -> float:
    """Seconds of an iteration; transfers that share a link get max-min fair rates."""
    graph = iteration(job.network, strategy, job.servers, job.batch, job.profile)
    return float(run_fluid(on_rings(graph, fabric), fabric.links_bps, fabric.route).max())


def shortest_s(
    job: Job, strategies: Iterable[Strategy], rate_bps: float, seconds: Callable[[Strategy], float]
) -> float:
    """The least of the simulated times `seconds` of an iteration, on any fabric where a server sends `rate_bps` in all.

    No fabric is faster than a switch of that rate, so a strategy is left out if what it computes and sends takes as
    long there as another one takes in all.
    """
    ideal, best = Estimator(job, switch(job.servers, rate_bps)), inf
    for strategy in sorted(strategies, key=lambda one: ideal(one).bound_s):
        if ideal(strategy).bound_s < best:
            best = min(best, seconds(strategy))
    return best


def on_rings(graph: TaskGraph, fabric: Fabric) -> TaskGraph:
    """The same graph, with every all-reduce divided evenly among the rings of its group."""
    spread = TaskGraph(graph.devices)
    numbers: list[list[int]] = []
    for task in graph.tasks:
        orders = fabric.orders(task.devices) if task.kind == "all_reduce" else (task.devices,)
        numbers.append(list(range(len(spread.tasks), len(spread.tasks) + len(orders))))
        for order in orders:
            spread.tasks.append(replace(task, devices=order, bytes=task.bytes / len(orders)))
            spread.after.append([])
    for number, waits in enumerate(graph.after):
        for copy in numbers[number]:
            spread.after[copy] = [earlier for wait in waits for earlier in numbers[wait]]
    return spread
