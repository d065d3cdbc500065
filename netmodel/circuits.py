# SPDX-License-Identifier: Apache-2.0
"""Optical circuits: the settings of switches of role "ocs", and the links that result. Pure.

A circuit is one-way, from an ingress port to an egress port; two circuits make a duplex connection. Circuits are a
state of the fabric. They are not part of the topology, which describes the cables.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from netmodel.topology import Link, PortRef, Topology, TopologyError

Circuits: TypeAlias = Mapping[str, Mapping[int, int]]
"""By switch: the egress port of each ingress port that has a circuit. Light that enters by any other port is lost."""


def check_circuits(topology: Topology, circuits: Circuits) -> None:
    """Raises TopologyError unless every circuit joins two cabled ports of one optical switch.

    At most one circuit may enter by a port, and at most one may leave by it.
    """
    cabled = set(topology.linked_ports())
    for name, pairs in circuits.items():
        try:
            role = topology.switch(name).role
        except KeyError as error:
            raise TopologyError(str(error.args[0])) from None
        if role != "ocs":
            raise TopologyError(f"circuits are set on {name!r}, which is a {role}, not an optical circuit switch")
        entry_of: dict[int, int] = {}
        for entry, leaving in pairs.items():
            for port in (entry, leaving):
                if PortRef(name, port) not in cabled:
                    raise TopologyError(f"a circuit of {name!r} uses port {port}, in which there is no link")
            if entry == leaving:
                raise TopologyError(f"a circuit of {name!r} joins port {entry} to itself")
            if leaving in entry_of:
                raise TopologyError(
                    f"optical port {leaving} of {name!r} is used twice: light of ports {entry_of[leaving]} and {entry} "
                    "would leave by it"
                )
            entry_of[leaving] = entry


def joined(*parts: Circuits) -> dict[str, dict[int, int]]:
    """The union of circuits, for example of several jobs. Raises TopologyError when two enter or leave by one port."""
    whole: dict[str, dict[int, int]] = {}
    for part in parts:
        for name, circuits in part.items():
            mine = whole.setdefault(name, {})
            for entry, leaving in circuits.items():
                if entry in mine or leaving in mine.values():
                    port = entry if entry in mine else leaving
                    raise TopologyError(f"optical port {port} of {name!r} is used twice, by two sets of circuits")
                mine[entry] = leaving
    return whole


def duplex(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The circuits that connect pairs of ports in both directions."""
    return {entry: leaving for a, b in pairs for entry, leaving in ((a, b), (b, a))}


def far_end(topology: Topology, circuits: Circuits, port: PortRef) -> PortRef | None:
    """The port at which light that leaves by `port` arrives: the next port that is not an optical switch's.

    None if a port on the way has no circuit. Raises KeyError for a port without a link.
    """
    return light_path(topology, circuits, port)[1]


def with_circuits(topology: Topology, circuits: Circuits) -> Topology:
    """The fabric without its optical switches: cables that circuits join become one link.

    Two ports are linked where light passes from each to the other. The link has the lowest rate on the way, and the sum
    of the delays that cables on the way have. A connection is left out if it is one-way, lacks a circuit, or joins two
    hosts or two ports of one node. A topology without optical switches is returned unchanged. Raises TopologyError as
    `check_circuits` does.
    """
    optical = _optical(topology)
    if not optical:
        return topology
    check_circuits(topology, circuits)
    return replace(
        topology,
        switches=tuple(switch for switch in topology.switches if switch.name not in optical),
        links=tuple(link for link, _ in _links_with_circuits(topology, circuits)),
    )


def links_with_circuits(topology: Topology, circuits: Circuits, cables: Iterable[Link]) -> frozenset[Link]:
    """The links of `with_circuits(topology, circuits)` that use these cables of `topology` and fail with them."""
    wanted = frozenset(cables)
    return frozenset(
        link for link, through in _links_with_circuits(topology, circuits) if not wanted.isdisjoint(through)
    )


def _links_with_circuits(topology: Topology, circuits: Circuits) -> Iterator[tuple[Link, list[Link]]]:
    """The links of `with_circuits`, each with the cables that it uses."""
    optical, done = _optical(topology), set[PortRef]()
    for cable in topology.links:
        ends = [end for end in (cable.a, cable.b) if end.node not in optical]
        if len(ends) == 2:
            yield cable, [cable]
            continue
        for near in ends:
            ports, far = light_path(topology, circuits, near)
            if near in done or far is None or light_path(topology, circuits, far)[1] != near:
                continue
            done.add(far)
            if near.node != far.node and not (topology.has_host(near.node) and topology.has_host(far.node)):
                through = [topology.link_at(port) for port in ports]
                delays_s = [part.delay_s for part in through if part.delay_s is not None]
                rate_bps = min(part.rate_bps for part in through)
                yield Link(near, far, rate_bps, sum(delays_s) if delays_s else None), through


def light_path(topology: Topology, circuits: Circuits, port: PortRef) -> tuple[list[PortRef], PortRef | None]:
    """The egress ports on the way of light from `port`, `port` first, and where it arrives (see `far_end`).

    Raises KeyError for a port without a link.
    """
    ports, at = [port], topology.peer(port)
    while not topology.has_host(at.node) and topology.switch(at.node).role == "ocs":
        leaving = circuits.get(at.node, {}).get(at.port)
        if leaving is None:
            return ports, None
        ports.append(PortRef(at.node, leaving))
        at = topology.peer(ports[-1])
    return ports, at


def _optical(topology: Topology) -> set[str]:
    return {switch.name for switch in topology.switches if switch.role == "ocs"}
