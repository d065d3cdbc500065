# SPDX-License-Identifier: Apache-2.0
"""Topologies as plain data: hosts with NICs, switches with roles, and links between numbered ports.

All values are immutable and validated on construction, so forwarding, prediction and emulation need not check them. A
topology describes the cables, not their state: a failed link is an argument of `netmodel.forwarding`, not a change of
the topology.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from netmodel.flow import Address
from netmodel.located import LocatedError, Location, raise_all

Role: TypeAlias = Literal["leaf", "spine", "agg", "core", "ocs"]
"""The role of a switch. `leaf`: it has hosts. `spine`: it joins leaves (or, in a fabric written by hand, any switches
below it). `agg`: with three tiers, it joins the leaves of a pod to cores. `core`: it joins pods. `ocs`: an optical
circuit switch, which does not forward by address."""

ROLES: tuple[Role, ...] = get_args(Role)

MTU_BYTES_MIN = 576
"""Smallest MTU accepted: every IPv4 host accepts datagrams of this size (RFC 791, section 3.1)."""
MTU_BYTES_MAX = 65535
"""Largest MTU accepted: the maximum of the IPv4 total-length field (RFC 791, section 3.1)."""
RATE_BPS_MAX = 10**15
"""Largest link rate accepted (1 Pbit/s). A larger value is probably a wrong unit."""
DELAY_S_MAX = 1.0
"""Largest delay of a link accepted, in seconds. A larger value is probably a wrong unit."""

LINKS_MAX = 1_000_000
"""Largest number of links that builders make. A larger topology is probably a mistake, and would exhaust memory."""

_U64_MAX = 2**64 - 1
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class TopologyError(LocatedError):
    """A topology that contradicts itself, in one sentence.

    `where` is the place of the mistake as keys and indices into the topology, for example `("hosts", 3, "name")`. It is
    empty where the argument of a function is wrong. `others` has all further mistakes in the same topology.
    """


@dataclass(frozen=True, slots=True, order=True)
class PortRef:
    """One port of one node: `node` is a host's or switch's name, `port` counts from 1 (a host's NIC i is port i + 1).

    As an element of a path it stands for the link that leaves the node by this port.
    """

    node: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "PortRef":
        """The port that `str` writes as "NODE:PORT". Raises ValueError with how to write it.

        The number is one to five decimal digits; a topology checks whether the node has such a port.
        """
        node, colon, port = text.rpartition(":")
        if not (colon and node and port.isascii() and port.isdecimal() and len(port) <= 5):
            raise ValueError(f"{text!r} is not a port: write it like 'leaf1:3'")
        return cls(node, int(port))

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface of a host: its name within the host ("nic0", "nic1", ..), IP address and MAC.

    The MAC is six lower-case hexadecimal bytes with colons.
    """

    name: str
    address: Address
    mac: str


@dataclass(frozen=True, slots=True)
class Host:
    """An end host. NIC i of `nics` is port i + 1. Routes end at a host: none leads through it to another one."""

    name: str
    nics: tuple[Nic, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch. `dpid` is its OpenFlow datapath identifier (1 .. 2**64 - 1).

    `hash_seed` (u64) seeds the switch's choice among equal paths; for Open vSwitch it is the select group's
    `selection_method_param`. `derived_hash_seed` gives the usual value.

    `interfaces` has ports with the names by which the switch itself calls them, such as ``Ethernet1/5/1``, by port.
    """

    name: str
    role: Role
    dpid: int
    hash_seed: int
    interfaces: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex cable between two ports, with `rate_bps` bits per second in each direction.

    `delay_s` is the time that each bit is on the way, in seconds and in each direction. None: nobody has given it, so
    models take one of their own for such links, and emulated fabrics add none.
    """

    a: PortRef
    b: PortRef
    rate_bps: int
    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Index:
    """Look-up tables derived from a topology's tuples. They are not part of its value."""

    hosts: dict[str, Host]
    switches: dict[str, Switch]
    nic_ports: dict[Address, tuple[Host, PortRef]]
    links: dict[PortRef, Link]


@dataclass(frozen=True, slots=True)
class Topology:
    """A whole fabric as cabled. All its links share one MTU (`mtu_bytes`: the largest IP packet, in bytes).

    Raises TopologyError, with all mistakes at once, when

    - names, addresses, MACs, dpids or ports repeat, or IPv4 and IPv6 addresses are mixed;
    - a host has no NIC, or a switch an unknown role;
    - a link ends at a node or port that does not exist, or joins two hosts or a switch to itself;
    - a rate, delay, MTU, dpid, seed, name or MAC is out of range or malformed.
    """

    name: str
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    mtu_bytes: int
    # A frozen class with slots cannot have cached properties, so the tables are made once, during validation.
    _index: _Index = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: list[TopologyError] = []
        _check_name(self.name, "topology", ("name",), found)
        if not MTU_BYTES_MIN <= self.mtu_bytes <= MTU_BYTES_MAX:
            found.append(
                TopologyError(
                    f"mtu_bytes is {self.mtu_bytes}, but must lie in {MTU_BYTES_MIN}..{MTU_BYTES_MAX}", ("mtu_bytes",)
                )
            )
        hosts, nic_ports = _index_hosts(self.hosts, found)
        switches = _index_switches(self.switches, hosts, found)
        links = _index_links(self.links, hosts, switches, found)
        raise_all(found)
        object.__setattr__(self, "_index", _Index(hosts, switches, nic_ports, links))

    def __hash__(self) -> int:
        # Topologies are cache keys: hashing must take constant time for large ones. Equality stays exact.
        return hash((self.name, len(self.hosts), len(self.switches), len(self.links), self.mtu_bytes))

    @property
    def ipv6(self) -> bool:
        """Whether addresses are IPv6 addresses; all are of one family."""
        return self.hosts[0].nics[0].address.version == 6 if self.hosts else False

    @property
    def ip_header_bytes(self) -> int:
        """Bytes of the IP header of a packet, without options."""
        return 40 if self.ipv6 else 20

    def host(self, name: str) -> Host:
        """The host called `name`. Raises KeyError with a sentence."""
        try:
            return self._index.hosts[name]
        except KeyError:
            raise KeyError(f"topology {self.name!r} has no host {name!r}") from None

    def switch(self, name: str) -> Switch:
        """The switch called `name`. Raises KeyError with a sentence."""
        try:
            return self._index.switches[name]
        except KeyError:
            raise KeyError(f"topology {self.name!r} has no switch {name!r}") from None

    def has_host(self, name: str) -> bool:
        """Whether a host is called `name` (a node that is not a host is a switch)."""
        return name in self._index.hosts

    def host_of(self, address: Address) -> Host:
        """The host that owns `address`. Raises KeyError with a sentence."""
        return self._nic_port(address)[0]

    def port_of(self, address: Address) -> PortRef:
        """The host port whose NIC owns `address`. Raises KeyError with a sentence."""
        return self._nic_port(address)[1]

    def link_at(self, port: PortRef) -> Link:
        """The link plugged into `port`. Raises KeyError with a sentence."""
        try:
            return self._index.links[port]
        except KeyError:
            raise KeyError(f"no link of topology {self.name!r} is plugged into port {port}") from None

    def peer(self, port: PortRef) -> PortRef:
        """The port at the other end of the link in `port`. Raises KeyError with a sentence."""
        link = self.link_at(port)
        return link.b if link.a == port else link.a

    def linked_ports(self) -> Iterator[PortRef]:
        """Every port with a link in it, both ends of each link, in the order of `links`."""
        return iter(self._index.links)

    def _nic_port(self, address: Address) -> tuple[Host, PortRef]:
        try:
            return self._index.nic_ports[address]
        except KeyError:
            raise KeyError(f"no host of topology {self.name!r} has the address {address}") from None


def derived_hash_seed(dpid: int) -> int:
    """The usual hash seed of switch `dpid`: a u64, distinct for distinct u64 dpids.

    It is the SplitMix64 output function (Steele, Lea and Flood, OOPSLA 2014), a bijection on 64 bits, after one step
    of its Weyl sequence. Neighbouring dpids must not give related seeds: if a spine hashed as its leaf did, it would
    repeat the leaf's choice for every flow (hash polarisation).
    """
    if not 0 <= dpid <= _U64_MAX:
        raise TopologyError(f"dpid {dpid} does not fit 64 bits")
    z = (dpid + 0x9E3779B97F4A7C15) & _U64_MAX
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _U64_MAX
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _U64_MAX
    return z ^ (z >> 31)


def derived_mac(address: Address) -> str:
    """The usual MAC of the NIC with `address`: 02:00 (locally administered), then the last 4 bytes of the address."""
    return "02:00:" + ":".join(f"{byte:02x}" for byte in address.packed[-4:])


def check_links(count: int) -> None:
    """Raises TopologyError if a builder would make more than `LINKS_MAX` links."""
    if count > LINKS_MAX:
        raise TopologyError(f"these numbers make {count:,} links, and {LINKS_MAX:,} are the most; take smaller ones")


def _check_name(name: str, kind: str, where: Location, found: list[TopologyError]) -> None:
    if not _NAME.fullmatch(name):
        found.append(
            TopologyError(
                f"{kind} name {name!r} must start with a letter and hold at most 63 letters, digits, '_', '.' and '-'",
                where,
            )
        )


def _index_hosts(
    hosts: Iterable[Host], found: list[TopologyError]
) -> tuple[dict[str, Host], dict[Address, tuple[Host, PortRef]]]:
    by_name: dict[str, Host] = {}
    by_address: dict[Address, tuple[Host, PortRef]] = {}
    macs: set[str] = set()
    for i, host in enumerate(hosts):
        _check_name(host.name, "host", ("hosts", i, "name"), found)
        if host.name in by_name:
            found.append(TopologyError(f"two hosts are called {host.name!r}", ("hosts", i, "name")))
        by_name[host.name] = host
        if not host.nics:
            found.append(TopologyError(f"host {host.name!r} has no NIC", ("hosts", i, "nics")))
        if len({nic.name for nic in host.nics}) < len(host.nics):
            found.append(TopologyError(f"two NICs of host {host.name!r} have the same name", ("hosts", i, "nics")))
        for k, nic in enumerate(host.nics):
            where = ("hosts", i, "nics", k)
            _check_name(nic.name, "NIC", (*where, "name"), found)
            if nic.address in by_address:
                other = by_address[nic.address][0].name
                found.append(
                    TopologyError(
                        f"hosts {other!r} and {host.name!r} both have address {nic.address}", (*where, "address")
                    )
                )
            if not _MAC.fullmatch(nic.mac):
                found.append(
                    TopologyError(
                        f"MAC {nic.mac!r} of host {host.name!r} must be written like '02:00:0a:00:00:01'",
                        (*where, "mac"),
                    )
                )
            elif nic.mac in macs and nic.address not in by_address:  # a repeated address already reports its MAC
                found.append(TopologyError(f"two NICs have the MAC {nic.mac!r}", (*where, "mac")))
            macs.add(nic.mac)
            if by_address and nic.address.version != next(iter(by_address)).version:
                found.append(
                    TopologyError(
                        f"host {host.name!r} has address {nic.address}, but all addresses must be IPv4 or all IPv6",
                        (*where, "address"),
                    )
                )
            by_address[nic.address] = (host, PortRef(host.name, k + 1))
    return by_name, by_address


def _index_switches(
    switches: Iterable[Switch], hosts: dict[str, Host], found: list[TopologyError]
) -> dict[str, Switch]:
    by_name: dict[str, Switch] = {}
    by_dpid: dict[int, str] = {}
    for i, switch in enumerate(switches):
        _check_name(switch.name, "switch", ("switches", i, "name"), found)
        if switch.name in by_name or switch.name in hosts:
            found.append(TopologyError(f"two nodes are called {switch.name!r}", ("switches", i, "name")))
        if switch.role not in ROLES:
            found.append(
                TopologyError(
                    f"role {switch.role!r} of switch {switch.name!r} is none of {', '.join(ROLES)}",
                    ("switches", i, "role"),
                )
            )
        if not 1 <= switch.dpid <= _U64_MAX:
            found.append(
                TopologyError(
                    f"dpid {switch.dpid} of switch {switch.name!r} is not in 1..2**64-1", ("switches", i, "dpid")
                )
            )
        if switch.dpid in by_dpid:
            found.append(
                TopologyError(
                    f"switches {by_dpid[switch.dpid]!r} and {switch.name!r} both have dpid {switch.dpid}",
                    ("switches", i, "dpid"),
                )
            )
        if not 0 <= switch.hash_seed <= _U64_MAX:
            found.append(
                TopologyError(
                    f"hash_seed {switch.hash_seed} of switch {switch.name!r} is not in 0..2**64-1",
                    ("switches", i, "hash_seed"),
                )
            )
        names = [name for _, name in switch.interfaces]
        for name in {name for name in names if names.count(name) > 1}:
            found.append(
                TopologyError(
                    f"two ports of switch {switch.name!r} have the interface {name!r}", ("switches", i, "interfaces")
                )
            )
        by_name[switch.name] = switch
        by_dpid[switch.dpid] = switch.name
    return by_name


def _index_links(
    links: Iterable[Link], hosts: dict[str, Host], switches: dict[str, Switch], found: list[TopologyError]
) -> dict[PortRef, Link]:
    by_port: dict[PortRef, Link] = {}
    for i, link in enumerate(links):
        if not 0 < link.rate_bps <= RATE_BPS_MAX:
            found.append(
                TopologyError(
                    f"the rate of link {link.a} to {link.b} is {link.rate_bps} bit/s, but must lie in "
                    f"1..{RATE_BPS_MAX}",
                    ("links", i, "rate"),
                )
            )
        if link.delay_s is not None and not 0 <= link.delay_s <= DELAY_S_MAX:
            found.append(
                TopologyError(
                    f"the delay of link {link.a} to {link.b} is {link.delay_s} s, but must lie in 0..{DELAY_S_MAX:g}",
                    ("links", i, "delay"),
                )
            )
        for side, end in (("a", link.a), ("b", link.b)):
            where = ("links", i, side)
            if end.node in hosts:
                if not 1 <= end.port <= len(hosts[end.node].nics):
                    found.append(
                        TopologyError(
                            f"a link ends at {end}, but the ports of host {end.node!r} (one per NIC) are"
                            f" 1..{len(hosts[end.node].nics)}",
                            where,
                        )
                    )
            elif end.node not in switches:
                found.append(TopologyError(f"a link ends at {end}, but there is no host or switch {end.node!r}", where))
            elif not 1 <= end.port <= 65535:
                found.append(TopologyError(f"a link ends at {end}, but switch ports are 1..65535", where))
            if end in by_port:
                found.append(TopologyError(f"two links are plugged into port {end}", where))
            by_port[end] = link
        if link.a.node in hosts and link.b.node in hosts:
            found.append(
                TopologyError(
                    f"link {link.a} to {link.b} joins two hosts, but a link needs a switch at one end", ("links", i)
                )
            )
        if link.a.node == link.b.node:
            found.append(
                TopologyError(f"link {link.a} to {link.b} joins switch {link.a.node!r} to itself", ("links", i))
            )
    return by_port
