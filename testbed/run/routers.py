# SPDX-License-Identifier: Apache-2.0
"""Switches that are routers with BGP: they choose in an order of their own, and events let them die and return."""

from contextlib import ExitStack
from typing import Protocol

from netmodel import Forwarding, PortRef
from sdn.openflow.steering import Steering
from sdn.path_service.next_hops import NextHops
from testbed.run.switches import Ready
from testbed.spec import Event


class Routed(Protocol):
    """The part of `emul.RoutedFabric` that is used here. Its methods return when all routers route accordingly."""

    def settle(self) -> None:
        """Wait until all routers have the routes that BGP converges to."""

    def routes(self) -> Forwarding:
        """The routes of the routers, with the members of groups in the order by which hashes select."""

    def set_router(self, name: str, up: bool) -> None:
        """Let a router die, or return."""

    def set_drained(self, name: str, drained: bool) -> None:
        """Let a router's neighbours send around it, or end that."""

    def reset_session(self, port: PortRef) -> None:
        """Reset the BGP session at a router's port."""


class Routers:
    """The routers of one fabric. The order of their next hops is read before every run: events may have changed it.

    Where a path service runs, it is read after every event too.
    """

    def __init__(self, fabric: Routed) -> None:
        self._fabric = fabric

    def before_run(self, steering: Steering | None) -> Ready:
        """Wait for the routes, and read them. A spec that would steer routers is refused before."""
        assert steering is None
        self._fabric.settle()  # the last run may have ended just after an event
        return Ready(self._fabric.routes())

    def act(self, event: Event, undo: ExitStack) -> None:
        """Let a router die or return, be drained or no longer, or lose a session."""
        fabric = self._fabric
        if event.kill is not None:
            undo.callback(fabric.set_router, event.kill, True)
            fabric.set_router(event.kill, False)
        if event.revive is not None:
            fabric.set_router(event.revive, True)
        if event.drain is not None:
            undo.callback(fabric.set_drained, event.drain, False)
            fabric.set_drained(event.drain, True)
        if event.undrain is not None:
            fabric.set_drained(event.undrain, False)
        if event.reset is not None:
            fabric.reset_session(PortRef.parse(event.reset))

    def next_hops(self) -> NextHops:
        """Wait for the routes, and read them."""
        self._fabric.settle()
        return self._fabric.routes().groups

    def check(self) -> None:
        """Nothing: a router that fails is seen by its neighbours."""

    def strays(self) -> dict[str, int]:
        """None: nothing is steered."""
        return {}
