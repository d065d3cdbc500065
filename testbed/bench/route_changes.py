# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.bench.route_changes`: what traffic loses on routers with BGP when links and routers fail.

A stream of short packets from many source ports crosses three tiers of routers while one thing after the other fails
and comes back. For each: how long packets are lost, and which ports change their path. Prints a table in Markdown.
The fabric has two pods of two leaves and four aggregation routers, of which each has two cores. Needs root.
"""

import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from emul import FabricError, RoutedFabric, namespaces, sandbox
from netmodel import ROCE_PORT, Link, LinuxL4Hash, PortRef, clos, paths_of_ports
from netmodel import Path as Way
from netmodel.printable import printable
from testbed.bench import failures
from testbed.bench.failures import Case, Routers
from testbed.machine import this_machine

PORTS = range(50_000, 50_400)
_RATE = 2_000
"""Packets a second."""

_SETTLE_S = 1.0
_SO_RCVBUFFORCE = 33
"""Of asm-generic/socket.h; module socket lacks it."""
_QUEUE_BYTES = 1 << 24
"""For packets that wait for a receiver that other programs hold up: they are not lost on the way."""

_NEAR, _FAR = "h1", "h3"
"""Sender and receiver, in the first and in the second pod."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a failure, or its end, did to the stream.

    lost: packets. for_s: from the change to the last packet that was lost. others: the part of the ports whose path was
    alive that nevertheless changed it.
    """

    lost: int
    for_s: float
    others: float


def cases(fabric: Routers) -> Iterator[Case]:
    """A failure at each tier, near and far from the sender, loud and silent, then those of routers and sessions.

    fabric: of two pods of two leaves with one host each, by `netmodel.clos`.
    """
    topology = fabric.topology
    for port, where in failures.places(topology, 1):
        link = topology.link_at(port)
        yield failures.cut(fabric, link, where)
        yield failures.silent_loss(fabric, (link.a, link.b), where, fabric.settle)
    for router in ("agg1", "core1"):
        yield failures.death(fabric, router)
    yield failures.drain(fabric, "agg1")
    yield failures.session_reset(fabric, PortRef("leaf1", 2))


class Stream:
    """Packets from one host to another, each with its number, sent while the context is open."""

    def __init__(self, fabric: RoutedFabric) -> None:
        near, far = (str(fabric.topology.host(name).nics[0].address) for name in (_NEAR, _FAR))
        self._far = far
        self._out = namespaces.within(fabric.host_pid(_NEAR), lambda: _bound(socket.SOCK_RAW, near, 0))
        self._into = namespaces.within(fabric.host_pid(_FAR), lambda: _bound(socket.SOCK_DGRAM, far, ROCE_PORT))
        self._into.settimeout(0.2)
        self._over = threading.Event()
        self._sent_s: list[float] = []
        self._arrived: set[int] = set()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._receive, self._send)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._out.close()
        self._into.close()

    def lost_s(self, from_s: float, to_s: float) -> list[float]:
        """When the packets were sent that did not arrive, of those sent in this time."""
        return [at_s for n, at_s in enumerate(self._sent_s) if from_s <= at_s < to_s and n not in self._arrived]

    def _send(self) -> None:
        begin_s = time.monotonic()
        while not self._over.is_set():
            number = len(self._sent_s)
            payload = struct.pack("!I", number)
            header = struct.pack("!HHHH", PORTS[number % len(PORTS)], ROCE_PORT, 8 + len(payload), 0)
            self._sent_s.append(time.monotonic())
            self._out.sendto(header + payload, (self._far, 0))
            time.sleep(max(0.0, begin_s + len(self._sent_s) / _RATE - time.monotonic()))

    def _receive(self) -> None:
        while True:
            try:
                self._arrived.add(struct.unpack("!I", self._into.recv(100))[0])
            except TimeoutError:
                if self._over.is_set():
                    return


def _bound(kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, kind, socket.IPPROTO_UDP)
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
    made.bind((address, port))
    return made


def _ways(fabric: RoutedFabric) -> dict[int, Way]:
    """By port: the path of its packets."""
    paths, taken = paths_of_ports(fabric.topology, _NEAR, _FAR, LinuxL4Hash(), PORTS, routes=fabric.routes())
    return {port: paths[index] for port, index in zip(PORTS, taken.tolist(), strict=True)}


def observe(fabric: RoutedFabric, act: Callable[[], None], dead: Collection[Link]) -> Change:
    """Let something happen to the stream. dead: the links of the paths that have to change, before or after."""
    before = _ways(fabric)
    with Stream(fabric) as stream:
        time.sleep(_SETTLE_S)
        at_s = time.monotonic()
        act()
        time.sleep(_SETTLE_S)
        end_s = time.monotonic()
    after = _ways(fabric)
    lost_s = stream.lost_s(at_s, end_s)
    free = [port for port, way in before.items() if not any(fabric.topology.link_at(hop) in dead for hop in way)]
    moved = [port for port in free if after[port] != before[port]]
    return Change(len(lost_s), max(lost_s, default=at_s) - at_s, len(moved) / len(free) if free else 0.0)


def main() -> int:
    """Print the table, from inside a sandbox that it makes. Returns the exit status."""
    if not sandbox.inside():
        return sandbox.run([sys.executable, "-m", "testbed.bench.route_changes"])
    print(printable(f"{this_machine()}; {_RATE:,} packets a second from {len(PORTS)} ports") + "\n")
    print("| what | lost for | packets lost | other ports that move | lost when it ends | ports back |")
    print("|---|---|---|---|---|---|")
    try:
        with (
            tempfile.TemporaryDirectory() as logs,
            RoutedFabric(clos(2, 2, 4, 2, 1, 100_000_000), log_dir=Path(logs)) as fabric,
        ):
            for case in cases(fabric):
                first = _ways(fabric)
                change = observe(fabric, case.fail, case.dead)
                end = observe(fabric, case.mend, ())
                last = _ways(fabric)
                back = sum(first[port] == last[port] for port in PORTS) / len(PORTS)
                row = (
                    f"| {case.name} | {change.for_s:.2f} s | {change.lost:,} | {change.others:.0%} | {end.lost:,} | "
                    f"{back:.0%} |"
                )
                print(printable(row), flush=True)
    except FabricError as error:
        print(printable(f"route changes: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
