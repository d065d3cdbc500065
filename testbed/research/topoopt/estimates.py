# SPDX-License-Identifier: Apache-2.0
"""A fast estimate of an iteration: a list schedule of servers and links. It ranks strategies.

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
from testbed.research.topoopt.fabrics import Fabric, Floats
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

    schedule_s: float
    """The end of the last layer or transfer, where servers compute one layer after another, and each link carries one
    transfer after another, however busy the other links of the transfer are."""
    bound_s: float
    """No iteration is shorter: all that a server computes, and all that a link carries."""
    fits: bool = True
    """Whether the GPUs have enough memory."""

    @property
    def seconds(self) -> float:
        """The whole iteration; infinite where memory does not suffice."""
        return self.schedule_s if self.fits else inf


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One iteration of `batch` samples of a network on `servers` servers."""

    network: LayeredModel
    servers: int
    batch: int
    profile: Profile
    gpus: int = 4
    """The GPUs of each server, which share its samples and its embedding tables."""
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


class _Load(NamedTuple):
    """What one byte needs: the links that carry any of it, and seconds of each."""

    links: npt.NDArray[np.int64]
    seconds: Floats


class _Servers(NamedTuple):
    """Servers and links while an iteration goes on: when each is free, and for how long each was busy."""

    free_s: Floats
    computed_s: Floats
    links_free_s: Floats
    links_busy_s: Floats
    reduced_s: Floats
    """When each link has carried its all-reduces."""
    reduces: Floats
    """All-reduces of each link since it last had none: a transfer of samples gets an equal share beside them."""

    def compute(self, devices: npt.NDArray[np.int64], ready_s: Floats | float, seconds: float) -> Floats:
        """The ends, by device."""
        ends: Floats = np.maximum(self.free_s[devices], ready_s) + seconds
        self.free_s[devices] = ends
        self.computed_s[devices] += seconds
        return ends

    def send(self, size: float, load: _Load, ready_s: float) -> float:
        """The end of a transfer of `size` bytes of samples."""
        if not load.links.size:
            return ready_s
        needed = size * load.seconds
        starts = np.maximum(self.links_free_s[load.links], ready_s)
        behind = np.maximum(self.reduced_s[load.links] - starts, 0.0)
        ends = starts + needed + np.minimum(self.reduces[load.links] * needed, behind)
        self.links_free_s[load.links] = ends
        self.reduced_s[load.links] += np.where(behind > 0, needed, 0.0)
        self.links_busy_s[load.links] += needed
        return float(ends.max())

    def reduce(self, size: float, load: _Load, ready_s: float) -> None:
        """An all-reduce of `size` bytes."""
        needed = size * load.seconds
        self.reduces[load.links] = np.where(self.reduced_s[load.links] > ready_s, self.reduces[load.links], 0.0) + 1.0
        self.reduced_s[load.links] = np.maximum(self.reduced_s[load.links], ready_s) + needed
        self.links_busy_s[load.links] += needed


class Estimator:
    """Estimates of strategies for one job on one fabric; remembers what it has found."""

    def __init__(self, job: Job, fabric: Fabric) -> None:
        self.job, self.fabric = job, fabric
        self._transfers: dict[tuple[int, int], tuple[_Load, _Load]] = {}
        self._kept: list[Placement] = []
        self._reduced: dict[tuple[int, ...], _Load] = {}
        self._layers: dict[tuple[int, int], tuple[float, float]] = {}
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
        links = self.fabric.links_bps.size
        at = _Servers(*(np.zeros(size) for size in (job.servers, job.servers, links, links, links, links)))
        held_bytes = np.zeros(job.servers)
        devices = [_devices(where) for where in strategy]
        seconds: list[float] = []
        forward: list[Floats] = []  # ends by device
        for number, (layer, where) in enumerate(zip(layers, strategy, strict=True)):
            layer_s, layer_bytes = self._layer(number, where.degree)
            held_bytes[devices[number]] += layer_bytes
            ready_s: Floats | float = 0.0
            for before in layer.after:
                arrived: Floats | float = forward[before]
                if strategy[before] is not where:
                    there, _ = self._transfer(strategy[before], where)
                    size = SINGLE * layers[before].outputs * job.batch
                    arrived = at.send(size, there, float(forward[before].max()))
                ready_s = np.maximum(ready_s, arrived)
            seconds.append(layer_s)
            forward.append(at.compute(devices[number], ready_s, layer_s))
        last_s = 0.0
        for number in reversed(range(len(strategy))):
            layer, where = layers[number], strategy[number]
            ends = at.compute(devices[number], forward[number], 2 * seconds[number])
            last_s = max(last_s, float(ends.max()))
            for before in layer.after:
                arrived = ends
                if strategy[before] is not where:
                    _, back = self._transfer(strategy[before], where)
                    size = SINGLE * layers[before].outputs * job.batch
                    arrived = at.send(size, back, float(ends.max()))
                forward[before] = np.maximum(forward[before], arrived)
            if layer.parameters and where.degree > 1:
                size = SINGLE * layer.parameters
                at.reduce(size, self._reduce(where.devices), float(ends.max()))
        return Estimate(
            max(last_s, float(at.links_free_s.max()), float(at.reduced_s.max())),
            bound_s=max(float(at.computed_s.max()), float(at.links_busy_s.max())),
            fits=float(held_bytes.max()) <= job.gpu_bytes,
        )

    def _transfer(self, source: Placement, target: Placement) -> tuple[_Load, _Load]:
        """Loads of one byte of all samples, there and back."""
        key = id(source), id(target)
        if key not in self._transfers:
            pairs, shares = _exchanged(source, target, self.job.servers)
            sizes = np.zeros((self.job.servers, self.job.servers))
            sizes.ravel()[pairs] = shares
            self._kept += [source, target]  # an id is that of one object only while it lives
            self._transfers[key] = self._load(sizes), self._load(sizes.T)
        return self._transfers[key]

    def _load(self, sizes: Floats, part: float = 1.0) -> _Load:
        seconds = 8 * part * self.fabric.load(sizes.ravel()) / self.fabric.links_bps
        links = np.flatnonzero(seconds)
        return _Load(links, seconds[links])

    def _layer(self, number: int, degree: int) -> tuple[float, float]:
        """Seconds forward and bytes of a layer on one of `degree` servers."""
        key = number, degree
        if key not in self._layers:
            seconds = self.job.profile(self.job.network.layers[number], self.job.batch / degree)
            self._layers[key] = seconds, self.job.held_bytes(number, degree)
        return self._layers[key]

    def _reduce(self, members: tuple[int, ...]) -> _Load:
        """The load of an all-reduce of one byte."""
        if members not in self._reduced:
            sizes = np.zeros(self.job.servers**2)
            orders = self.fabric.orders(members)
            for order in orders:
                ends = np.array(order)
                sizes[self.job.servers * ends + np.roll(ends, -1)] += 1.0
            self._reduced[members] = self._load(sizes, 2 * (len(members) - 1) / len(members) / len(orders))
        return self._reduced[members]


@cache
def _devices(where: Placement) -> npt.NDArray[np.int64]:
    return np.array(where.devices, dtype=np.int64)


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
    """The strategy that puts every layer on every server."""
    return (block(job.servers, job.servers, 0),) * len(job.network.layers)


def hybrid(job: Job) -> Strategy:
    """Embedding tables on one server each, evenly spread, and all else on every server (section 2.1)."""
    tables = [number for number, layer in enumerate(job.network.layers) if layer.table]
    places = list(data_parallel(job))
    for place, table in enumerate(tables):
        places[table] = block(job.servers, 1, place * job.servers // len(tables))
    return tuple(places)
