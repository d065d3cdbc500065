# SPDX-License-Identifier: Apache-2.0
"""Routers that choose by the header of every packet.

A connected socket gives its packets a random hash of its own (`skb->l4_hash`). A veth keeps it, and the kernel's ECMP
takes it instead of the header: at each hop the same hash, whatever the ports are (net/ipv4/route.c,
fib_multipath_hash). A router sees only what is on the wire, so a program of traffic control forgets the hash where
packets come in from hosts.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from emul import bpf, commands
from emul.virtual_queue import mount_bpffs

_SKB_SET_HASH_INVALID = 41  # bpf_set_hash_invalid in include/uapi/linux/bpf.h

FORGET = (bpf.instruction(0x85, immediate=_SKB_SET_HASH_INVALID), bpf.instruction(0xB7), bpf.instruction(0x95))
"""The program that forgets the hash of a packet."""


@contextmanager
def pinned(directory: Path, programs: Iterable[Sequence[bpf.Instruction]]) -> Iterator[list[Path]]:
    """A bpffs at `directory` while open, with these programs. Raises FabricError."""
    mount_bpffs(directory)
    try:
        paths = []
        for number, program in enumerate(programs):
            paths.append(directory / f"header_hash_{number}")
            bpf.pin_classifier(program, paths[-1])
        yield paths
    finally:
        commands.run(["umount", str(directory)])


def attach_lines(interface: str, program: Path) -> list[str]:
    """Lines for `tc -batch` that run the program for what comes in by an interface. Pure."""
    return [
        f"qdisc add dev {interface} clsact",
        f"filter add dev {interface} ingress bpf direct-action object-pinned {program}",
    ]
