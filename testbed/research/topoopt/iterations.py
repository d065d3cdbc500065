# SPDX-License-Identifier: Apache-2.0
"""An iteration simulated on the fluid model, with all-reduces divided among the rings of a fabric."""

from dataclasses import replace

from testbed.research.topoopt.estimates import Job, Strategy
from testbed.research.topoopt.fabrics import Fabric
from testbed.simulate.task_graphs import run_fluid
from testbed.training.per_operator import iteration
from testbed.training.tasks import TaskGraph


def simulate_s(job: Job, strategy: Strategy, fabric: Fabric) -> float:
    """Seconds of an iteration; transfers that share a link get max-min fair rates."""
    graph = iteration(job.network, strategy, job.servers, job.batch, job.profile)
    return float(run_fluid(on_rings(graph, fabric), fabric.links_bps, fabric.route).max())


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
