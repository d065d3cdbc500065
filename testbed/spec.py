# SPDX-License-Identifier: Apache-2.0
"""Experiment specs: what a YAML file may say, and every check that can be made before anything is started.

`load` gives an `Experiment`: the spec as written, beside what follows from it (topology, the host of each rank).
Whatever is wrong with a file is a `netmodel.SpecError` of one sentence with the line; nothing privileged has happened
by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag, model_validator

from emul.packet import Congestion, Receiver
from netmodel import (
    EcmpHash,
    Forwarding,
    Link,
    PortRef,
    SpecError,
    Topology,
    TopologySpec,
    forwarding,
    lit,
    load_topology,
    load_yaml,
)
from sdn.isolation.optical_clos import OpticalClos
from sdn.isolation.virtual_clos import sub_clos
from sdn.source_routing import SourceRouting, in_order
from sdn.source_rules import Pinning, ecmp_hash_of, source_rules
from sdn.steering import Steering
from sdn.topoopt import Demand, data_parallel
from testbed.demands import bytes_by_pair
from testbed.errors import InputError, Misfit
from testbed.optical import Layout, Setting, found, rings, setting
from testbed.placement import PlacementError, Rule, isolated, leaf_of, place
from testbed.workloads import AnyWorkload, NcclAllreduce, Training, Transfer
from testbed.workloads.ring_allreduce import RingAllreduce

PolicyName = Literal[
    "ecmp",
    "pinned",
    "adaptive",
    "controller",
    "source_routing",
    "vclos",
    "spraying",
    "oblivious",
    "recycled",
    "plb",
    "qp_scaling",
    "drill",
    "letflow",
    "conweave",
]
STEERED: tuple[PolicyName, ...] = ("source_routing", "vclos")
"""Policies under which switches choose, and source ports do not."""

IN_QUEUES: tuple[PolicyName, ...] = ("drill", "letflow", "conweave")
"""Policies that look at queues, gaps or single packets: for fabric packet only."""

MODELLED: tuple[PolicyName, ...] = ("spraying", "oblivious", "recycled", "plb", "qp_scaling", *IN_QUEUES)
"""Policies that the engine does not have: what ParaLet is compared with, on fabrics that are models."""

FabricName = Literal["mininet", "fluid", "packet", "softroce"]
MODELS: tuple[FabricName, ...] = ("fluid", "packet")
"""Fabrics that are computed: no privilege, no real packet."""

PlannerName = Literal["optimal", "greedy", "annealing", "ecmp"]

LARGEST_HEADERS_BYTES = 20 + 8 + 12 + 16 + 4 + 4
"""What shares an IP packet with the payload at most: IPv4, UDP, BTH, RETH, immediate, ICRC."""

SOFTROCE_PATIENCE = 10.0
"""Times as long as a spec says may everything take on fabric softroce, which runs on an emulated machine."""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


JobName = Annotated[str, Field(pattern=_NAME, max_length=40)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TopologyFile(_Section):
    """A topology in a file of its own; a relative name is relative to the spec's folder."""

    file: str


class Placement(_Section):
    """The hosts of the ranks: by name, or by a rule and a number (all hosts unless said, or what `jobs` adds up to).

    Rule `vclos` places job after job, with a virtual Clos for each, as the scheduler of vClos or OCS-vClos does.
    """

    hosts: list[str] | None = Field(default=None, min_length=2)
    rule: Rule | Literal["vclos"] | None = None
    ranks: int | None = Field(default=None, ge=2)
    seed: int = Field(default=0, ge=0)
    redraw: bool = False
    """For rule `random`: another draw for every seed of the spec."""

    @model_validator(mode="after")
    def _one_of_two(self) -> "Placement":
        if (self.hosts is None) == (self.rule is None):
            raise ValueError("give either hosts or rule")
        if self.hosts is not None and self.ranks is not None:
            raise Misfit("goes with rule; a list of hosts has its own length", "ranks")
        if self.redraw and self.rule != "random":
            raise Misfit("only rule random draws anything", "redraw")
        return self


class Policy(_Section):
    """One way to choose paths. `m` is the number of lanes; the next two override the engine's own choice.

    `planner`, `elephant_bytes` and `assign_wait_s` are for policy `controller`. `uplinks` is for `source_routing`: the
    spine port of each host port, by leaf; without it they go in order. With `alone` jobs run one after the other, so
    that none is in another's way. With `paced` a lane sends at 1 / m of its host's rate at most, as ParaLet's do
    (section 5.1), where otherwise it takes all that its path lets it. `receiver` is for
    fabric packet.
    """

    name: str = Field(pattern=_NAME, max_length=40)
    policy: PolicyName
    m: int = Field(default=1, ge=1, le=256)
    flowlet_bytes: int | None = Field(default=None, gt=0)
    mice_bytes: int | None = Field(default=None, ge=0)
    planner: PlannerName | None = None
    elephant_bytes: int | None = Field(default=None, gt=0)
    assign_wait_s: float | None = Field(default=None, ge=0, le=60)
    uplinks: dict[str, dict[int, int]] | None = None
    alone: bool = False
    paced: bool = False
    receiver: Receiver | None = None

    @model_validator(mode="after")
    def _keys_that_fit(self) -> "Policy":
        if self.policy != "controller":
            for name in ("planner", "elephant_bytes", "assign_wait_s"):
                if getattr(self, name) is not None:
                    raise Misfit("is for policy controller only", name)
        if self.paced and self.policy in ("spraying", "oblivious", "qp_scaling"):
            raise Misfit("is for lanes that pull, which this policy has not", "paced")
        if self.policy != "source_routing" and self.uplinks is not None:
            raise Misfit("is for policy source_routing only", "uplinks")
        return self


class Event(_Section):
    """Something that happens to the fabric or to the controller, `at_s` seconds into every run: one of the four.

    `cut`, `degrade` and `mend` name a link by a switch port; a degraded one keeps `part` of its rate. `controller`: the
    path service is killed, started again, or both, in runs of policies that have one. Every run ends with all links
    mended.
    """

    at_s: float = Field(ge=0)
    cut: str | None = None
    degrade: str | None = None
    part: float | None = Field(default=None, gt=0, lt=1)
    mend: str | None = None
    controller: Literal["kill", "start", "restart"] | None = None

    @model_validator(mode="after")
    def _one_of_four(self) -> "Event":
        if sum(what is not None for what in (self.cut, self.degrade, self.mend, self.controller)) != 1:
            raise ValueError("give one of cut, degrade, mend and controller")
        if (self.degrade is None) != (self.part is None):
            raise ValueError("degrade goes with part, what is left of the link's rate")
        return self

    @property
    def link(self) -> str | None:
        """The switch port that names the link concerned; None where none is."""
        return self.cut or self.degrade or self.mend

    @property
    def what(self) -> str:
        """For people."""
        if self.controller is not None:
            return f"{self.controller} controller"
        if self.degrade is not None:
            return f"degrade {self.degrade} to {self.part:g}"
        return f"cut {self.cut}" if self.cut is not None else f"mend {self.mend}"


class Timeouts(_Section):
    """Seconds after which a phase counts as failed."""

    start_s: float = Field(default=60.0, gt=0)
    connect_s: float = Field(default=30.0, gt=0)
    run_s: float = Field(default=120.0, gt=0)


class Optical(_Section):
    """What optical switches are set to before runs.

    On direct-connect fabrics each job has circuits of its own: with `strides` NIC k of every host is in the ring that
    leads from the job's rank r to rank r + strides[k]; with `find` TopologyFinder decides by what the workload sends,
    with the first seed. Ports are dark for `reconfiguration_s` while they change.
    """

    strides: list[int] | None = Field(default=None, min_length=1)
    find: bool = False
    reconfiguration_s: float = Field(default=0.010, ge=0, le=60)

    @model_validator(mode="after")
    def _one_of_two(self) -> "Optical":
        if self.find and self.strides is not None:
            raise ValueError("give either strides or find")
        return self


class FluidSettings(_Section):
    """What a fabric `fluid` adds to the time that links need for the bits. docs/fluid.md tells how it was measured."""

    link_delay_s: float = Field(default=1e-6, ge=0, le=1)
    """Propagation, per link."""
    message_delay_s: float = Field(default=0.0, ge=0, le=10)
    """From the last bit of a message until its receiver has it and may go on."""
    reroute_s: float = Field(default=0.0, ge=0, le=60)
    """From a cut or a mended link until switches have new routes."""


class PacketSettings(_Section):
    """What switches and NICs of a fabric `packet` are like. docs/packet.md tells what the settings mean."""

    link_delay_s: float = Field(default=1e-6, ge=0, le=1)
    switch_buffer_bytes: int = Field(default=9_000_000, ge=10_000)
    port_buffer_bytes: int | None = Field(default=None, ge=10_000)
    ecn_bytes: int | None = Field(default=None, ge=1)
    pfc: bool = False
    receiver: Receiver = "go_back_n"
    congestion: Congestion = "fixed"
    window_bdp: float = Field(default=2.0, gt=0, le=1000)
    timeout_rtts: float = Field(default=100.0, ge=1, le=100_000)
    reorder_rtts: float = Field(default=25.0, ge=0, le=100_000)
    flowlet_gap_s: float = Field(default=100e-6, ge=0, le=10)
    reroute_rtts: float = Field(default=2.0, ge=1, le=100_000)
    hold_s: float = Field(default=200e-6, ge=0, le=10)

    @model_validator(mode="after")
    def _marks_are_heeded(self) -> "PacketSettings":
        if self.congestion == "dctcp" and self.ecn_bytes is None:
            raise Misfit("dctcp needs switches that mark; give ecn_bytes, too", "congestion")
        return self


def _topology_kind(value: object) -> str:
    is_file = "file" in value if isinstance(value, dict) else isinstance(value, TopologyFile)
    return "topology file" if is_file else "topology in place"


AnyTopology = Annotated[
    Annotated[TopologyFile, Tag("topology file")] | Annotated[TopologySpec, Tag("topology in place")],
    Discriminator(_topology_kind),
]


class Spec(_Section):
    """A whole spec file. docs/cli.md says what each key means to a run."""

    name: str = Field(pattern=_NAME, max_length=80)
    topology: AnyTopology
    fabric: FabricName = "mininet"
    workload: AnyWorkload
    placement: Placement
    jobs: int | list[int] | dict[JobName, int] = 1
    policies: list[Policy] = Field(min_length=1)
    seeds: int | list[int] = 1
    nic: str = "nic0"
    local_nic: str | None = None
    path_mtu: Literal[256, 512, 1024, 2048, 4096] | None = None
    pinning: Pinning = "hash"
    events: list[Event] = []
    timeouts: Timeouts = Timeouts()
    pcap: list[str] = []
    fluid: FluidSettings = FluidSettings()
    packet: PacketSettings = PacketSettings()
    optical: Optical | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Spec":
        if self.name == "latest":
            raise Misfit("'latest' is the name of the link to the newest results; take another", "name")
        names = [policy.name for policy in self.policies]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise Misfit(f"another policy is called {name!r} already", "policies", index, "name")
        seeds = [self.seeds] if isinstance(self.seeds, int) else self.seeds
        if isinstance(self.seeds, int) and self.seeds < 1:
            raise Misfit("give the number of seeds, one or more, or list them", "seeds")
        if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise Misfit("a list of seeds needs distinct numbers, none below zero", "seeds")
        return self


@dataclass(frozen=True, slots=True)
class Job:
    """Ranks that run the workload among themselves, numbered from 0 within it."""

    name: str
    first: int
    """Its rank 0 among all of the experiment."""
    size: int

    @property
    def ranks(self) -> range:
        """Its ranks among all of the experiment."""
        return range(self.first, self.first + self.size)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A checked spec and what it stands for."""

    spec: Spec
    topology: Topology
    """What switches see that forward by address: where their cables run through optical switches, what light joins."""
    hosts: tuple[str, ...]
    """By rank; where every seed draws another placement, those of the first seed, or of the one given to `at`."""
    seeds: tuple[int, ...]
    pcap: tuple[PortRef, ...]
    nic: int
    """Index of the NIC that carries the traffic, on every host of the placement."""
    jobs: tuple[Job, ...]
    local_nic: int | None = None
    """Index of the NIC that carries instead what goes to hosts whose NIC of that index is on the same switch."""
    cabled: Topology | None = None
    """The fabric as cabled, where that is something else."""
    isolation: OpticalClos | None = None
    """What placement rule `vclos` has given to each job."""
    layouts: tuple[Layout, ...] = ()
    """The circuits between hosts, by job, on a direct-connect fabric."""

    def at(self, seed: int) -> "Experiment":
        """The same with the placement of that seed."""
        if not self.spec.placement.redraw:
            return self
        return replace(self, hosts=_hosts(self.spec.placement, self.topology, seed))

    @property
    def timeouts(self) -> Timeouts:
        """The spec's, or longer where the fabric is slow."""
        limits = self.spec.timeouts
        if self.spec.fabric != "softroce":
            return limits
        return Timeouts(**{name: limit * SOFTROCE_PATIENCE for name, limit in limits.model_dump().items()})

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """Every host that has a rank with some seed, in the order of first use."""
        return tuple(dict.fromkeys(host for seed in self.seeds for host in self.at(seed).hosts))

    def job_of(self, rank: int) -> Job:
        """The job that a rank belongs to."""
        return next(job for job in self.jobs if rank in job.ranks)

    def transfers(self, seed: int) -> tuple[Transfer, ...]:
        """What all jobs move, between ranks of the experiment, steps ascending."""
        moved = [
            replace(transfer, src=job.first + transfer.src, dst=job.first + transfer.dst)
            for number, job in enumerate(self.jobs)
            for transfer in self.spec.workload.of_job(number).schedule(job.size, seed)
        ]
        return tuple(sorted(moved, key=lambda transfer: transfer.step))

    def stranded(self, seed: int, dead_links: frozenset[Link] = frozenset()) -> Transfer | None:
        """The first of the transfers for which there is no way while these links of the topology are dead, if any.

        None on a direct-connect fabric, whose ways are planned before a run.
        """
        if self.setting is not None:
            return None
        placed, groups = self.at(seed), forwarding(self.topology, dead_links).groups
        for transfer in placed.transfers(seed):
            nic = placed.nic_between(transfer.src, transfer.dst)
            near = PortRef(placed.hosts[transfer.src], nic + 1)
            address = self.topology.host(placed.hosts[transfer.dst]).nics[nic].address
            if self.topology.link_at(near) in dead_links or address not in groups[self.topology.peer(near).node]:
                return transfer
        return None

    @property
    def setting(self) -> Setting | None:
        """Circuits and relays of an optical fabric. Raises ValueError as `testbed.optical.setting` does."""
        if not self.layouts:
            return None
        shards = tuple(tuple(self.hosts[rank] for rank in job.ranks) for job in self.jobs)
        return setting(self.topology, shards, self.layouts)

    def steering(self, name: str) -> Steering | None:
        """What switches are told to put above their routes under the policy of that name. Raises ValueError."""
        policy = next(policy for policy in self.spec.policies if policy.name == name)
        if policy.policy == "source_routing":
            return in_order(self.topology) if policy.uplinks is None else SourceRouting(policy.uplinks)
        if policy.policy == "vclos":
            if self.isolation is not None:
                return self.isolation.clos
            return sub_clos(self.topology, {job.name: [self.hosts[rank] for rank in job.ranks] for job in self.jobs})
        return None

    def routes(self, name: str) -> Forwarding:
        """What switches do under the policy of that name while all links live. Raises ValueError."""
        steering = self.steering(name)
        return forwarding(self.topology) if steering is None else steering.routes(self.topology)

    @property
    def ecmp_hash(self) -> EcmpHash:
        """What the fabric's switches choose by."""
        return ecmp_hash_of(self.topology, self.spec.pinning)

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return len(self.hosts)

    def address(self, rank: int, nic: int | None = None) -> str:
        """The IPv4 address of a rank's NIC, of the one that carries the traffic unless another is named."""
        return str(self.topology.host(self.hosts[rank]).nics[self.nic if nic is None else nic].address)

    def line_rate_bps(self, rank: int, nic: int | None = None) -> int:
        """The rate of the link that such a NIC is plugged into."""
        return self.topology.link_at(PortRef(self.hosts[rank], (self.nic if nic is None else nic) + 1)).rate_bps

    def nic_between(self, rank: int, other: int) -> int:
        """Index of the NIC, on both hosts, by which two ranks talk."""
        if self.local_nic is not None and self._switch(rank, self.local_nic) == self._switch(other, self.local_nic):
            return self.local_nic
        return self.nic

    def nics_between(self, src: int, dst: int) -> tuple[int, int]:
        """Indices of the NICs by which data go from one rank to another: the sender's and the receiver's."""
        if (setting := self.setting) is not None:
            return setting.nics(self.hosts[src], self.hosts[dst])
        return (self.nic_between(src, dst),) * 2

    def _switch(self, rank: int, nic: int) -> str:
        return self.topology.peer(PortRef(self.hosts[rank], nic + 1)).node


def load(
    path: Path, *, policies: Sequence[str] = (), seeds: int | None = None, fabric: FabricName | None = None
) -> Experiment:
    """Read a spec and check all that can be checked without privileges.

    `policies` keeps only those of that name; `seeds` replaces the spec's seeds by that many, `fabric` its fabric.

    Raises SpecError (the file is wrong) or InputError (an argument is).
    """
    spec = load_yaml(path, Spec)
    if isinstance(spec.topology, TopologyFile):
        topology_file = TopologyFile(file=str((path.parent / spec.topology.file).resolve()))
        spec = spec.model_copy(update={"topology": topology_file})
    if policies:
        spec = _only(spec, policies)
    if seeds is not None:
        spec = spec.model_copy(update={"seeds": seeds})
    if fabric is not None:
        spec = spec.model_copy(update={"fabric": fabric})
    try:
        return check(spec)
    except Misfit as misfit:
        _tell(misfit, path)


def check(spec: Spec) -> Experiment:
    """What `spec` stands for. Raises Misfit, or SpecError for a topology file."""
    topology = load_topology(spec.topology.file) if isinstance(spec.topology, TopologyFile) else spec.topology.topology
    seeds = tuple(range(1, spec.seeds + 1)) if isinstance(spec.seeds, int) else tuple(spec.seeds)
    _check_optical(spec, topology)
    isolation = None
    if spec.placement.rule == "vclos":
        isolation = _isolation(spec, topology)
        hosts = tuple(host for job in isolation.clos.jobs for host in job.hosts)
    else:
        hosts = _hosts(spec.placement, topology, seeds[0])
    cabled = topology if isolation is not None and isolation.circuits else None
    experiment = Experiment(
        spec=spec,
        topology=topology if isolation is None else lit(topology, isolation.circuits),
        hosts=hosts,
        seeds=seeds,
        pcap=tuple(_port(text, topology, "pcap", index) for index, text in enumerate(spec.pcap)),
        nic=_nic_index(spec.nic, topology, hosts, "nic"),
        jobs=_jobs(_job_sizes(spec), len(hosts)),
        local_nic=None if spec.local_nic is None else _nic_index(spec.local_nic, topology, hosts, "local_nic"),
        cabled=cabled,
        isolation=isolation,
    )
    for number, job in enumerate(experiment.jobs):
        try:
            spec.workload.of_job(number).check_ranks(job.size)
        except Misfit as misfit:
            raise Misfit(str(misfit), "workload", *misfit.where) from misfit
    if spec.local_nic is not None and isinstance(spec.workload, NcclAllreduce):
        raise Misfit(f"workload {spec.workload.kind} uses one NIC only; leave it out", "local_nic")
    if any(switch.role != "ocs" for switch in topology.switches):
        _check_reach(experiment)
    else:
        experiment = _laid_out(experiment)
    for index, policy in enumerate(spec.policies):
        if policy.paced and spec.fabric != "fluid":
            raise Misfit("only fabric fluid models it", "policies", index, "paced")
        try:
            for seed in seeds:
                experiment.at(seed).routes(policy.name)
        except ValueError as error:
            raise Misfit(str(error), "policies", index) from error
    if spec.fabric in MODELS:
        _check_modelled(spec, experiment.jobs)
    else:
        _check_live(spec)
    for index, event in enumerate(spec.events):
        for key in ("cut", "degrade", "mend"):
            if (text := getattr(event, key)) is not None:
                _port(text, topology, "events", index, key)
        if event.controller and not any(policy.policy == "controller" for policy in spec.policies):
            raise Misfit("the spec has no policy controller that it would concern", "events", index, "controller")
    if spec.pinning == "rules":
        try:
            source_rules(topology, forwarding(topology))
        except ValueError as error:
            raise Misfit(str(error), "pinning") from error
    if spec.path_mtu is not None and spec.path_mtu + LARGEST_HEADERS_BYTES > topology.mtu_bytes:
        raise Misfit(
            f"{spec.path_mtu} bytes of payload and {LARGEST_HEADERS_BYTES} of headers do not fit the topology's MTU of "
            f"{topology.mtu_bytes}",
            "path_mtu",
        )
    return experiment


def dump(spec: Spec) -> str:
    """YAML that `load` reads back as the same experiment, wherever it lies."""
    return yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True), sort_keys=False)


def leaf_names(experiment: Experiment) -> tuple[str, ...]:
    """The leaf of every rank."""
    return tuple(leaf_of(experiment.topology, host) for host in experiment.hosts)


def _tell(misfit: Misfit, path: Path) -> NoReturn:
    """Raise the SpecError for something found after the file was read: load_yaml knows which line it is in."""

    class Refused(RootModel[Any]):
        @model_validator(mode="after")
        def _refuse(self) -> "Refused":
            raise misfit

    load_yaml(path, Refused)
    raise AssertionError("unreachable: the model refuses everything")


def _check_optical(spec: Spec, topology: Topology) -> None:
    """Raises Misfit when what the spec says of optical switches does not fit the topology or the policies."""
    roles = {switch.role for switch in topology.switches}
    asked = spec.optical is not None and (spec.optical.find or spec.optical.strides is not None)
    if "ocs" not in roles:
        if spec.optical is not None:
            raise Misfit(f"topology {topology.name} has no optical switches; leave it out", "optical")
    elif roles == {"ocs"}:
        if not asked:
            raise Misfit(
                f"topology {topology.name} has optical switches only: say under optical what they are set to",
                *(("topology",) if spec.optical is None else ("optical",)),
            )
        _check_direct(spec)
    else:
        if asked:
            raise Misfit(f"topology {topology.name} is no direct-connect fabric; leave out strides and find", "optical")
        if spec.placement.rule != "vclos":
            raise Misfit(
                f"cables of topology {topology.name} end in optical switches: take rule vclos, which sets circuits",
                "placement",
            )
        for index, policy in enumerate(spec.policies):
            if policy.policy == "controller":
                raise Misfit("the path service does not look through circuits", "policies", index, "policy")


def _check_direct(spec: Spec) -> None:
    """Raises Misfit for what does not run over circuits between hosts."""
    if spec.fabric != "mininet":
        raise Misfit(f"fabric {spec.fabric} has no optical switches; use mininet", "fabric")
    if isinstance(spec.workload, NcclAllreduce):
        raise Misfit(f"workload {spec.workload.kind} does not run over relays; take ring_allreduce", "workload", "kind")
    for index, policy in enumerate(spec.policies):
        if policy.policy != "ecmp":
            raise Misfit("on circuits a connection has one way only, so take ecmp", "policies", index, "policy")


def _laid_out(experiment: Experiment) -> Experiment:
    """The experiment with the circuits of its jobs. Raises Misfit when these cannot be."""
    optical = experiment.spec.optical
    assert optical is not None  # _check_optical
    where = ("optical", "find" if optical.find else "strides")
    try:
        if optical.find:
            degree = min(len(experiment.topology.host(host).nics) for host in experiment.hosts)
            layouts = tuple(found(_demand(experiment, job), degree) for job in experiment.jobs)
        else:
            layouts = tuple(rings(job.size, optical.strides or ()) for job in experiment.jobs)
        made = replace(experiment, layouts=layouts)
        for seed in made.seeds:
            _ = made.at(seed).setting
    except ValueError as error:
        raise Misfit(str(error), *where) from error
    workload = experiment.spec.workload
    for job, layout in zip(experiment.jobs, layouts, strict=True):
        strides = sorted(dict(layer)[0] for layer in layout.layers)
        if optical.find and isinstance(workload, RingAllreduce) and sorted(workload.strides) != strides:
            raise Misfit(
                f"TopologyFinder joins {job.name} by rings, so share it out: take {strides}", "workload", "strides"
            )
    return made


def _demand(experiment: Experiment, job: Job) -> Demand:
    """What a job sends: an all-reduce by rings is for TopologyFinder to share out, all else goes where it goes."""
    workload = experiment.spec.workload
    if isinstance(workload, RingAllreduce):
        return data_parallel(job.size, workload.bytes)
    sent = np.zeros((job.size, job.size))
    schedule = workload.schedule(job.size, experiment.seeds[0])
    for pair, count in bytes_by_pair(schedule, workload.item_bytes).items():
        sent[pair] = count
    return Demand(job.size, (), sent)


def _check_modelled(spec: Spec, jobs: Sequence[Job]) -> None:
    """Raises Misfit for what a model has not got."""
    for index, policy in enumerate(spec.policies):
        missing, other = (("adaptive", "qp_scaling"), "fluid") if spec.fabric == "packet" else (IN_QUEUES, "packet")
        if policy.policy in missing:
            said = f"fabric {spec.fabric} has no policy {policy.policy}; use {other}"
            raise Misfit(said, "policies", index, "policy")
        if spec.fabric == "packet" and policy.policy in ("recycled", "plb") and spec.packet.ecn_bytes is None:
            raise Misfit("it needs switches that mark; give ecn_bytes under packet", "policies", index, "policy")
    for index, event in enumerate(spec.events):
        if event.controller is not None:
            raise Misfit(f"fabric {spec.fabric} has no controller process; use mininet", "events", index, "controller")
    if spec.fabric == "packet" and spec.events:
        raise Misfit("on fabric packet nothing happens to links; use fluid", "events")
    if spec.local_nic is not None:
        raise Misfit(f"fabric {spec.fabric} models one NIC of each host; use mininet", "local_nic")
    works = [(spec.workload.of_job(number), job.size) for number, job in enumerate(jobs)]
    if spec.fabric == "packet" and any(work.phase_starts(ranks) or work.pauses(ranks) for work, ranks in works):
        raise Misfit(
            f"fabric {spec.fabric} does not model the phases of {spec.workload.kind}; use fluid", "workload", "kind"
        )
    if spec.pcap:
        raise Misfit(f"fabric {spec.fabric} has no real packets to capture; use mininet", "pcap")


def _check_live(spec: Spec) -> None:
    """Raises Misfit for what only a model has."""
    if isinstance(spec.workload, Training):
        raise Misfit("ranks on real hosts do not compute; use fabric fluid", "workload", "kind")
    for index, policy in enumerate(spec.policies):
        if policy.policy in MODELLED:
            raise Misfit(
                f"the engine has no policy {policy.policy}; it is modelled: use fabric fluid or packet",
                "policies",
                index,
                "policy",
            )
    for index, event in enumerate(spec.events):
        if event.degrade is not None:
            raise Misfit(f"fabric {spec.fabric} cuts links but does not degrade them; use fluid", "events", index)


def _only(spec: Spec, names: Sequence[str]) -> Spec:
    known = [policy.name for policy in spec.policies]
    for name in names:
        if name not in known:
            raise InputError(f"the spec has no policy {name!r}; it has {', '.join(known)}")
    return spec.model_copy(update={"policies": [policy for policy in spec.policies if policy.name in names]})


def _job_sizes(spec: Spec) -> int | list[int] | dict[str, int]:
    """The spec's, or the workload's where it has its own."""
    if (sizes := spec.workload.job_sizes) is None:
        return spec.jobs
    if spec.jobs != 1:
        raise Misfit(f"the models of workload {spec.workload.kind} are the jobs; leave it out", "jobs")
    return sizes


def _jobs(jobs: int | list[int] | dict[str, int], ranks: int) -> tuple[Job, ...]:
    """The ranks of each job: a number of jobs parts them evenly, otherwise the sizes are given."""
    if isinstance(jobs, int):
        if not 1 <= jobs <= ranks // 2:
            raise Misfit(f"{jobs} jobs of two ranks or more do not fit {ranks} ranks", "jobs")
        bounds = [job * ranks // jobs for job in range(jobs + 1)]
        names = [f"job{n}" for n in range(1, jobs + 1)]
    else:
        named = jobs if isinstance(jobs, dict) else {f"job{n}": size for n, size in enumerate(jobs, start=1)}
        if not named or min(named.values()) < 2 or sum(named.values()) != ranks:
            raise Misfit(f"the sizes of the jobs must be 2 or more and add up to the {ranks} ranks placed", "jobs")
        bounds = [0, *accumulate(named.values())]
        names = list(named)
    return tuple(Job(name, first, stop - first) for name, (first, stop) in zip(names, pairwise(bounds), strict=True))


def _isolation(spec: Spec, topology: Topology) -> OpticalClos:
    """Hosts and a virtual Clos for every job. Raises Misfit when a job does not fit."""
    if not {"leaf", "spine"} <= {switch.role for switch in topology.switches}:
        raise Misfit(f"topology {topology.name} has no leaves and spines for rule vclos", "placement")
    ranks = spec.placement.ranks
    if ranks is None:
        sizes = [] if isinstance(spec.jobs, int) else spec.jobs
        ranks = sum(sizes.values() if isinstance(sizes, dict) else sizes) or len(topology.hosts)
    try:
        return isolated(topology, {job.name: job.size for job in _jobs(spec.jobs, ranks)})
    except PlacementError as error:
        raise Misfit(str(error), "placement" if isinstance(spec.jobs, int) else "jobs") from error


def _hosts(placement: Placement, topology: Topology, seed: int) -> tuple[str, ...]:
    """The hosts by rank; `seed` is the run's."""
    if placement.rule is not None and placement.rule != "vclos":
        ranks = placement.ranks or len(topology.hosts)
        try:
            return place(
                topology, placement.rule, ranks, [placement.seed, seed] if placement.redraw else placement.seed
            )
        except PlacementError as error:
            raise Misfit(str(error), "placement") from error
    hosts = tuple(placement.hosts or ())
    for index, host in enumerate(hosts):
        if not topology.has_host(host):
            raise Misfit(f"topology {topology.name} has no host {host!r}", "placement", "hosts", index)
        if host in hosts[:index]:
            raise Misfit(f"host {host} has a rank already, and each host runs one", "placement", "hosts", index)
    return hosts


def _check_reach(experiment: Experiment) -> None:
    """Raises Misfit when the workload, with the first seed, needs a path that the fabric does not have."""
    topology, groups = experiment.topology, forwarding(experiment.topology).groups
    ends = [topology.host(host).nics[experiment.nic].address for host in experiment.hosts]
    homes = [topology.peer(PortRef(host, experiment.nic + 1)).node for host in experiment.hosts]
    first = dict(zip(reversed(homes), reversed(ends), strict=True))  # an address on each leaf
    if all(address in groups[home] for home in first for address in first.values()):
        return
    if (transfer := experiment.stranded(experiment.seeds[0])) is not None:
        src, dst = transfer.src, transfer.dst
        raise Misfit(
            f"rank {src} on {experiment.hosts[src]} sends to rank {dst} on {experiment.hosts[dst]}, and topology "
            f"{topology.name} has no path from {homes[src]} to {homes[dst]}; take a workload that relays, or "
            "another placement or topology",
            "workload",
        )


def _nic_index(nic: str, topology: Topology, hosts: tuple[str, ...], key: str) -> int:
    """The index that `nic` has on every one of `hosts`."""
    indices = set()
    for host in hosts:
        names = [candidate.name for candidate in topology.host(host).nics]
        if nic not in names:
            raise Misfit(f"host {host} has no device {nic!r}; it has {', '.join(names)}", key)
        indices.add(names.index(nic))
    if len(indices) > 1:
        raise Misfit(f"{nic} is not at the same place on every host", key)
    return indices.pop()


def _port(text: str, topology: Topology, *where: str | int) -> PortRef:
    """A switch port written SWITCH:NUMBER, at that place of the spec."""
    node, _, number = text.partition(":")
    try:
        topology.switch(node)
        topology.link_at(PortRef(node, int(number)))
    except (ValueError, KeyError):
        raise Misfit(f"{text!r} is no connected switch port; write it like 'leaf1:5'", *where) from None
    return PortRef(node, int(number))


__all__ = [
    "Event",
    "Experiment",
    "Job",
    "Optical",
    "Placement",
    "Policy",
    "Spec",
    "SpecError",
    "Timeouts",
    "check",
    "dump",
    "leaf_names",
    "load",
]
