# SPDX-License-Identifier: Apache-2.0
"""The interface of arrangements: what is set up on a fabric for jobs, beyond the shortest-path routes of its switches.

An experiment has any number of arrangements. Planning, the simulated fabrics, runs with real packets, the analysis and
the report ask all of them and know none of them. To add one: a subclass of `Arrangement` in a module of its own, and
the place in `testbed.spec` that makes it from the keys of a spec.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias

from netmodel import Link, Path, PortRef
from sdn.failover.detours import Detours
from sdn.openflow.steering import Steering
from sdn.topoopt.relays import Way

if TYPE_CHECKING:
    from emul import MininetFabric

JobHosts: TypeAlias = Mapping[str, tuple[str, ...]]
"""By job: its hosts, in the order of its ranks. Jobs are in the order of the experiment."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Payload that a run sends from one host to another by one route, where an arrangement decides the paths."""

    source: str
    destination: str
    way: Way
    bytes: int


@dataclass(frozen=True, eq=False)
class RunTraffic:
    """What one run sent, for the words of an arrangement about it."""

    policy: str
    """The name of its policy in the spec."""
    sent: Mapping[tuple[str, str], int]
    """Payload bytes by source and destination host."""
    carried: Sequence[Carried]
    """Empty where no arrangement decides the paths."""
    counted: Mapping[str, int]
    """The bytes that each port sent, headers included, by the port's name."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report. A heading may have several lines; a cell with several lines is a list."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str | Sequence[str]]]
    folded: str | None = None
    """The words that unfold the table; None where it is always shown."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a report, after what the report says about `after`."""

    after: Literal["jobs", "links", "placement"]
    title: str
    tables: Sequence[Table]
    lead: str = ""
    """A sentence or two before the tables."""
    note: str = ""
    """What the numbers mean, after the tables."""


@dataclass(frozen=True, slots=True)
class FibreState:
    """What has happened to the cables of a fabric in a run."""

    dead: frozenset[Link] = frozenset()
    """The cables that are dead."""
    swapped: tuple[tuple[PortRef, frozenset[Link]], ...] = ()
    """The ports of optical switches whose host has been given circuits of another NIC, in order.

    Each with the cables that were dead at that time: they decided which NIC it is.
    """


class Arranger:
    """Puts an arrangement into effect on a fabric that carries packets. By default its methods do nothing.

    `prepare` is called once, and `before_run` and `killed` in every run. What has to be undone at the end of a run is
    pushed onto `undo`, which runs in reverse order, however the run ends.
    """

    def prepare(self, dying: Collection[str]) -> None:
        """The fabric is up, and no run has begun. `dying` are the switches that events of every run will kill."""

    def before_run(self, hosts: JobHosts, undo: ExitStack) -> None:
        """A run is about to begin, with its jobs on these hosts."""

    def killed(self, dead: Collection[str], undo: ExitStack) -> None:
        """An event has just killed a switch. `dead` are all that events of this run have killed."""

    def receivers(self, cable: Link) -> Collection[PortRef]:
        """The NICs of the present run that receive data across a cable, as far as an arrangement decides paths."""
        return ()

    def fibres_changed(self, state: FibreState) -> None:
        """An event has just cut or mended a link, or asks for a swap of ports. The state is that of this run."""


class DecidedPaths(Protocol):
    """The paths of all packets, decided before a run."""

    def way(self, source: str, destination: str, route: int) -> Way:
        """The hosts that forward data from one host to another, and by which ports they do."""
        ...

    def path(self, source: PortRef, destination: PortRef) -> Path:
        """The egress ports of packets from one NIC to another. Raises KeyError."""
        ...


@dataclass(frozen=True, eq=False)
class Repair:
    """How packets go after cables have failed or circuits have changed in a run."""

    paths: DecidedPaths
    """The paths of all packets; it raises KeyError for two NICs between which there is none."""
    arrivals: Mapping[PortRef, PortRef]
    """By NIC of a host: the NIC at which its light arrives, over live cables."""
    change_s: float
    """How long changing circuits are dark, in seconds."""


class Arrangement:
    """Something that is set up on a fabric for jobs. Every method here says that there is nothing special.

    Hosts are named, ports are those of the experiment's topology, and a route numbers the connections of a pair of
    hosts from 0.
    """

    SEVERAL_NICS: ClassVar[bool] = False
    """Different pairs of hosts use different NICs."""
    HAS_DETOURS: ClassVar[bool] = False
    """There are ways around a switch that has died."""
    ANY_NIC: ClassVar[bool] = False
    """Data for one NIC of a host may come in by another."""

    def at(self, hosts: JobHosts) -> Self:
        """The arrangement for jobs on these hosts. Raises ValueError, which says why, where it is impossible."""
        return self

    def nics(self, source: str, destination: str, route: int = 0) -> tuple[int, int] | None:
        """Indices of the NICs by which data go: the sender's and the receiver's. None: those of the experiment."""
        return None

    def fused_nics(self) -> tuple[int, ...]:
        """Indices of the NICs that act as one on every host. Empty: a device has one NIC."""
        return ()

    def shares(self, source: str, destination: str) -> tuple[float, ...] | None:
        """By route: the part of the data that it is to carry; they add up to 1. None: there is one route."""
        return None

    def decided_paths(self) -> DecidedPaths | None:
        """The path of every packet, where it decides these, so that routes and UDP source ports do not matter."""
        return None

    def isolation(self) -> Steering | None:
        """The steering of switches that keeps its jobs apart, for policy `vclos`. None: it has none."""
        return None

    def detours(self, dead: Collection[str]) -> Detours:
        """The ways around these dead switches. Raises ValueError where there is none."""
        return Detours()

    def repaired(self, state: FibreState) -> Repair | None:
        """How packets go in this state of the cables. None: as switches' routes say."""
        return None

    def dead_links(self, cables: frozenset[Link]) -> frozenset[Link]:
        """The links of the experiment's topology that are dead when these cables of the fabric are."""
        return cables

    def on(self, fabric: "MininetFabric") -> Arranger:
        """What puts it into effect on a fabric that is up. A subclass names the part of the fabric that it needs."""
        return Arranger()

    def sections(self, runs: Iterable[RunTraffic]) -> Sequence[Section]:
        """What it adds to the report of these runs, which are sorted by policy."""
        return ()

    def summary(self, runs: Iterable[RunTraffic]) -> dict[str, Any]:
        """What it adds to a policy's entry in summary.json, from the runs of the policy."""
        return {}

    def outcome(self, policies: Sequence[Mapping[str, Any]]) -> str | None:
        """A sentence for the terminal about the policies' entries in summary.json. None: it has nothing to say."""
        return None
