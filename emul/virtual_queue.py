# SPDX-License-Identifier: Apache-2.0
"""ECN marks by a virtual queue at the egress of an interface, as a BPF program of traffic control.

The virtual queue has the length that the queue of an ideal link of the same rate would have. A packet that finds it,
itself included, longer than the threshold is marked if its sender is capable of ECN (RFC 3168), whatever happened to
the packets before it: the step marking of DCTCP (Alizadeh et al., SIGCOMM 2010, section 3.1). The `limit` of nftables
is no such queue: packets above its limit take no tokens (net/netfilter/nft_limit.c), so a queue that stays long would
hardly be marked. The kernel's qdiscs that mark (red, codel) are missing where netem is.

The queue is kept as the moment at which it will be empty, so that one word is its whole state.
"""

from collections.abc import Sequence
from pathlib import Path

from emul import bpf, commands
from emul.commands import FabricError

_WORD = 8
_EMPTY_AT, _MARKED = 0, _WORD  # offsets in the map's value
_KTIME_GET_NS, _SKB_PULL_DATA, _SKB_ECN_SET_CE = 5, 39, 97  # helpers
_HEADERS_BYTES = 54
"""Ethernet's header and the IPv6 header, the longer of the two that carry ECN."""
_SKB_LEN = 0  # offset in struct __sk_buff
_SHIFT = 12
"""Times per byte are multiples of 1/4096 ns: 400 Gbit/s are 82 of them, and 100 kbit/s still fit 31 bits."""

_RATE_MIN_BPS = 100_000


def program(map_fd: int, rate_bps: int, mark_above_bytes: int, longest_bytes: int) -> list[bpf.Instruction]:
    """The program of a queue that drains with `rate_bps`, marks above a threshold and is never longer than a bound.

    The first word of the map's value is the time in ns at which the queue is empty, the second counts marked packets.
    Pure. Raises FabricError for a rate below 100 kbit/s.
    """
    if rate_bps < _RATE_MIN_BPS:
        raise FabricError(f"marks need a link of at least {_RATE_MIN_BPS} bit/s, not {rate_bps} bit/s")

    def time_ns(size_bytes: int) -> int:
        return size_bytes * 8 * 10**9 // rate_bps

    r0, r1, r2, r3, packet, state, now = 0, 1, 2, 3, 6, 7, 8
    op = bpf.instruction
    return [
        op(0xBF, packet, r1),  # packet = context
        bpf.load_map_value(state, map_fd),
        op(0x85, immediate=_KTIME_GET_NS),
        op(0xBF, now, r0),
        op(0x79, r1, state, _EMPTY_AT),  # r1 = max(time at which the queue is empty, now)
        op(0x3D, r1, now, 1),
        op(0xBF, r1, now),
        op(0x61, r2, packet, _SKB_LEN),  # r2 = time that the packet takes
        op(0x27, r2, immediate=(8 * 10**9 << _SHIFT) // rate_bps),
        op(0x77, r2, immediate=_SHIFT),
        op(0x0F, r1, r2),
        bpf.load_constant(r3, time_ns(longest_bytes)),  # the queue drops what exceeds its bound
        op(0x0F, r3, now),
        op(0xBD, r1, r3, 1),
        op(0xBF, r1, r3),
        op(0x7B, state, r1, _EMPTY_AT),
        op(0x1F, r1, now),
        bpf.load_constant(r2, time_ns(mark_above_bytes)),
        op(0xBD, r1, r2, 8),  # not longer than the threshold
        # OVS's userspace datapath sends through a packet socket. For packets longer than a page, that puts the headers
        # outside the linear part of the buffer. The next helper marks nothing there.
        op(0xBF, r1, packet),
        op(0xB7, r2, immediate=_HEADERS_BYTES),
        op(0x85, immediate=_SKB_PULL_DATA),
        op(0xBF, r1, packet),
        op(0x85, immediate=_SKB_ECN_SET_CE),
        op(0x15, r0, offset=2),  # not capable of ECN
        op(0xB7, r1, immediate=1),
        op(0xDB, state, r1, _MARKED),  # atomic add
        op(0xB7, r0),  # TC_ACT_OK
        op(0x95),
    ]


class VirtualQueue:
    """The virtual queue of an interface. It starts without marks. Raises FabricError.

    directory: a directory of a bpffs (`mount_bpffs`). enter: argv prefix that enters the interface's network namespace,
    not a mount namespace.
    """

    def __init__(self, interface: str, directory: Path, enter: Sequence[str] = ()) -> None:
        self._interface = interface
        self._path = directory / interface
        self._state = bpf.Array(2)
        self._tc = [*enter, "tc"]
        commands.run([*self._tc, "qdisc", "replace", "dev", interface, "clsact"])

    def mark(self, rate_bps: int, mark_above_bytes: int, longest_bytes: int) -> None:
        """Mark packets above a threshold from now on. Raises FabricError, also as `program` does."""
        bpf.pin_classifier(program(self._state.fd, rate_bps, mark_above_bytes, longest_bytes), self._path)
        try:
            place = ["dev", self._interface, "egress", "prio", "1", "handle", "1"]
            direct = ["bpf", "direct-action", "object-pinned", str(self._path)]
            commands.run([*self._tc, "filter", "replace", *place, *direct])
        finally:
            self._path.unlink()

    def stop(self) -> None:
        """Mark no packets from now on. Raises FabricError."""
        commands.run([*self._tc, "filter", "delete", "dev", self._interface, "egress"])

    def marked(self) -> int:
        """Packets that left above the threshold with a mark, of this queue or an earlier one. Raises FabricError."""
        return self._state.read()[_MARKED // _WORD]

    def close(self) -> None:
        """Remove the queue from the interface. Raises FabricError."""
        self._state.close()
        commands.run([*self._tc, "qdisc", "delete", "dev", self._interface, "clsact"])


def mount_bpffs(directory: Path) -> None:
    """Mount a bpffs for programs that are about to be attached, if it is not there yet. Raises FabricError."""
    if not directory.is_mount():
        directory.mkdir(parents=True, exist_ok=True)
        commands.run(["mount", "-t", "bpf", "bpf", str(directory)])
