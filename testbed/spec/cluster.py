# SPDX-License-Identifier: Apache-2.0
"""The keys of a spec for `paralet cluster`: a cluster, a trace of jobs, and strategies to compare."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from netmodel import RateBps, load_yaml, raise_all
from sim.cluster import (
    FidelityName,
    Job,
    NetworkName,
    Pattern,
    PlacementName,
    QueueName,
    Scenario,
    Shape,
    TraceFormat,
    TraceShape,
    generate,
    read_trace,
)
from testbed.conflict import Conflict
from testbed.spec.section import NAME, Section
from testbed.spec.written import SEEDS_MAX


class PodsSection(Section):
    """Pods of leaves and aggs, and cores that join them, wired as `netmodel.clos`."""

    pods: int = Field(ge=2, le=4096)
    leaves: int = Field(ge=1, le=4096)
    """Of each pod."""
    aggs: int = Field(ge=1, le=4096)
    """Of each pod."""
    cores_per_agg: int = Field(ge=1, le=4096)


class FatTreeSection(Section):
    """A fat-tree of switches with `k` ports, as `netmodel.fat_tree`."""

    k: int = Field(ge=2, le=64, multiple_of=2)


_LEAF_SPINE = ("leaves", "spines", "servers_per_leaf")

_LINKS_MAX = 100_000_000


class ClusterSection(Section):
    """Servers under leaves. Every GPU has a NIC in each plane, and all links are as fast as one.

    Either a leaf-spine, where each leaf has one uplink to each spine, or one of `clos` and `fat_tree`.
    """

    leaves: int | None = Field(default=None, ge=1, le=4096)
    spines: int | None = Field(default=None, ge=1, le=4096)
    clos: PodsSection | None = None
    fat_tree: FatTreeSection | None = None
    servers_per_leaf: int | None = Field(default=None, ge=1, le=4096)
    """A fat-tree has as many as its leaves have ports for."""
    gpus_per_server: int = Field(ge=1, le=64)
    planes: int = Field(default=1, ge=1, le=64)
    optical_switches: int = Field(default=8, ge=1, le=4096)
    """The number of optical switches, for placement `ocs_vclos`."""

    @model_validator(mode="after")
    def _one_fabric(self) -> "ClusterSection":
        given = self.model_fields_set
        if self.clos is not None and self.fat_tree is not None:
            raise Conflict("give either clos or fat_tree", "fat_tree")
        name, needed = "a leaf-spine", [*_LEAF_SPINE]
        if self.clos is not None:
            name, needed = "clos", ["servers_per_leaf"]
        elif self.fat_tree is not None:
            name, needed = "fat_tree", []
        found = [
            Conflict(f"{name} determines them; leave it out", key)
            for key in _LEAF_SPINE
            if key in given and key not in needed
        ]
        found += [Conflict(f"{name} needs the key {key}") for key in needed if getattr(self, key) is None]
        if self.fat_tree is not None and self.fat_tree.k // 2 % self.gpus_per_server:
            what = (
                f"a leaf has {self.fat_tree.k // 2} ports for GPUs, which servers of {self.gpus_per_server} cannot fill"
            )
            found.append(Conflict(what, "gpus_per_server"))
        raise_all(found)
        if (links := self.shape.links) > _LINKS_MAX:
            raise Conflict(f"it has {links:,} links, and the simulation takes {_LINKS_MAX:,} at most")
        return self

    @property
    def shape(self) -> Shape:
        """The cluster as the simulation takes it."""
        if (tree := self.fat_tree) is not None:
            half = tree.k // 2
            servers = half // self.gpus_per_server
            return Shape(tree.k * half, half, servers, self.gpus_per_server, tree.k, half, self.planes)
        assert self.servers_per_leaf is not None  # by `_one_fabric`
        servers = self.servers_per_leaf
        if (clos := self.clos) is not None:
            leaves, cores = clos.pods * clos.leaves, clos.cores_per_agg
            return Shape(leaves, clos.aggs, servers, self.gpus_per_server, clos.pods, cores, self.planes)
        assert self.leaves is not None
        assert self.spines is not None
        return Shape(self.leaves, self.spines, servers, self.gpus_per_server, planes=self.planes)


class TraceSection(Section):
    """A generated trace; `sim.cluster.trace` has the distributions."""

    jobs: int = Field(ge=1, le=1_000_000)
    mean_gap_s: float = Field(gt=0)
    correlation: float = Field(default=0.0, ge=-1, le=1)
    shortest_s: float = Field(default=1_000.0, gt=0)
    longest_s: float = Field(default=100_000.0, gt=0)
    largest: int = Field(default=256, ge=1)
    pattern: Pattern | None = None
    communication: float | None = Field(default=None, ge=0, le=1)
    deadline_factor: float = Field(default=2.0, ge=1)

    @model_validator(mode="after")
    def _shortest_is_shorter(self) -> "TraceSection":
        if self.shortest_s > self.longest_s:
            raise Conflict(f"no duration is at least {self.shortest_s:g} and at most {self.longest_s:g} s", "longest_s")
        return self

    @property
    def shape(self) -> TraceShape:
        """The trace as the generator takes it."""
        return TraceShape(**self.model_dump())


class TraceFileSection(Section):
    """The trace of a real cluster; `sim.cluster.trace_files` has the formats. A relative name starts at the spec's
    folder."""

    file: str
    format: TraceFormat
    most: int | None = Field(default=None, ge=1)
    """Read at most this number of jobs."""
    pattern: Pattern | None = None
    communication: float | None = Field(default=None, ge=0, le=1)
    deadline_factor: float = Field(default=2.0, ge=1)


class Strategy(Section):
    """How jobs get GPUs, and what their flows do. The queue is the spec's unless it is given."""

    name: str = Field(pattern=NAME, max_length=40)
    placement: PlacementName
    network: NetworkName
    lanes: int = Field(default=8, ge=1, le=1024)
    queue: QueueName | None = None
    fidelity: FidelityName | None = None
    """The fidelity of this strategy; None: that of the spec."""


class LasSection(Section):
    """The parameters of queue `las`; `sim.cluster.preemption` has the rule."""

    service_gpu_s: float = Field(default=20_000.0, gt=0)
    checkpoint_s: float = Field(default=60.0, ge=0)


ReplayFabric = Literal["mininet", "routed"]
"""Fabrics with real packets on which `paralet cluster --replay` runs jobs."""


class ReplaySection(Section):
    """How `paralet cluster --replay` runs the jobs of seed 1 with real packets."""

    fabric: ReplayFabric = "mininet"
    speedup: float = Field(gt=0)
    """Simulated seconds that pass in a second."""
    rate: RateBps = 10_000_000
    """The rate of every NIC and link of the emulated fabric."""


class ClusterSpec(Section):
    """A file for `paralet cluster`: a cluster, its jobs, and the strategies to compare."""

    name: str = Field(pattern=NAME, max_length=60)
    cluster: ClusterSection
    trace: TraceSection | None = None
    trace_file: TraceFileSection | None = None
    strategies: list[Strategy] = Field(min_length=1)
    queue: QueueName = "fifo"
    las: LasSection = LasSection()
    fidelity: FidelityName = "average"
    rounds: int = Field(default=1, ge=1, le=10_000)
    """How often a job computes and communicates, for fidelities `steps` and `fair`."""
    seeds: int = Field(default=1, ge=1, le=SEEDS_MAX)
    """Seeds 1 to this number; each has a generated trace of its own, or collectives of its own."""
    replay: ReplaySection | None = None

    @field_validator("strategies")
    @classmethod
    def _distinct_names(cls, strategies: list[Strategy]) -> list[Strategy]:
        names = [strategy.name for strategy in strategies]
        found = [
            Conflict(f"another strategy has the name {name!r}", index, "name")
            for index, name in enumerate(names)
            if name in names[:index]
        ]
        raise_all(found)
        return strategies

    @model_validator(mode="after")
    def _parts_fit(self) -> "ClusterSpec":
        found = []
        if (self.trace is None) == (self.trace_file is None):
            found.append(Conflict("give either trace, to generate one, or trace_file, to read one"))
        lacking = self.cluster.shape.lacks_links_for_all()
        for index, strategy in enumerate(self.strategies):
            try:
                self.scenario(strategy, 1)
            except ValueError as error:
                found.append(Conflict(str(error), "strategies", index, "network"))
            if strategy.network == "source_routing" and lacking is not None:
                what = f"source routing gives every GPU of a leaf a spine of its own: {lacking}"
                found.append(Conflict(what, "strategies", index, "network"))
        raise_all(found)
        return self

    def jobs(self, seed: int) -> list[Job]:
        """The trace. Raises sim.cluster.TraceError and OSError for one that cannot be read."""
        if self.trace is not None:
            return generate(self.trace.shape, seed)
        assert self.trace_file is not None  # by `_parts_fit`
        own = self.trace_file
        return read_trace(
            Path(own.file),
            own.format,
            seed=seed,
            pattern=own.pattern,
            communication=own.communication,
            most=own.most,
            deadline_factor=own.deadline_factor,
        )

    def scenario(self, strategy: Strategy, seed: int) -> Scenario:
        """What to simulate. Raises ValueError for a strategy that contradicts itself."""
        return Scenario(
            self.cluster.shape,
            strategy.placement,
            strategy.network,
            strategy.queue or self.queue,
            strategy.fidelity or self.fidelity,
            strategy.lanes,
            self.rounds,
            self.cluster.optical_switches,
            self.las.service_gpu_s,
            self.las.checkpoint_s,
            seed,
        )


def load_cluster(path: Path) -> ClusterSpec:
    """The spec in a file; the name of its trace file starts at the file's folder. Raises netmodel.SpecError."""
    spec = load_yaml(path, ClusterSpec)
    if spec.trace_file is None:
        return spec
    own = spec.trace_file.model_copy(update={"file": str(path.parent / spec.trace_file.file)})
    return spec.model_copy(update={"trace_file": own})
