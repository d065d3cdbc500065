# SPDX-License-Identifier: Apache-2.0
"""A fast estimate of an iteration: computing, and the busiest link of a fabric. It ranks strategies.

A strategy has a placement for each layer of a network, as `testbed.training.per_operator` defines it.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache, lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sdn.topoopt import AllReduceGroup, Demand
from testbed.topoopt.fabrics import Fabric, Floats
from testbed.training.networks import LayeredModel
from testbed.training.operators import SINGLE
from testbed.training.per_operator import Profile, overlaps
from testbed.training.strategies import Placement

Strategy = tuple[Placement, ...]
"""A placement for each layer."""

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Times in seconds of the two passes, and a bound."""

    forward_s: float
    """The longer of two times: the longest chain of layers and transfers, each transfer alone; and the computing of the
    busiest server before all transfers of the busiest link."""
    backward_s: float
    """The longest of four: both times of the backward pass, the longest chain with a layer's all-reduce at its end, and
    all that the busiest link carries."""
    bound_s: float
    """No iteration is shorter: all that a server computes, and all that a link carries."""
    fits: bool = True
    """Whether the GPUs have enough memory."""

    @property
    def seconds(self) -> float:
        """The whole iteration; infinite where memory does not suffice."""
        return self.forward_s + self.backward_s if self.fits else inf


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One iteration of `batch` samples of a network on `servers` servers."""

    network: LayeredModel
    servers: int
    batch: int
    profile: Profile
    gpus: int = 4
    """Of each server. They share its samples and its embedding tables."""
    gpu_bytes: float = inf
    """Memory of a GPU. It holds weights and gradients of its layers, and their outputs for its samples."""

    def held_bytes(self, number: int, degree: int) -> float:
        """Bytes of a layer on each GPU of its servers, where it is on `degree` of them."""
        layer = self.network.layers[number]
        weights = layer.parameters / self.gpus if layer.table else 2 * layer.parameters
        return SINGLE * (weights + layer.outputs * self.batch / degree / self.gpus)

    def demand(self, strategy: Strategy) -> Demand:
        """What TopologyFinder takes: groups with their gradients, and transfers of samples both ways."""
        handed = self.handed_on(strategy).reshape(self.servers, self.servers)
        groups = tuple(AllReduceGroup(members, size) for members, size in self.gradients(strategy).items())
        return Demand(self.servers, groups, handed + handed.T)

    def gradients(self, strategy: Strategy) -> dict[tuple[int, ...], float]:
        """Bytes of the gradients that each group sums."""
        sizes: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for layer, where in zip(self.network.layers, strategy, strict=True):
            if layer.parameters and where.degree > 1:
                sizes[where.devices] += SINGLE * layer.parameters
        return sizes

    def handed_on(self, strategy: Strategy) -> Floats:
        """Bytes of samples forward, by source * servers + destination."""
        layers, pairs, sizes = self.network.layers, [_NONE], [np.zeros(0)]
        for number, layer in enumerate(layers):
            for before in layer.after:
                if strategy[before] is not strategy[number]:
                    found, shares = _exchanged(strategy[before], strategy[number], self.servers)
                    pairs.append(found)
                    sizes.append(SINGLE * layers[before].outputs * self.batch * shares)
        total = np.bincount(np.concatenate(pairs), np.concatenate(sizes), self.servers**2)
        return np.asarray(total, dtype=np.float64)


class _Transfer(NamedTuple):
    """All samples of one byte handed on from one placement to another: seconds of each link, and of the busiest."""

    there: Floats
    back: Floats
    there_s: float
    back_s: float


class Estimator:
    """Estimates of strategies for one job on one fabric; remembers what it has found."""

    def __init__(self, job: Job, fabric: Fabric) -> None:
        self.job, self.fabric = job, fabric
        self._transfers: dict[tuple[int, int], _Transfer] = {}
        self._kept: list[Placement] = []
        self._reduced: dict[tuple[int, ...], Floats] = {}
        self._layers: dict[tuple[int, int], Floats] = {}
        self._found: dict[Strategy, Estimate] = {}

    def __call__(self, strategy: Strategy) -> Estimate:
        """The estimate of a strategy."""
        found = self._found.get(strategy)
        if found is None:
            found = self._found[strategy] = self._estimate(strategy)
        return found

    @property
    def estimated(self) -> int:
        """The number of different strategies that were estimated."""
        return len(self._found)

    def best(self, count: int) -> list[Strategy]:
        """The strategies with the shortest estimates."""
        return sorted(self._found, key=lambda strategy: self._found[strategy].seconds)[:count]

    def _estimate(self, strategy: Strategy) -> Estimate:
        job, layers = self.job, self.job.network.layers
        used = np.zeros((2, job.servers))  # seconds and bytes of each server
        ends, starts = [0.0] * len(strategy), [0.0] * len(strategy)  # of the layers' longest chains, forward, backward
        carried: list[tuple[float, _Transfer]] = []
        for number, (layer, where) in enumerate(zip(layers, strategy, strict=True)):
            each = self._layer(number, where.degree)
            used[:, list(where.devices) if where.degree < job.servers else slice(None)] += each
            for before in layer.after:
                arrival = ends[before]
                if strategy[before] is not where:
                    one = self._transfer(strategy[before], where)
                    size = SINGLE * layers[before].outputs * job.batch
                    carried.append((size, one))
                    arrival += size * one.there_s
                ends[number] = max(ends[number], arrival)
            ends[number] += float(each[0, 0])
        reduced, last = np.zeros(self.fabric.links_bps.size), 0.0
        for number in reversed(range(len(strategy))):
            layer, where = layers[number], strategy[number]
            starts[number] += 2 * float(self._layer(number, where.degree)[0, 0])
            for before in layer.after:
                size = 0.0
                if strategy[before] is not where:
                    size = SINGLE * layers[before].outputs * job.batch * self._transfer(strategy[before], where).back_s
                starts[before] = max(starts[before], starts[number] + size)
            gradients_s = 0.0
            if layer.parameters and where.degree > 1:
                one_byte = self._reduce(where.devices)
                reduced += SINGLE * layer.parameters * one_byte
                gradients_s = SINGLE * layer.parameters * float(one_byte.max())
            last = max(last, starts[number] + gradients_s)
        forward, backward = np.zeros(reduced.size), np.zeros(reduced.size)
        for size, one in carried:
            forward += size * one.there
            backward += size * one.back
        busy_s, held_bytes = used.max(axis=1).tolist()
        return Estimate(
            forward_s=max(*ends, busy_s + float(forward.max())),
            backward_s=max(last, 2 * busy_s + float(backward.max()), float((backward + reduced).max())),
            bound_s=max(3 * busy_s, float((forward + backward + reduced).max())),
            fits=held_bytes <= job.gpu_bytes,
        )

    def _transfer(self, source: Placement, target: Placement) -> _Transfer:
        key = id(source), id(target)
        if key not in self._transfers:
            pairs, shares = _exchanged(source, target, self.job.servers)
            sizes = np.zeros((self.job.servers, self.job.servers))
            sizes.ravel()[pairs] = shares
            there, back = self._seconds(sizes), self._seconds(sizes.T)
            self._kept += [source, target]  # an id is that of one object only while it lives
            self._transfers[key] = _Transfer(there, back, float(there.max()), float(back.max()))
        return self._transfers[key]

    def _seconds(self, sizes: Floats) -> Floats:
        return 8 * self.fabric.load(sizes.ravel()) / self.fabric.links_bps

    def _layer(self, number: int, degree: int) -> Floats:
        """Seconds forward and bytes of a layer on one of `degree` servers, shape (2, 1)."""
        key = number, degree
        if key not in self._layers:
            seconds = self.job.profile(self.job.network.layers[number], self.job.batch / degree)
            self._layers[key] = np.array([[seconds], [self.job.held_bytes(number, degree)]])
        return self._layers[key]

    def _reduce(self, members: tuple[int, ...]) -> Floats:
        """Seconds of each link for an all-reduce of one byte."""
        if members not in self._reduced:
            sizes = np.zeros(self.job.servers**2)
            orders = self.fabric.orders(members)
            for order in orders:
                ends = np.array(order)
                sizes[self.job.servers * ends + np.roll(ends, -1)] += 1.0
            each = 2 * (len(members) - 1) / len(members) / len(orders)
            self._reduced[members] = each * self._seconds(sizes)
        return self._reduced[members]


@lru_cache(maxsize=100_000)
def _exchanged(source: Placement, target: Placement, servers: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Pairs that send, as source * servers + destination, and the part of all samples that each of them sends."""
    found: defaultdict[int, float] = defaultdict(float)
    for have, need, share in overlaps(source.degree, target.degree):
        if source.devices[have] != target.devices[need]:
            found[servers * source.devices[have] + target.devices[need]] += share
    return np.array(list(found), dtype=np.int64), np.array(list(found.values()))


@cache
def block(servers: int, degree: int, first: int) -> Placement:
    """`degree` consecutive servers, of which `first` is one end; numbers wrap around, and the result is ascending."""
    return Placement(tuple(sorted((first + place) % servers for place in range(degree))))


def data_parallel(job: Job) -> Strategy:
    """Every layer on every server."""
    return (block(job.servers, job.servers, 0),) * len(job.network.layers)


def hybrid(job: Job) -> Strategy:
    """Embedding tables on one server each, evenly spread, and all else on every server (section 2.1)."""
    tables = [number for number, layer in enumerate(job.network.layers) if layer.table]
    places = list(data_parallel(job))
    for place, table in enumerate(tables):
        places[table] = block(job.servers, 1, place * job.servers // len(tables))
    return tuple(places)
