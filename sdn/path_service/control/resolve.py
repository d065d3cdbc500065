# SPDX-License-Identifier: Apache-2.0
"""What the entries of operators mean on a topology. Pure.

An entry that names what the topology has no more, for example after a restart with another one, has no effect until
the topology has it again.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import ip_address

from netmodel import Host, Link, NoRouteError, PortRef, Topology, equal_cost_paths
from sdn.path_service.constraints import Constraints, PinnedPair, Via
from sdn.path_service.control.book import State
from sdn.path_service.links import links_named


def constraints_of(topology: Topology, state: State) -> tuple[Constraints, list[str]]:
    """What the entries ask for, and the sentences about those that the topology does not have."""
    dead: set[Link] = set()
    drained: set[Link] = set()
    pins: dict[PinnedPair, Via] = {}
    wrong = []
    for (kind, name), entry in state.items():
        try:
            if kind == "pin":
                src, dst = name.split(" ")
                pins |= dict.fromkeys(pairs(topology, src, dst), via_of(topology, entry.via))
            elif kind == "drain":
                drained.update(links_named(topology, name))
            else:
                dead.add(link_of(topology, name))
        except KeyError as error:
            wrong.append(str(error.args[0]))
    return Constraints(frozenset(dead), frozenset(drained), pins), wrong


def dead_name(link: Link) -> str:
    """The name of a dead link: both of its ends."""
    return f"{link.a} {link.b}"


def link_of(topology: Topology, name: str) -> Link:
    """The link of a `dead_name`. Raises KeyError, with a sentence."""
    here, there = name.split(" ")
    with suppress(KeyError, ValueError):
        link = topology.link_at(PortRef.parse(here))
        if {str(link.a), str(link.b)} == {here, there}:
            return link
    raise KeyError(f"{topology.name} has no link from {here} to {there}")


def via_of(topology: Topology, names: Iterable[str]) -> Via:
    """The links of each name, as `links_named` finds them. Raises KeyError, with a sentence."""
    return tuple(frozenset(links_named(topology, name)) for name in names)


def pairs(topology: Topology, src: str, dst: str) -> list[PinnedPair]:
    """The addresses of the NICs of two hosts, each given by its name or by one address. Raises KeyError."""
    return [(begin, end) for begin in addresses(topology, src) for end in addresses(topology, dst) if begin != end]


def addresses(topology: Topology, name: str) -> list[str]:
    """The addresses of the host of this name, or the address itself where a host has it. Raises KeyError."""
    if topology.has_host(name):
        return [str(nic.address) for nic in topology.host(name).nics]
    with suppress(KeyError, ValueError):
        address = ip_address(name)
        topology.host_of(address)
        return [str(address)]
    raise KeyError(f"{name!r} is neither a host of {topology.name} nor the address of one")


def pinned_paths(topology: Topology, src: str, dst: str, via: Iterable[str]) -> list[frozenset[Link]]:
    """The links of each path between two hosts that has the links or switches of `via`.

    Raises KeyError, with a sentence, where there is none.
    """
    names = list(via)
    wanted, found = via_of(topology, names), []
    for path in _paths(topology, addresses(topology, src), addresses(topology, dst)):
        taken = frozenset(topology.link_at(port) for port in path)
        if not any(some.isdisjoint(taken) for some in wanted):
            found.append(taken)
    if not found:
        raise KeyError(f"no path from {src} to {dst} has {' and '.join(names)}")
    return found


def _paths(topology: Topology, src: list[str], dst: list[str]) -> Iterator[tuple[PortRef, ...]]:
    here, there = list(_nics(topology, src)), list(_nics(topology, dst))
    for begin, src_nic in here:
        for end, dst_nic in there:
            if begin.name == end.name:
                raise KeyError("a pin needs two different hosts")
            with suppress(NoRouteError):
                yield from equal_cost_paths(topology, begin.name, end.name, src_nic=src_nic, dst_nic=dst_nic)


def _nics(topology: Topology, own: list[str]) -> Iterator[tuple[Host, int]]:
    """Each of these addresses' host, and the number of its NIC."""
    for address in map(ip_address, own):
        yield topology.host_of(address), topology.port_of(address).port - 1
