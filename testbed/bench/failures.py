# SPDX-License-Identifier: Apache-2.0
"""What fails on an emulated fabric, and how it comes back, for benchmarks of failures."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from emul import LinkFault
from netmodel import Link, PortRef, Topology


class Fabric(Protocol):
    """The part of every emulated fabric that failures of links need."""

    @property
    def topology(self) -> Topology:
        """What is emulated."""

    def set_link(self, link: Link, up: bool) -> None:
        """Cut or mend a link. Returns when the switches have the new routes."""

    def set_faults(self, port: PortRef, fault: LinkFault) -> None:
        """Give the packets that leave by a port exactly these faults."""


class Routers(Fabric, Protocol):
    """What failures of routers and their sessions need beside it."""

    def settle(self) -> None:
        """Wait until all routers have the routes that BGP converges to."""

    def set_router(self, name: str, up: bool) -> None:
        """Let a router die, with all its links, or return."""

    def set_drained(self, name: str, drained: bool) -> None:
        """Let a router's neighbours send around it, or end that."""

    def reset_session(self, port: PortRef) -> None:
        """Reset the BGP session at a port."""


@dataclass(frozen=True, slots=True)
class Case:
    """What fails, and how it comes back.

    lossy: the ports whose packets are lost from the failure on, until traffic goes around them.
    dead: the links that no path of routers with BGP has meanwhile.
    """

    name: str
    fail: Callable[[], None]
    mend: Callable[[], None]
    lossy: frozenset[PortRef] = frozenset()
    dead: frozenset[Link] = frozenset()


def places(topology: Topology, last: int) -> tuple[tuple[PortRef, str], ...]:
    """A port at each tier of two pods, from the sender's leaf to the receiver's, and where that is.

    last: the port of the last agg to the receiver's leaf.
    """
    return (
        (PortRef("leaf1", 2), "the sender's leaf to agg"),
        (PortRef("agg1", 3), "agg to core, the sender's pod"),
        (PortRef("core1", 2), "core to agg, the receiver's pod"),
        (PortRef(topology.peer(PortRef("core1", 2)).node, last), "agg to the receiver's leaf"),
    )


def cut(fabric: Fabric, link: Link, where: str) -> Case:
    """A link that goes down, so that both ends see it."""
    fail, mend = (partial(fabric.set_link, link, up) for up in (False, True))
    return Case(f"cut: {where}", fail, mend, frozenset({link.a, link.b}), frozenset({link}))


def silent_loss(fabric: Fabric, ports: Iterable[PortRef], where: str, settle: Callable[[], None] | None) -> Case:
    """Ports that lose all packets, which no carrier tells.

    settle: waits until the switches route around them. None: switches do not notice.
    """
    lossy = frozenset(ports)

    def lose(loss: float) -> None:
        for port in sorted(lossy):
            fabric.set_faults(port, LinkFault(loss=loss))
        if settle is not None:
            settle()

    dead = frozenset(map(fabric.topology.link_at, lossy)) if settle is not None else frozenset()
    return Case(f"silent loss: {where}", partial(lose, 1.0), partial(lose, 0.0), lossy, dead)


def death(fabric: Routers, *routers: str) -> Case:
    """Routers that die, with all their links."""

    def bring(up: bool) -> None:
        for router in routers:
            fabric.set_router(router, up)

    links = frozenset[Link]().union(*(links_of(fabric.topology, router) for router in routers))
    lossy = frozenset(end for link in links for end in (link.a, link.b))
    name = f"{' and '.join(routers)} {'dies' if len(routers) == 1 else 'die'}"
    return Case(name, partial(bring, False), partial(bring, True), lossy, links)


def drain(fabric: Routers, router: str) -> Case:
    """A router that its neighbours avoid, and that loses nothing."""
    fail, mend = (partial(fabric.set_drained, router, drained) for drained in (True, False))
    return Case(f"{router} is drained", fail, mend, dead=links_of(fabric.topology, router))


def session_reset(fabric: Routers, port: PortRef) -> Case:
    """A BGP session that is reset and comes back by itself."""
    peer = fabric.topology.peer(port)
    return Case(
        f"reset of the session of {port.node} and {peer.node}", partial(fabric.reset_session, port), lambda: None
    )


def links_of(topology: Topology, switch: str) -> frozenset[Link]:
    """The links at a switch."""
    return frozenset(link for link in topology.links if switch in (link.a.node, link.b.node))
