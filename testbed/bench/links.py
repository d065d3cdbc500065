# SPDX-License-Identifier: Apache-2.0
"""Five kinds of links for `paralet bench transport`: veth pairs with the offloads of NICs, between two namespaces.

Where a link has a segmentation offload, long pieces cross it whole, as they would reach a NIC; without it the kernel
cuts them before the link. Behind the link GRO joins packets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from emul import commands
from testbed.bench import flows
from testbed.bench.frame import Measurement
from testbed.bench.namespace import enter, file_of, network_namespace


@dataclass(frozen=True, slots=True)
class Link:
    """`tso`, `uso`: whether the NIC cuts long pieces of TCP, and of UDP (tx-udp-segmentation)."""

    mtu_bytes: int
    tso: bool
    uso: bool

    @property
    def name(self) -> str:
        """Such as "MTU 9000, TSO, no USO"."""
        words = f"{'TSO' if self.tso else 'no TSO'}, {'USO' if self.uso else 'no USO'}"
        return f"MTU {self.mtu_bytes}, {words}"


LINKS = (
    Link(9000, tso=True, uso=True),
    Link(9000, tso=False, uso=False),
    Link(9000, tso=True, uso=False),
    Link(1500, tso=False, uso=False),
    Link(1500, tso=True, uso=False),
)
"""NICs of RDMA vendors; a NIC without offloads; and two of cloud machines, as those of 1500 bytes are."""


def measurements(
    program: Path, ours: Sequence[str], repetitions: int, links: Sequence[Link] = LINKS
) -> Iterator[Measurement]:
    """Messages of 1 MiB from one namespace to the other, over every link. Needs a sandbox.

    Raises TestbedError and FabricError.
    """
    with laid(links) as far:
        for repetition in range(repetitions):
            for number, link in enumerate(links):
                place = ("--near", _near(number), "--far", _far(number), "--far-namespace", file_of(far))
                case = flows.Case(f"veth {link.name}, 1 MiB")
                yield from flows.measurements(program, [case], ours, repetition, place)


@contextmanager
def laid(links: Sequence[Link]) -> Iterator[int]:
    """The links, numbered, from this network namespace to that of the process whose id it gives. Raises FabricError."""
    with network_namespace() as far:
        try:
            for number, link in enumerate(links):
                _lay(link, number, far)
            yield far
        finally:  # the kernel removes them with the far namespace too, but only a while later
            for number in range(len(links)):
                with suppress(commands.FabricError):
                    commands.run(["ip", "link", "delete", f"near{number}"])


def _lay(link: Link, number: int, far: int) -> None:
    near_name, far_name = f"near{number}", f"far{number}"
    ends = f"mtu {link.mtu_bytes} type veth peer name {far_name} mtu {link.mtu_bytes} netns {far}"
    commands.batch("ip", [f"link add {near_name} {ends}"])
    for name, address, prefix in ((near_name, _near(number), []), (far_name, _far(number), enter(far))):
        commands.batch("ip", [f"address add {address}/24 dev {name}", f"link set {name} up"], prefix)
        offloads = ["tso", _switch(link.tso), "tx-udp-segmentation", _switch(link.uso), "gro", "on"]
        commands.run([*prefix, "ethtool", "-K", name, *offloads])


def _near(number: int) -> str:
    return f"10.96.{number}.1"


def _far(number: int) -> str:
    return f"10.96.{number}.2"


def _switch(on: bool) -> str:
    return "on" if on else "off"
