# SPDX-License-Identifier: Apache-2.0
"""Topologies in YAML: either the parameters of a regular fabric, or a list of all hosts, switches and links.

    leaf_spine: {leaves: 4, spines: 4, hosts_per_leaf: 4, host_rate: 20 Mbit/s}
    clos: {pods: 2, leaves: 2, aggs: 2, cores_per_agg: 2, hosts_per_leaf: 4, host_rate: 20 Mbit/s}
    fat_tree: {k: 4, host_rate: 20 Mbit/s, planes: 2}
    rail_optimised: {domains: 4, gpus_per_domain: 4, rail_rate: 10 Mbit/s, hb_rate: 80 Mbit/s, spines: 4}
    rail_only: {domains: 4, gpus_per_domain: 4, rail_rate: 10 Mbit/s, hb_rate: 80 Mbit/s}
    direct_connect: {hosts: 8, degree: 2, rate: 20 Mbit/s}

or

    name: pair
    mtu_bytes: 9000
    hosts:
      - name: h1
        nics: [{address: 10.0.0.1}]
      - name: h2
        nics: [{address: 10.0.0.2}]
    switches:
      - {name: leaf1, role: leaf}
    links:
      - {a: "h1:1", b: "leaf1:1", rate: 20 Mbit/s}
      - {a: "h2:1", b: "leaf1:2", rate: 20 Mbit/s, delay: 5 us}

NIC names, MACs, dpids and hash seeds are optional. Their defaults are "nic<index>", `derived_mac`, the switch's
position from 1, and `derived_hash_seed`.
"""

import contextlib
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Any, Self, TypeAlias

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    model_validator,
)

from netmodel import flow
from netmodel.builders import leaf_spine
from netmodel.direct_connect_builder import direct_connect
from netmodel.planes import in_planes
from netmodel.rails import rail_only, rail_optimised
from netmodel.rates import RateBps, format_rate
from netmodel.three_tiers import clos, fat_tree
from netmodel.times import DelayS, format_seconds
from netmodel.topology import (
    Host,
    Link,
    Nic,
    PortRef,
    Role,
    Switch,
    Topology,
    TopologyError,
    derived_hash_seed,
    derived_mac,
)

DEFAULT_MTU_BYTES = 9000


def dump_topology(topology: Topology) -> str:
    """YAML with all hosts, switches and links. `load_topology` of it equals `topology`."""
    # The C emitter writes the same text about ten times faster.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(_document(topology), Dumper=dumper, sort_keys=False, default_flow_style=None, width=120)
    return str(text)


def _document(topology: Topology) -> dict[str, Any]:
    return {
        "name": topology.name,
        "mtu_bytes": topology.mtu_bytes,
        "hosts": [
            {
                "name": host.name,
                "nics": [{"name": nic.name, "address": str(nic.address), "mac": nic.mac} for nic in host.nics],
            }
            for host in topology.hosts
        ],
        "switches": [
            {"name": switch.name, "role": switch.role, "dpid": switch.dpid, "hash_seed": switch.hash_seed}
            | ({"interfaces": dict(switch.interfaces)} if switch.interfaces else {})
            for switch in topology.switches
        ],
        "links": [
            {"a": str(link.a), "b": str(link.b), "rate": format_rate(link.rate_bps)}
            | ({} if link.delay_s is None else {"delay": format_seconds(link.delay_s)})
            for link in topology.links
        ],
    }


def parse_port(value: object) -> PortRef:
    """A port, or the text of one. Raises ValueError with how to write it."""
    if isinstance(value, PortRef):
        return value
    if isinstance(value, str):
        return PortRef.parse(value)
    raise ValueError(f"{value!r} is not a port: write it like 'leaf1:3'")


def parse_address(value: object) -> flow.Address:
    """An IP address in text form; integers are refused. Raises ValueError with how to write it."""
    if isinstance(value, (IPv4Address, IPv6Address)):
        return value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return ip_address(value)
    raise ValueError(f"{value!r} is not an IP address: write it like '10.0.0.1' or 'fd00::1'")


Port: TypeAlias = Annotated[PortRef, BeforeValidator(parse_port, json_schema_input_type=str), PlainSerializer(str)]
Address: TypeAlias = Annotated[flow.Address, BeforeValidator(parse_address, json_schema_input_type=str)]


class _Spec(BaseModel):
    """Strict: a quoted number is not a number, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LeafSpineSpec(_Spec):
    """The arguments of `netmodel.leaf_spine` and `planes`. `fabric_rate` and `fabric_delay`: of leaf-to-spine links."""

    leaves: int
    spines: int
    hosts_per_leaf: int
    host_rate: RateBps
    fabric_rate: RateBps | None = None
    host_delay: DelayS | None = None
    fabric_delay: DelayS | None = None
    parallel_links: int = 1
    optical_switches: int = 0
    planes: int = 1
    ipv6: bool = False
    mtu_bytes: int = DEFAULT_MTU_BYTES
    name: str | None = None

    def build(self) -> Topology:
        """The topology. Raises TopologyError."""
        plane = leaf_spine(
            self.leaves,
            self.spines,
            self.hosts_per_leaf,
            self.host_rate,
            self.fabric_rate,
            self.parallel_links,
            self.mtu_bytes,
            host_delay_s=self.host_delay,
            fabric_delay_s=self.fabric_delay,
            optical_switches=self.optical_switches,
            ipv6=self.ipv6,
            name=self.name,
        )
        return in_planes(plane, self.planes, name=self.name)


class ClosSpec(_Spec):
    """The arguments of `netmodel.clos` and `planes`. `agg_..`: of links from leaf to agg; `core_..`: agg to core."""

    pods: int
    leaves: int
    aggs: int
    cores_per_agg: int
    hosts_per_leaf: int
    host_rate: RateBps
    agg_rate: RateBps | None = None
    core_rate: RateBps | None = None
    host_delay: DelayS | None = None
    agg_delay: DelayS | None = None
    core_delay: DelayS | None = None
    parallel_links: int = 1
    core_parallel_links: int | None = None
    planes: int = 1
    ipv6: bool = False
    mtu_bytes: int = DEFAULT_MTU_BYTES
    name: str | None = None

    def build(self) -> Topology:
        """The topology. Raises TopologyError."""
        plane = clos(
            self.pods,
            self.leaves,
            self.aggs,
            self.cores_per_agg,
            self.hosts_per_leaf,
            self.host_rate,
            self.agg_rate,
            self.core_rate,
            self.parallel_links,
            self.mtu_bytes,
            core_parallel_links=self.core_parallel_links,
            host_delay_s=self.host_delay,
            agg_delay_s=self.agg_delay,
            core_delay_s=self.core_delay,
            ipv6=self.ipv6,
            name=self.name,
        )
        return in_planes(plane, self.planes, name=self.name)


class FatTreeSpec(_Spec):
    """The arguments of `netmodel.fat_tree` and `planes`."""

    k: int
    host_rate: RateBps
    host_delay: DelayS | None = None
    agg_delay: DelayS | None = None
    core_delay: DelayS | None = None
    planes: int = 1
    ipv6: bool = False
    mtu_bytes: int = DEFAULT_MTU_BYTES
    name: str | None = None

    def build(self) -> Topology:
        """The topology. Raises TopologyError."""
        plane = fat_tree(
            self.k,
            self.host_rate,
            self.mtu_bytes,
            host_delay_s=self.host_delay,
            agg_delay_s=self.agg_delay,
            core_delay_s=self.core_delay,
            ipv6=self.ipv6,
            name=self.name,
        )
        return in_planes(plane, self.planes, name=self.name)


class _RailSpec(_Spec):
    """The arguments of both builders of fabrics with rails. `fabric_rate` is the rate of leaf-to-spine links.

    With `pods` above 1 there are three tiers; `spines` is then the number of aggs of a pod.
    """

    domains: int
    gpus_per_domain: int
    rail_rate: RateBps
    hb_rate: RateBps
    leaves_per_rail: int = 1
    pods: int = 1
    cores_per_agg: int = 1
    fabric_rate: RateBps | None = None
    core_rate: RateBps | None = None
    rail_delay: DelayS | None = None
    hb_delay: DelayS | None = None
    fabric_delay: DelayS | None = None
    core_delay: DelayS | None = None
    mtu_bytes: int = DEFAULT_MTU_BYTES
    name: str | None = None

    def _built_by(self, builder: Callable[..., Topology], spines: int) -> Topology:
        return builder(
            self.domains,
            self.gpus_per_domain,
            self.rail_rate,
            self.hb_rate,
            spines,
            self.leaves_per_rail,
            self.fabric_rate,
            self.mtu_bytes,
            pods=self.pods,
            cores_per_agg=self.cores_per_agg,
            core_rate_bps=self.core_rate,
            rail_delay_s=self.rail_delay,
            hb_delay_s=self.hb_delay,
            fabric_delay_s=self.fabric_delay,
            core_delay_s=self.core_delay,
            name=self.name,
        )


class RailOptimisedSpec(_RailSpec):
    """The arguments of `netmodel.rail_optimised`."""

    spines: int

    def build(self) -> Topology:
        """The topology. Raises TopologyError."""
        return self._built_by(rail_optimised, self.spines)


class RailOnlySpec(_RailSpec):
    """The arguments of `netmodel.rail_only`."""

    spines: int = 0

    def build(self) -> Topology:
        """The topology. Raises TopologyError."""
        return self._built_by(rail_only, self.spines)


def _of_one_host(address: flow.Address) -> flow.Address:
    """The address of a NIC. Raises ValueError for one that no host can be reached at from another."""
    for kind, what in {
        "is_unspecified": "the address of no host",
        "is_multicast": "a multicast address",
        "is_link_local": "a link-local address, which routers do not forward",
        "is_reserved": "reserved",
    }.items():
        if getattr(address, kind):
            raise ValueError(f"{address} is {what}: give the NIC an address like '10.0.0.1' or 'fd00::1'")
    return address


class NicSpec(_Spec):
    """A NIC. By default its name is derived from its index and its MAC from its address."""

    address: Annotated[Address, AfterValidator(_of_one_host)]
    mac: str | None = None
    name: str | None = None


class HostSpec(_Spec):
    """A host and its NICs, in the order of its ports."""

    name: str
    nics: list[NicSpec]


class SwitchSpec(_Spec):
    """A switch. By default its dpid and hash seed are derived from its position."""

    name: str
    role: Role
    dpid: int | None = None
    hash_seed: int | None = None
    interfaces: dict[int, str] = Field(default_factory=dict)
    """Ports by the names of the switch's own interfaces."""


class LinkSpec(_Spec):
    """A link between two ports written "NODE:PORT"."""

    a: Port
    b: Port
    rate: RateBps
    delay: DelayS | None = None


class DirectConnectSpec(_Spec):
    """The arguments of `netmodel.direct_connect`."""

    hosts: int
    degree: int
    rate: RateBps | list[RateBps]
    delay: DelayS | None = None
    look_ahead: bool = False
    mtu_bytes: int = DEFAULT_MTU_BYTES
    name: str | None = None

    def build(self) -> Topology:
        """The topology. Raises TopologyError."""
        return direct_connect(
            self.hosts,
            self.degree,
            self.rate,
            self.mtu_bytes,
            delay_s=self.delay,
            look_ahead=self.look_ahead,
            name=self.name,
        )


_BUILDERS = ("leaf_spine", "clos", "fat_tree", "rail_optimised", "rail_only", "direct_connect")
"""Fields of `TopologySpec` that each describe a whole topology."""


class TopologySpec(_Spec):
    """A topology as written in YAML; `topology` is what it stands for. Fits as a field of larger specs, too."""

    leaf_spine: LeafSpineSpec | None = None
    clos: ClosSpec | None = None
    fat_tree: FatTreeSpec | None = None
    rail_optimised: RailOptimisedSpec | None = None
    rail_only: RailOnlySpec | None = None
    direct_connect: DirectConnectSpec | None = None
    name: str | None = None
    mtu_bytes: int = DEFAULT_MTU_BYTES
    hosts: list[HostSpec] = Field(default_factory=list)
    switches: list[SwitchSpec] = Field(default_factory=list)
    links: list[LinkSpec] = Field(default_factory=list)

    _topology: Topology = PrivateAttr()

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """All hosts, switches and links of a topology."""
        return cls.model_validate(_document(topology))

    @property
    def topology(self) -> Topology:
        """The topology that the spec stands for."""
        return self._topology

    @model_validator(mode="after")
    def _build(self) -> Self:
        # The topology is built here so that its own validation errors get the file's lines.
        regular = {name: spec for name in _BUILDERS if (spec := getattr(self, name)) is not None}
        if not regular:
            self._topology = self._spelt_out()
            return self
        builder, spec = next(iter(regular.items()))
        stray = sorted(self.model_fields_set - {builder})
        if stray:
            raise TopologyError(f"give either {builder} or {stray[0]}, not both", (stray[0],))
        try:
            self._topology = spec.build()
        except TopologyError as error:
            raise error.below(builder) from None
        return self

    def _spelt_out(self) -> Topology:
        if self.name is None or not self.hosts:
            builders = ", ".join(_BUILDERS)
            raise TopologyError(f"a topology needs one of {builders}, or else name, hosts, switches and links")
        switches: list[Switch] = []
        for i, switch in enumerate(self.switches):
            dpid = i + 1 if switch.dpid is None else switch.dpid
            try:
                seed = derived_hash_seed(dpid) if switch.hash_seed is None else switch.hash_seed
            except TopologyError as error:
                raise TopologyError(str(error), ("switches", i, "dpid")) from None
            interfaces = tuple(sorted(switch.interfaces.items()))
            switches.append(Switch(switch.name, switch.role, dpid, seed, interfaces))
        return Topology(
            name=self.name,
            hosts=tuple(
                Host(
                    host.name,
                    tuple(
                        Nic(nic.name or f"nic{k}", nic.address, nic.mac or derived_mac(nic.address))
                        for k, nic in enumerate(host.nics)
                    ),
                )
                for host in self.hosts
            ),
            switches=tuple(switches),
            links=tuple(Link(link.a, link.b, link.rate, link.delay) for link in self.links),
            mtu_bytes=self.mtu_bytes,
        )
