# SPDX-License-Identifier: Apache-2.0
"""Experiment specs: what a YAML file may say, and every check that can be made before anything is started.

`load` gives an `Experiment`: the spec as written, beside what follows from it (topology, the host of each rank).
Whatever is wrong with a file is a `netmodel.SpecError` of one sentence with the line; nothing privileged has happened
by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag, model_validator

from netmodel import PortRef, SpecError, Topology, TopologySpec, load_topology, load_yaml
from testbed.errors import InputError, Misfit
from testbed.placement import PlacementError, Rule, leaf_of, place
from testbed.workloads import AnyWorkload

PolicyName = Literal["ecmp", "pinned", "adaptive"]

LARGEST_HEADERS_BYTES = 20 + 8 + 12 + 16 + 4 + 4
"""What shares an IP packet with the payload at most: IPv4, UDP, BTH, RETH, immediate, ICRC."""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TopologyFile(_Section):
    """A topology in a file of its own; a relative name is relative to the spec's folder."""

    file: str


class Placement(_Section):
    """The hosts of the ranks: by name, or by a rule and a number (all hosts unless said)."""

    hosts: list[str] | None = Field(default=None, min_length=2)
    rule: Rule | None = None
    ranks: int | None = Field(default=None, ge=2)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_of_two(self) -> "Placement":
        if (self.hosts is None) == (self.rule is None):
            raise ValueError("give either hosts or rule")
        if self.hosts is not None and self.ranks is not None:
            raise Misfit("goes with rule; a list of hosts has its own length", "ranks")
        return self


class Policy(_Section):
    """One way to choose paths. `m` is the number of lanes; the last two override the engine's own choice."""

    name: str = Field(pattern=_NAME, max_length=40)
    policy: PolicyName
    m: int = Field(default=1, ge=1, le=256)
    flowlet_bytes: int | None = Field(default=None, gt=0)
    mice_bytes: int | None = Field(default=None, ge=0)


class Timeouts(_Section):
    """Seconds after which a phase counts as failed."""

    start_s: float = Field(default=60.0, gt=0)
    connect_s: float = Field(default=30.0, gt=0)
    run_s: float = Field(default=120.0, gt=0)


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
    fabric: Literal["mininet", "fluid", "softroce"] = "mininet"
    workload: AnyWorkload
    placement: Placement
    policies: list[Policy] = Field(min_length=1)
    seeds: int | list[int] = 1
    nic: str = "nic0"
    path_mtu: Literal[256, 512, 1024, 2048, 4096] | None = None
    timeouts: Timeouts = Timeouts()
    pcap: list[str] = []

    @model_validator(mode="after")
    def _consistent(self) -> "Spec":
        if self.name == "latest":
            raise Misfit("'latest' is the name of the link to the newest results; take another", "name")
        if self.fabric != "mininet":
            raise Misfit(f"{self.fabric} is not part of this version; use mininet", "fabric")
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
class Experiment:
    """A checked spec and what it stands for."""

    spec: Spec
    topology: Topology
    hosts: tuple[str, ...]
    """By rank."""
    seeds: tuple[int, ...]
    pcap: tuple[PortRef, ...]
    nic: int
    """Index of the NIC that carries the traffic, on every host of the placement."""

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return len(self.hosts)

    def address(self, rank: int) -> str:
        """The IPv4 address of a rank's NIC."""
        return str(self.topology.host(self.hosts[rank]).nics[self.nic].address)

    def line_rate_bps(self, rank: int) -> int:
        """The rate of the link that a rank's NIC is plugged into."""
        return self.topology.link_at(PortRef(self.hosts[rank], self.nic + 1)).rate_bps


def load(path: Path, *, policies: Sequence[str] = (), seeds: int | None = None) -> Experiment:
    """Read a spec and check all that can be checked without privileges.

    `policies` keeps only those of that name; `seeds` replaces the spec's seeds by that many.

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
    try:
        return check(spec)
    except Misfit as misfit:
        _tell(misfit, path)


def check(spec: Spec) -> Experiment:
    """What `spec` stands for. Raises Misfit, or SpecError for a topology file."""
    topology = load_topology(spec.topology.file) if isinstance(spec.topology, TopologyFile) else spec.topology.topology
    hosts = _hosts(spec.placement, topology)
    experiment = Experiment(
        spec=spec,
        topology=topology,
        hosts=hosts,
        seeds=tuple(range(1, spec.seeds + 1)) if isinstance(spec.seeds, int) else tuple(spec.seeds),
        pcap=tuple(_port(text, topology, index) for index, text in enumerate(spec.pcap)),
        nic=_nic_index(spec.nic, topology, hosts),
    )
    try:
        spec.workload.check_ranks(len(hosts))
    except Misfit as misfit:
        raise Misfit(str(misfit), "workload", *misfit.where) from misfit
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


def _only(spec: Spec, names: Sequence[str]) -> Spec:
    known = [policy.name for policy in spec.policies]
    for name in names:
        if name not in known:
            raise InputError(f"the spec has no policy {name!r}; it has {', '.join(known)}")
    return spec.model_copy(update={"policies": [policy for policy in spec.policies if policy.name in names]})


def _hosts(placement: Placement, topology: Topology) -> tuple[str, ...]:
    if placement.rule is not None:
        ranks = placement.ranks or len(topology.hosts)
        try:
            return place(topology, placement.rule, ranks, placement.seed)
        except PlacementError as error:
            raise Misfit(str(error), "placement") from error
    hosts = tuple(placement.hosts or ())
    for index, host in enumerate(hosts):
        if not topology.has_host(host):
            raise Misfit(f"topology {topology.name} has no host {host!r}", "placement", "hosts", index)
        if host in hosts[:index]:
            raise Misfit(f"host {host} has a rank already, and each host runs one", "placement", "hosts", index)
    return hosts


def _nic_index(nic: str, topology: Topology, hosts: tuple[str, ...]) -> int:
    """The index that `nic` has on every one of `hosts`."""
    indices = set()
    for host in hosts:
        names = [candidate.name for candidate in topology.host(host).nics]
        if nic not in names:
            raise Misfit(f"host {host} has no device {nic!r}; it has {', '.join(names)}", "nic")
        indices.add(names.index(nic))
    if len(indices) > 1:
        raise Misfit(f"{nic} is not at the same place on every host", "nic")
    return indices.pop()


def _port(text: str, topology: Topology, index: int) -> PortRef:
    """A switch port written SWITCH:NUMBER."""
    node, _, number = text.partition(":")
    try:
        topology.switch(node)
        topology.link_at(PortRef(node, int(number)))
    except (ValueError, KeyError):
        raise Misfit(f"{text!r} is no connected switch port; write it like 'leaf1:5'", "pcap", index) from None
    return PortRef(node, int(number))


__all__ = [
    "Experiment",
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
