# SPDX-License-Identifier: Apache-2.0
"""Optical circuits: what a switch of role "ocs" is set to, and where light goes then. Pure.

A circuit is one-way, from the port that light comes in by to the port that it leaves by; two of them make a duplex
patch. Which circuits are set is a state of the fabric and no part of the topology, which says what is cabled.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from netmodel.topology import PortRef, Topology, TopologyError

Circuits: TypeAlias = Mapping[str, Mapping[int, int]]
"""By switch: the port of exit for the ports of entry that have one. Light that comes in elsewhere ends in the dark."""


def check_circuits(topology: Topology, circuits: Circuits) -> None:
    """Raises TopologyError unless every circuit joins two cabled ports of an optical switch, each used once a way."""
    cabled = set(topology.linked_ports())
    for name, pairs in circuits.items():
        try:
            role = topology.switch(name).role
        except KeyError as error:
            raise TopologyError(str(error.args[0])) from None
        if role != "ocs":
            raise TopologyError(f"switch {name!r} is a {role} and no optical circuit switch, so it takes no circuits")
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
    """Circuits of several jobs as one. Raises TopologyError when two use the same port."""
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
    """The circuits that patch pairs of ports together, both ways."""
    return {entry: leaving for a, b in pairs for entry, leaving in ((a, b), (b, a))}


def far_end(topology: Topology, circuits: Circuits, port: PortRef) -> PortRef | None:
    """Where light arrives that leaves by `port`: the next port that is no optical switch's, None if it ends dark.

    Raises KeyError with a sentence for a port without a link.
    """
    at = topology.peer(port)
    while not topology.has_host(at.node) and topology.switch(at.node).role == "ocs":
        leaving = circuits.get(at.node, {}).get(at.port)
        if leaving is None:
            return None
        at = topology.peer(PortRef(at.node, leaving))
    return at
