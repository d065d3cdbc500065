# SPDX-License-Identifier: Apache-2.0
"""The keys of a spec file. Validators here check each section by itself; `checks` compares sections."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from netmodel import TopologySpec, raise_all
from sdn.openflow.source_rules import Pinning
from testbed.allocation.placement import Rule
from testbed.conflict import Conflict
from testbed.quantities import Bytes, Seconds, Share
from testbed.spec.fabrics import FABRICS, FabricKind, FabricName
from testbed.spec.policies import Policy
from testbed.spec.section import NAME, Section
from testbed.spec.settings import FluidSettings, OpenFlowSettings, Optical, PacketSettings, RouterSettings, Timeouts
from testbed.workloads import AnyWorkload

LARGEST_ROCE_HEADERS_BYTES = 8 + 12 + 16 + 4 + 4
"""Headers of the largest kind of packet beside its IP header and payload: UDP, BTH, RETH, immediate data, ICRC."""

SEEDS_MAX = 100_000
"""Largest number of seeds of a spec. Every policy runs once per seed."""

JobName = Annotated[str, Field(pattern=NAME, max_length=40)]


class TopologyFile(Section):
    """A topology in a separate file. A relative name starts at the spec's folder. `load` reads the file."""

    file: str


class Placement(Section):
    """The hosts of the ranks: either their names, or a rule (default `in_order`) and a number of ranks.

    By default every host has a rank. `ranks` or, for rule `vclos`, `jobs` changes their number. Rule `vclos` places one
    job after the other and gives each a virtual Clos, like the scheduler of vClos or OCS-vClos.
    """

    hosts: list[str] | None = Field(default=None, min_length=2)
    rule: Rule | Literal["vclos"] | None = None
    ranks: int | None = Field(default=None, ge=2)
    seed: int = Field(default=0, ge=0)
    redraw: bool = False
    """For rule `random`: another draw for every seed of the spec."""

    @model_validator(mode="after")
    def _hosts_or_rule(self) -> "Placement":
        found = []
        if self.hosts is not None and self.rule is not None:
            found.append(Conflict("give either hosts or rule"))
        if self.hosts is not None and self.ranks is not None:
            found.append(Conflict("the list of hosts gives the number of ranks; leave ranks out", "ranks"))
        if self.redraw and self.rule != "random":
            found.append(Conflict("only rule random uses redraw; leave it out", "redraw"))
        raise_all(found)
        return self


class LinkSettings(Section):
    """What happens to packets that leave by a port of a switch or host.

    `loss` and `corruption` are the parts of them that are lost and damaged. Packets that find more than `mark_above`
    bytes in the queue of the port get an ECN mark. All wait for `delay`; the part `reorder` of them waits up to
    `late_by` longer.
    """

    loss: Share = 0.0
    corruption: Share = 0.0
    mark_above: Bytes | None = None
    delay: Annotated[Seconds, Field(le=0.1)] = 0.0
    reorder: Share = 0.0
    late_by: Annotated[Seconds, Field(le=0.1)] = 0.0

    @model_validator(mode="after")
    def _reorder_by(self) -> "LinkSettings":
        if (self.reorder > 0) != (self.late_by > 0):
            raise ValueError("reorder needs late_by, the longest time by which a packet is late, and late_by reorder")
        return self

    @property
    def what(self) -> str:
        """The settings in words, for reports and messages."""
        said = [f"{name} {100 * part:g} %" for name in ("loss", "corruption") if (part := getattr(self, name))]
        if self.mark_above is not None:
            said.append(f"marks above {self.mark_above:,} B")
        if self.delay:
            said.append(f"delay {1e6 * self.delay:g} us")
        if self.reorder:
            said.append(f"reorder {100 * self.reorder:g} % by {1e6 * self.late_by:g} us")
        return ", ".join(said) or "no faults"


OF_ROUTERS = ("revive", "drain", "undrain", "reset")
"""Kinds of events that only routers have."""


class Event(Section):
    """A change of the fabric or of the path service, `at_s` seconds after the start of every run.

    Exactly one of them is given beside `at_s` and `part`. `cut`, `degrade` and `mend` name a link by a switch port; a
    degraded link keeps `part` of its rate. `swap` names a port of an optical switch of a direct-connect fabric: another
    NIC of the host there takes the place of the one that is plugged into it. `kill` names the switch of a rail, which
    dies; other rails and the HB domains then carry what it did. On fabric routed it names any router, and `revive`
    brings it back; `drain` lets a router's neighbours send around it, until `undrain`; `reset` resets the BGP session
    at a port. `links` has new settings for ports, as in `Spec`. `path_service` kills the path service, starts it again,
    or does both, in runs of policies that use it. At the end of every run all links and routers are as at its start.
    """

    at_s: float = Field(ge=0)
    cut: str | None = None
    degrade: str | None = None
    part: float | None = Field(default=None, gt=0, lt=1)
    mend: str | None = None
    swap: str | None = None
    kill: str | None = None
    revive: str | None = None
    drain: str | None = None
    undrain: str | None = None
    reset: str | None = None
    links: dict[str, LinkSettings] | None = Field(default=None, min_length=1)
    path_service: Literal["kill", "start", "restart"] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "Event":
        found = []
        kinds = [name for name in type(self).model_fields if name not in ("at_s", "part")]
        if sum(getattr(self, name) is not None for name in kinds) != 1:
            found.append(Conflict(f"give exactly one of {', '.join(kinds[:-1])} and {kinds[-1]}"))
        if (self.degrade is None) != (self.part is None):
            found.append(
                Conflict("degrade needs part, the part of the link's rate that remains, and part needs degrade")
            )
        raise_all(found)
        return self

    @property
    def link(self) -> str | None:
        """The switch port that names the link; None for events of a switch or the path service, and new settings."""
        return self.cut or self.degrade or self.mend

    @property
    def what(self) -> str:
        """The event in words, for reports and messages."""
        if self.path_service is not None:
            return f"{self.path_service} path service"
        if self.links is not None:
            return "; ".join(f"set {port} to {settings.what}" for port, settings in self.links.items())
        for name in ("swap", "kill", *OF_ROUTERS):
            if (where := getattr(self, name)) is not None:
                return f"{name} {where}"
        if self.degrade is not None:
            return f"degrade {self.degrade} to {self.part:g}"
        return f"cut {self.cut}" if self.cut is not None else f"mend {self.mend}"


def _topology_kind(value: object) -> str:
    is_file = "file" in value if isinstance(value, dict) else isinstance(value, TopologyFile)
    return "topology file" if is_file else "topology in place"


AnyTopology = Annotated[
    Annotated[TopologyFile, Tag("topology file")] | Annotated[TopologySpec, Tag("topology in place")],
    Discriminator(_topology_kind),
]


class Spec(Section):
    """A whole spec file. docs/spec.md says what each key means to a run."""

    name: str = Field(pattern=NAME, max_length=80)
    """Name of the result folder."""
    topology: AnyTopology
    """Hosts, switches and links: a generator such as `leaf_spine`, a `file`, or all of them written out."""
    fabric: FabricName = "mininet"
    """What the experiment runs on: real packets (`mininet`, `routed`, `softroce`) or a model (`fluid`, `packet`)."""
    workload: AnyWorkload
    """What the ranks send: `kind`, and the keys of that kind."""
    placement: Placement = Placement()
    """The host of each rank, by a rule or by name."""
    jobs: int | list[int] | dict[JobName, int] = 1
    """Jobs that share the ranks: their number, a list of their sizes, or sizes by name."""
    policies: list[Policy] = Field(min_length=1)
    """What is compared. Each policy runs once with each seed."""
    seeds: int | list[int] = 1
    """How many seeds (1, 2, ..), or a list of them."""
    nic: str = "nic0"
    """The NIC that carries the traffic, on every host."""
    local_nic: str | None = None
    """A second NIC, used between hosts whose NICs of that name are on one switch."""
    fused_nics: list[str] = Field(default_factory=list, max_length=4)
    """Two to four NICs that act as one on every host, in place of `nic`."""
    path_mtu: Literal[256, 512, 1024, 2048, 4096] | None = None
    """Payload bytes per packet, at most. The default is the largest that fits the route."""
    pinning: Literal["hash", "rules", "measured", "srv6"] | None = None
    """How source ports choose paths. The default is `measured` on fabric `routed`, else `hash`."""
    links: dict[str, LinkSettings] = Field(default_factory=dict)
    """Faults of links, by the port by which packets leave."""
    events: list[Event] = Field(default_factory=list)
    """What happens during every run."""
    timeouts: Timeouts = Timeouts()
    """Seconds until a phase has failed."""
    when_busy: Literal["warn", "refuse", "repeat"] = "warn"
    """What to do when the machine was too busy for the times of a run to be trusted."""
    pcap: list[str] = Field(default_factory=list)
    """Switch ports, such as `leaf1:5`, whose packets are captured."""
    fluid: FluidSettings = FluidSettings()
    """Settings of fabric `fluid`."""
    packet: PacketSettings = PacketSettings()
    """Settings of fabric `packet`."""
    routers: RouterSettings = RouterSettings()
    """Settings of fabric `routed`."""
    optical: Optical | None = None
    """Optical circuits."""
    openflow: OpenFlowSettings | None = None
    """An os-ken app of your own that programs the switches."""

    @field_validator("name")
    @classmethod
    def _not_latest(cls, name: str) -> str:
        if name == "latest":
            raise Conflict("'latest' is the name of the link to the newest results; choose another name")
        return name

    @field_validator("policies")
    @classmethod
    def _distinct_names(cls, policies: list[Policy]) -> list[Policy]:
        names = [policy.name for policy in policies]
        found = [index for index, name in enumerate(names) if name in names[:index]]
        raise_all([Conflict(f"another policy is called {names[index]!r} already", index, "name") for index in found])
        return policies

    @field_validator("seeds")
    @classmethod
    def _distinct_seeds(cls, seeds: int | list[int]) -> int | list[int]:
        if isinstance(seeds, int):
            if not 1 <= seeds <= SEEDS_MAX:
                raise Conflict(f"give the number of seeds, 1 to {SEEDS_MAX}, or list them")
        elif not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise Conflict("a list of seeds needs distinct numbers, none below 0")
        return seeds

    @property
    def fabric_kind(self) -> FabricKind:
        """What the fabric has."""
        return FABRICS[self.fabric]

    @property
    def measures(self) -> bool:
        """Whether hosts measure for a path service which paths their ports take."""
        if self.pinning is not None:
            return self.pinning == "measured"
        return self.fabric_kind.routers and any(policy.needs_service for policy in self.policies)

    @property
    def switches_pin(self) -> Pinning:
        """What source ports choose paths by at the switches."""
        return "rules" if self.pinning == "rules" else "hash"

    @property
    def set_ports(self) -> frozenset[str]:
        """The ports that have settings of `links`, from the start or by an event."""
        return frozenset(self.links).union(*(event.links or {} for event in self.events))
