# SPDX-License-Identifier: Apache-2.0
"""What a spec file may say. What is wrong with a part by itself is refused here."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from netmodel import (
    TopologySpec,
)
from sdn.openflow.source_rules import Pinning
from sim.packet import Congestion, Receiver
from testbed.errors import Misfit
from testbed.plan.placement import Rule
from testbed.workloads import AnyWorkload

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


LACKING: dict[FabricName, tuple[PolicyName, ...]] = {
    "mininet": MODELLED,
    "fluid": IN_QUEUES,
    "packet": ("adaptive", "qp_scaling"),
    "softroce": MODELLED,
}
"""Policies that a fabric has not got."""


PlannerName = Literal["optimal", "greedy", "annealing", "ecmp"]


LARGEST_HEADERS_BYTES = 20 + 8 + 12 + 16 + 4 + 4
"""What shares an IP packet with the payload at most: IPv4, UDP, BTH, RETH, immediate, ICRC."""


SOFTROCE_PATIENCE = 10.0
"""Times as long as a spec says may everything take on fabric softroce, which runs on an emulated machine."""


_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


SEEDS_MAX = 100_000
"""Most seeds of a spec, each of which is a run of every policy."""


JobName = Annotated[str, Field(pattern=_NAME, max_length=40)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


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
    """A whole spec file. docs/spec.md says what each key means to a run."""

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
        if isinstance(self.seeds, int) and not 1 <= self.seeds <= SEEDS_MAX:
            raise Misfit(f"give the number of seeds, 1 to {SEEDS_MAX}, or list them", "seeds")
        if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise Misfit("a list of seeds needs distinct numbers, none below zero", "seeds")
        return self
