# SPDX-License-Identifier: Apache-2.0
"""Exchanges of messages as NCCL makes them, over back ends and over TCP sockets: the cases of `paralet bench transport`
beside those by size.

Each side of a pair has one thread and one core, as a rank has a proxy thread. The native program runs one exchange at a
time (`paralet-bench flow`). The transports of a case take turns, in one order and then in the other.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from netmodel.printable import printable
from testbed.bench.frame import Measurement
from testbed.errors import TestbedError
from testbed.nccl import back_ends

MESSAGE_BYTES = 1 << 20
TOTAL_BYTES = 192 << 20
"""Bytes that a pair exchanges in each direction while measured."""

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Peer:
    """What a back end is compared with: a name, and the transport that `paralet-bench flow` calls so."""

    name: str
    transport: str


STREAM = Peer("TCP stream", "stream")
SOCKET = (
    Peer("NCCL Socket, default", "sockets:0x1"),
    Peer("NCCL Socket, 4 x 1", "sockets:4x1"),
    Peer("NCCL Socket, 2 x 8", "sockets:2x8"),
    Peer("NCCL Socket, 4 x 2", "sockets:4x2"),
)
"""TCP with the threads and the sockets per thread that NCCL's Socket transport takes: by default, at Google, at Amazon,
and as many users set them."""

PEERS = (STREAM, *SOCKET)


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of exchange. `options` are those of `paralet-bench flow`; `pairs` run at the same time."""

    name: str
    options: tuple[str, ...] = ()
    pairs: int = 1


def loopback_cases(cores: int) -> list[Case]:
    """What one link, and 16 receives posted ahead, do not show."""
    pairs = max(2, cores // 2)
    busy = ", more threads than cores" if 2 * pairs > cores else ""
    return [
        Case("64 KiB, one receive ahead", ("--bytes", str(64 << 10), "--ahead", "1")),
        Case("1 MiB, one receive ahead", ("--ahead", "1")),
        Case("1 MiB, both ways on one core", ("--ways", "2")),
        Case(f"1 MiB, {pairs} pairs{busy}", ("--pairs", str(pairs)), pairs),
    ]


def built_back_ends() -> list[str]:
    """The back ends of this build that run everywhere. Raises FileNotFoundError when the plugin is not built."""
    import nccl_net_plugin

    return [name for name in back_ends.beside(nccl_net_plugin.path()) if name not in {"verbs", "auto"}]


def measurements(
    program: Path,
    cases: Iterable[Case],
    ours: Sequence[str],
    repetition: int,
    common: Sequence[str] = (),
    peers: Sequence[Peer] = PEERS,
) -> Iterator[Measurement]:
    """One repetition of the cases: each of the back ends `ours` with each peer. `common`: options of all exchanges.

    Processor time is that of both sides, of all threads, and includes that of threads that poll. Raises TestbedError.
    """
    for case in cases:
        transports = [*ours, *(peer.transport for peer in peers)]
        order = transports if repetition % 2 == 0 else transports[::-1]
        found = {transport: run(program, ["--transport", transport, *common, *case.options]) for transport in order}
        for back_end in ours:
            for peer in peers:
                name = _streams(case.pairs) if peer is STREAM else peer.name
                mine, its = found[back_end], found[peer.transport]
                yield Measurement(f"throughput, {back_end}", case.name, "Gbit/s", mine.gbps, its.gbps, name)
                yield Measurement(f"processor, {back_end}", case.name, "ns/B", mine.ns_per_byte, its.ns_per_byte, name)


@dataclass(frozen=True, slots=True)
class Figures:
    """Goodput, and processor time of both sides per byte."""

    gbps: float
    ns_per_byte: float


def run(program: Path, options: Sequence[str]) -> Figures:
    """One exchange. Raises TestbedError when it fails, takes too long, or prints anything but its figures."""
    argv = [str(program), "flow", "--total", str(TOTAL_BYTES), "--bytes", str(MESSAGE_BYTES), *options]
    command = " ".join(argv[1:])
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"{printable(command)} did not end in {TIMEOUT_S:.0f} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise TestbedError(printable(f"{command} failed: {lines[-1] if lines else f'status {done.returncode}'}"))
    try:
        found = json.loads(done.stdout)
        return Figures(found["gbps"], found["near_ns_per_byte"] + found["far_ns_per_byte"])
    except (KeyError, TypeError, ValueError) as error:
        raise TestbedError(f"the benchmark printed {done.stdout.strip()!r}, which are not its figures") from error


def _streams(pairs: int) -> str:
    return STREAM.name if pairs == 1 else f"{pairs} TCP streams"
