# SPDX-License-Identifier: Apache-2.0
"""Conversion between `netmodel.Topology`, which has names and ports, and `Clos`, which has numbers."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from netmodel import Link, Path, PortRef, Topology
from netmodel.flow import Addresses, address_array
from sdn.planners.model import LOCAL, UNREACHABLE, Clos, Commodities, Ints, Plan
from sdn.planners.nic_numbers import between, number_of

LinkIndex = tuple[int, int, int]
"""A link by the numbers of its ToR, its spine, and the link among parallel ones."""


@dataclass(frozen=True, eq=False)
class Cabling:
    """A topology as a `Clos`, and the names of its numbers."""

    topology: Topology
    fabric: Clos
    nics: tuple[PortRef, ...]
    """The host port of each NIC."""
    addresses: Addresses
    """The IP address of each NIC, by the NIC's number."""
    tors: tuple[str, ...]
    spines: tuple[str, ...]
    tor_port: Ints
    """[ToR, spine, parallel link]: the ToR's port, 0 without a link. Parallel links are in order of this port."""
    spine_port: Ints
    """[ToR, spine, parallel link]: the spine's port."""
    _nic_number: dict[PortRef, int]
    _link_number: dict[Link, LinkIndex]

    @cached_property
    def tor_seed(self) -> list[int]:
        """The hash seed of each ToR."""
        return [self.topology.switch(name).hash_seed for name in self.tors]

    @cached_property
    def joined(self) -> npt.NDArray[np.bool_]:
        """[ToR, ToR]: whether some spine has live links to both."""
        up = np.asarray((self.fabric.link_rate_bps > 0).any(axis=2), dtype=np.float64)
        return np.asarray(up @ up.T > 0)

    @cached_property
    def spine_seed(self) -> list[int]:
        """The hash seed of each spine."""
        return [self.topology.switch(name).hash_seed for name in self.spines]

    def nic(self, host: str, nic: int = 0) -> int:
        """The number of a host's NIC. Raises KeyError for an unknown host, and for a NIC without a live link."""
        return number_of(self.topology, self._nic_number, host, nic)

    def commodities(
        self, pairs: Iterable[tuple[str, str]], demand: npt.ArrayLike = 1.0, job: npt.ArrayLike = 0, nic: int = 0
    ) -> Commodities:
        """One commodity for each pair of source and destination host, between their NICs `nic`. Errors as of `nic`."""
        return between(((self.nic(src, nic), self.nic(dst, nic)) for src, dst in pairs), demand, job)

    def link(self, link: Link) -> LinkIndex:
        """The index of a link between a ToR and a spine. Raises KeyError for any other link."""
        try:
            return self._link_number[link]
        except KeyError:
            raise KeyError(f"link {link.a} to {link.b} does not join a leaf and a spine of this topology") from None

    def link_number(self, link: Link) -> int:
        """The number of a link in `sdn.planners.links`. Raises KeyError as `link`."""
        tor, spine, parallel = self.link(link)
        return (tor * self.fabric.spines + spine) * self.fabric.parallel + parallel

    def without(self, links: Iterable[Link]) -> "Cabling":
        """The same cabling with these links between ToRs and spines dead. Raises KeyError for any other link."""
        return replace(self, fabric=self.fabric.without(links=[self.link(link) for link in links]))

    def path(self, plan: Plan, commodity: int) -> Path | None:
        """The `netmodel` path of a commodity of a plan; None when it has none."""
        columns = (plan.commodities.src, plan.commodities.dst, plan.spine, plan.up, plan.down)
        return self.path_by(*(int(column[commodity]) for column in columns))

    def path_by(self, src: int, dst: int, spine: int, up: int, down: int) -> Path | None:
        """The `netmodel` path between two NICs by a spine and parallel links, or within a ToR (spine LOCAL).

        None when `spine` is UNREACHABLE.
        """
        first, last = self.nics[src], self.topology.peer(self.nics[dst])
        if spine == UNREACHABLE:
            return None
        if spine == LOCAL:
            return first, last
        tors = self.fabric.nic_tor
        return (
            first,
            PortRef(self.tors[tors[src]], int(self.tor_port[tors[src], spine, up])),
            PortRef(self.spines[spine], int(self.spine_port[tors[dst], spine, down])),
            last,
        )


def cabling(topology: Topology, dead_links: frozenset[Link] = frozenset()) -> Cabling:
    """The cabling of a two-level leaf-spine; dead links get rate 0. Recent results are cached.

    Raises ValueError for any other topology: with switches other than leaves and spines, links other than from host
    to leaf and from leaf to spine, no leaf, no spine, or no link between the two levels while there are several leaves.
    """
    return _cabling(topology, frozenset(dead_links))


@lru_cache(maxsize=8)
def _cabling(topology: Topology, dead_links: frozenset[Link]) -> Cabling:
    def refuse(why: str) -> ValueError:
        return ValueError(f"topology {topology.name!r} is not a two-level leaf-spine: {why}")

    role = {switch.name: switch.role for switch in topology.switches}
    for name, its_role in role.items():
        if its_role not in ("leaf", "spine"):
            raise refuse(f"switch {name!r} has the role {its_role!r}")
    tors = {name: i for i, name in enumerate(name for name in role if role[name] == "leaf")}
    spines = {name: i for i, name in enumerate(name for name in role if role[name] == "spine")}
    homes: dict[PortRef, tuple[int, int]] = {}  # live NIC -> ToR and rate
    between: defaultdict[tuple[int, int], list[tuple[int, int, Link]]] = defaultdict(list)
    for link in topology.links:
        by_role = {role.get(end.node): end for end in (link.a, link.b)}
        if by_role.keys() == {"leaf", "spine"}:
            near, far = by_role["leaf"], by_role["spine"]
            between[tors[near.node], spines[far.node]].append((near.port, far.port, link))
        elif by_role.keys() != {None, "leaf"}:
            raise refuse(f"link {link.a} to {link.b} joins neither a host to a leaf nor a leaf to a spine")
        elif link not in dead_links:
            homes[by_role[None]] = (tors[by_role["leaf"].node], link.rate_bps)
    if not tors:
        raise refuse("it has no leaf")
    if len(tors) > 1 and not between:
        raise refuse("no leaf is linked to a spine")
    shape = (len(tors), max(len(spines), 1), max((len(links) for links in between.values()), default=1))
    rate = np.zeros(shape)
    tor_port, spine_port = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    number: dict[Link, LinkIndex] = {}
    for (tor, spine), links in between.items():
        for k, (near_port, far_port, link) in enumerate(sorted(links, key=lambda entry: entry[0])):
            tor_port[tor, spine, k], spine_port[tor, spine, k] = near_port, far_port
            rate[tor, spine, k] = 0 if link in dead_links else link.rate_bps
            number[link] = tor, spine, k
    ports = [PortRef(host.name, i + 1) for host in topology.hosts for i in range(len(host.nics))]
    nics = tuple(port for port in ports if port in homes)
    return Cabling(
        topology=topology,
        fabric=Clos(
            nic_tor=np.array([homes[port][0] for port in nics], dtype=np.int32),
            nic_rate_bps=np.array([homes[port][1] for port in nics], dtype=np.float64),
            link_rate_bps=rate,
        ),
        nics=nics,
        addresses=address_array(topology.host(port.node).nics[port.port - 1].address for port in nics),
        tors=tuple(tors),
        spines=tuple(spines),
        tor_port=tor_port,
        spine_port=spine_port,
        _nic_number={port: i for i, port in enumerate(nics)},
        _link_number=number,
    )
