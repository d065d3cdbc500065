# SPDX-License-Identifier: Apache-2.0
"""Task graphs of `testbed.training` on the fluid model: transfers share links, engines compute one task at a time.

An engine is a channel over a link of its own, which sends its tasks one after the other; a second of computing is as
many bits as the link carries in a second. A ring collective is a message to the next member from each,
an all-to-all one to each other member.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sim.fluid import Messages, Simulation
from sim.messages import NO_CHANNEL
from sim.paths import Paths
from testbed.training.tasks import TaskGraph

_ENGINE_BPS = 1e9

Route = Callable[[int, int], Sequence[int]]
"""The links from one device to another."""


def run_ideal(graph: TaskGraph, rate_bps: float) -> npt.NDArray[np.float64]:
    """The end of each task in seconds, where devices share nothing but their own NICs of `rate_bps` each way."""
    return run_fluid(graph, np.full(2 * graph.devices, rate_bps), lambda src, dst: (src, graph.devices + dst))


def run_fluid(graph: TaskGraph, links_bps: npt.ArrayLike, route: Route) -> npt.NDArray[np.float64]:
    """The end of each task in seconds, on a fabric of links with these rates.

    Transfers of one pair at the same time share its path. Raises ValueError for tasks that wait for each other, and for
    what the model lacks: transfers during which the receiver does not compute, and computing on several devices at
    once.
    """
    loaded = LoadedGraph(graph, links_bps, lambda src, dst, number: route(src, dst))
    loaded.simulation.advance()
    return loaded.ends_s()


class LoadedGraph:
    """A task graph on a fluid simulation whose links the caller may change while it runs.

    Links of the fabric have the numbers of `links_bps`. Every transfer has a flow of its own, so that transfers may be
    moved to other paths one by one. Raises ValueError as `run_fluid`.
    """

    simulation: Simulation
    transfers: npt.NDArray[np.int64]
    """By transfer: source, destination, flow, its message, and the message after whose delivery it may begin."""
    bits: npt.NDArray[np.float64]
    """The size of each transfer in bits."""

    def __init__(
        self, graph: TaskGraph, links_bps: npt.ArrayLike, route: Callable[[int, int, int], Sequence[int]]
    ) -> None:
        """`route` takes source, destination and number of a transfer, and returns its links."""
        graph.order()
        rates = np.asarray(links_bps, dtype=np.float64)
        paths: list[Sequence[int]] = [(rates.size + engine,) for engine in range(graph.devices)]
        channels: list[int] = []
        bits: list[float] = []
        delays: list[float] = []
        waits: list[tuple[int, int]] = []
        begins: list[int] = []
        ends: list[int] = []
        transfers: list[tuple[int, int, int, int, int]] = []

        def add(channel: int, size: float, delay_s: float, after: Sequence[int]) -> int:
            number = len(channels)
            channels.append(channel)
            bits.append(size)
            delays.append(delay_s)
            waits.extend((earlier, number) for earlier in after)
            return number

        for task in graph.tasks:
            if task.blocking:
                raise ValueError("the fluid model has no transfers during which the receiver does not compute")
            if task.kind is None and len(task.devices) > 1:
                raise ValueError("the fluid model has no computing on several devices at once")
            if task.kind is None and task.devices:
                begins.append(add(task.devices[0], task.delay_s * _ENGINE_BPS, 0.0, ()))
                ends.append(begins[-1])
                continue
            begins.append(add(NO_CHANNEL, 0.0, task.delay_s, ()))
            sent = []
            for src, dst, size in task.messages():
                paths.append(route(src, dst, len(transfers)))
                sent.append(add(len(paths) - 1, 8 * size, 0.0, begins[-1:]))
                transfers.append((src, dst, len(paths) - 1, sent[-1], begins[-1]))
            ends.append(add(NO_CHANNEL, 0.0, 0.0, sent) if sent else begins[-1])
        for number, earlier in enumerate(graph.after):
            waits.extend((ends[wait], begins[number]) for wait in earlier)
        self.simulation = Simulation(np.concatenate([rates, np.full(graph.devices, _ENGINE_BPS)]))
        self.simulation.add_channels(Paths.of(_rows(paths)))
        self.simulation.add_messages(Messages(channels, bits, delays))
        if waits:
            self.simulation.add_waits(*np.array(waits, dtype=np.int64).T)
        self.transfers = np.array(transfers, dtype=np.int64).reshape(-1, 5)
        self.bits = np.array(bits)[self.transfers[:, 3]]
        self._left = np.zeros(len(self.transfers))  # bits sent on paths that were left
        self._ends = ends

    def ends_s(self) -> npt.NDArray[np.float64]:
        """The end of each task in seconds; NaN while it has not ended."""
        return self.simulation.delivered_s()[self._ends]

    def unsent_bits(self) -> npt.NDArray[np.float64]:
        """By transfer: what is left to send of those that have begun or wait for bandwidth only; 0 for others."""
        delivered = ~np.isnan(self.simulation.delivered_s())
        waiting = delivered[self.transfers[:, 4]] & ~delivered[self.transfers[:, 3]]
        sent = self._left + self.simulation.flow_bits()[self.transfers[:, 2]]
        return np.asarray(np.where(waiting, np.maximum(self.bits - sent, 0.0), 0.0))

    def move(self, rows: npt.NDArray[np.int32]) -> None:
        """Move all transfers that are not delivered to the paths `rows`, by transfer, -1 after the last link."""
        left = np.isnan(self.simulation.delivered_s()[self.transfers[:, 3]])
        flows = self.transfers[left, 2]
        if flows.size:
            self._left[left] += self.simulation.flow_bits()[flows]
            self.simulation.set_paths(flows, Paths.of(rows[left][:, None, :]))


def _rows(paths: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    rows = np.full((len(paths), 1, max(map(len, paths))), -1, dtype=np.int32)
    for channel, links in enumerate(paths):
        rows[channel, 0, : len(links)] = links
    return rows
