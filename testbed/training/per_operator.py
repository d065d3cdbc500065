# SPDX-License-Identifier: Apache-2.0
"""The task graph of a network that is placed layer by layer: TopoOpt's space of strategies.

Each layer is split by samples over its devices, each of which holds all its parameters. What a device needs of the
layer before and does not compute itself is sent to it; gradients go back the same way. The copies of a layer all-reduce
their gradients behind the backward pass of the layers before it. A device is a server.
"""

from collections.abc import Callable, Iterator, Sequence

from testbed.training.hardware import Accelerator, Collective
from testbed.training.networks import Layer, LayeredModel
from testbed.training.operators import SINGLE
from testbed.training.strategies import Placement
from testbed.training.tasks import TaskGraph

Profile = Callable[[Layer, float], float]
"""Seconds of the forward pass of a layer for a number of samples on one device."""


def roofline(gpu: Accelerator, gpus: int) -> Profile:
    """A server of `gpus` GPUs: the longer of computing and of moving parameters and outputs once, in full precision."""

    def seconds(layer: Layer, samples: float) -> float:
        computing = layer.flops * samples / gpus / (gpu.matrix_flops * gpu.matrix_efficiency)
        read = 0.0 if layer.table else layer.parameters
        moved = SINGLE * (read + layer.outputs * samples / gpus)
        return max(computing, 8 * moved / gpu.memory_bps)

    return seconds


def iteration(
    network: LayeredModel, placements: Sequence[Placement], servers: int, batch: int, profile: Profile
) -> TaskGraph:
    """One iteration of `batch` samples, with a backward pass of twice the forward pass.

    Raises ValueError for another number of placements than layers, and for devices that are not among the servers.
    """
    if len(placements) != len(network.layers):
        raise ValueError(f"{network.name} has {len(network.layers)} layers, and there are {len(placements)} placements")
    graph = TaskGraph(servers)
    forward = [
        [graph.compute(device, profile(layer, batch / where.degree), name=layer.name) for device in where.devices]
        for layer, where in zip(network.layers, placements, strict=True)
    ]
    for number, layer in enumerate(network.layers):
        for before in layer.after:
            size = SINGLE * network.layers[before].outputs * batch
            _hand_on(graph, placements[before], placements[number], size, forward[before], forward[number])
    backward: dict[int, list[int]] = {}
    for number in reversed(range(len(network.layers))):
        layer, where = network.layers[number], placements[number]
        backward[number] = [
            graph.compute(
                device, 2 * profile(layer, batch / where.degree), forward[number][place : place + 1], layer.name
            )
            for place, device in enumerate(where.devices)
        ]
    for number, layer in enumerate(network.layers):
        for before in layer.after:
            size = SINGLE * network.layers[before].outputs * batch
            _hand_on(graph, placements[number], placements[before], size, backward[number], backward[before])
        if layer.parameters:
            what = Collective("all_reduce", SINGLE * layer.parameters)
            graph.collective(what, placements[number].devices, backward[number], name=layer.name)
    return graph


def overlaps(parts: int, others: int) -> Iterator[tuple[int, int, float]]:
    """Where two even divisions of the samples overlap: a part of each, and the share of all samples in both."""
    have = need = done = 0
    while have < parts:
        end = min((have + 1) * others, (need + 1) * parts)
        yield have, need, (end - done) / (parts * others)
        have, need, done = end // others, end // parts, end


def _hand_on(
    graph: TaskGraph, source: Placement, target: Placement, size: float, from_tasks: list[int], to_tasks: list[int]
) -> None:
    """Send each part of `target` the samples of `source` that it needs, where they are on another device."""
    for have, need, share in overlaps(source.degree, target.degree):
        sender, receiver, sent = source.devices[have], target.devices[need], from_tasks[have]
        if sender != receiver:
            sent = graph.send(sender, receiver, size * share, [sent], name="samples")
        graph.wait(sent, to_tasks[need])
