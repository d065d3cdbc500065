# SPDX-License-Identifier: Apache-2.0
"""`verbs` on the first RDMA device of this machine: the cost of m QPs per peer, and goodput by size of the flowlets.

Hub and peers are devices of one process on one address. Each has the same share of what connecting them takes, so
figures of a lane are half of the process's. What the kernel and the NIC keep of a QP elsewhere is not seen.
"""

import multiprocessing
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Literal, TypeVar

from hostlib import Device, DeviceError, TransportError, local_interfaces
from testbed.bench.frame import Measurement, Result, result
from testbed.errors import InputError, TestbedError
from testbed.progress import Steps

LANES = (1, 8, 32)
PEERS = (1, 4, 16)
FLOWLET_BYTES = tuple((16 << 10) << i for i in range(7))
"""16 KiB to 1 MiB."""

PINNED_LIMIT_BYTES = 8 << 20
"""Memory that a user may lock where nobody has set another limit (systemd.exec(5), LimitMEMLOCK)."""

REPETITIONS = 5

_SWEEP_LANES = 8
_MESSAGE_BYTES = 2 << 20
_MESSAGES = 16
_TIMEOUT_S = 300.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SetUp:
    """What a device takes, once it is connected to all peers."""

    connect_s: float
    """Per peer, one after another."""
    resident_bytes: float
    """Per peer and lane."""
    pinned_bytes: float
    """Of the device in all: pages that the kernel keeps in memory for the NIC."""


def measure() -> Result:
    """All cases, `REPETITIONS` times. Raises InputError where no RDMA device is, TestbedError when one fails."""
    address = _alone(rdma_address)
    with Steps(REPETITIONS * (len(LANES) * len(PEERS) + len(FLOWLET_BYTES)), every_s=3.0) as progress:
        progress.now("measuring")
        measurements = []
        for _ in range(REPETITIONS):
            for measurement in chain(costs(address), goodputs(address)):
                measurements.append(measurement)
                progress.now(measurement.case)
                if not measurement.metric.startswith("memory"):
                    progress.advance()
    return result("verbs", measurements)


def rdma_address() -> str:
    """The first address of this machine that `verbs` can use. Raises InputError where there is none."""
    why = "it has no address"
    for _, address, _ in local_interfaces():
        try:
            Device(address, backend="verbs", lanes=1).close()
        except DeviceError as error:
            why = str(error)
        else:
            return address
    raise InputError(f"the verbs back end can use no address of this machine: {why}")


def costs(address: str, lanes: tuple[int, ...] = LANES, peers: tuple[int, ...] = PEERS) -> Iterator[Measurement]:
    """Time and memory of every number of lanes and peers, beside `soft` on the same address."""
    for m in lanes:
        for n in peers:
            verbs, soft = (_alone(set_up, address, backend, m, n) for backend in ("verbs", "soft"))
            case = f"m = {m}, {n} peer{'s' if n > 1 else ''}"
            yield Measurement("connecting", case, "ms per peer", 1e3 * verbs.connect_s, 1e3 * soft.connect_s, "soft")
            yield Measurement(
                *("memory, resident", case, "KiB per peer and lane"),
                *(verbs.resident_bytes / 1024, soft.resident_bytes / 1024, "soft"),
            )
            yield Measurement(
                *("memory, pinned", case, "KiB of the device"),
                *(verbs.pinned_bytes / 1024, PINNED_LIMIT_BYTES / 1024, "usual limit"),
            )


def set_up(address: str, backend: Literal["soft", "verbs"], lanes: int, peers: int) -> SetUp:
    """Connect a hub to its peers. The process must be a fresh one, as its memory is measured."""
    with ExitStack() as stack:
        sides = [stack.enter_context(Device(address, backend=backend, lanes=lanes)) for _ in range(peers)]
        listeners = [side.listen() for side in sides]
        before = _memory("VmPin")
        hub = stack.enter_context(Device(address, backend=backend, lanes=lanes))
        alone, resident = _memory("VmPin"), _memory("VmRSS")
        begin = monotonic()
        connections = [hub.connect(listener.handle, timeout_s=_TIMEOUT_S) for listener in listeners]
        elapsed = monotonic() - begin
        grown = _memory("VmRSS") - resident
        pinned = (alone - before) + (_memory("VmPin") - alone) / 2
        del connections
    return SetUp(elapsed / peers, grown / (2 * lanes * peers), pinned)


def goodputs(address: str, flowlets: tuple[int, ...] = FLOWLET_BYTES) -> Iterator[Measurement]:
    """Goodput with flowlets of every size, each beside whole messages right after it."""
    for size in flowlets:
        ours, whole = (_alone(goodput_mbps, address, each) for each in (size, _MESSAGE_BYTES))
        yield Measurement("goodput", f"S = {size >> 10} KiB", "Mbit/s", ours, whole, "whole messages")


def goodput_mbps(address: str, flowlet_bytes: int) -> float:
    """Of messages of 2 MiB from one device to another, over 8 lanes. Raises TestbedError when one is lost or wrong."""
    data = bytes(range(256)) * (_MESSAGE_BYTES // 256)
    buffers = [bytearray(len(data)) for _ in range(_MESSAGES)]

    def device() -> Device:
        return Device(address, backend="verbs", lanes=_SWEEP_LANES, flowlet_bytes=flowlet_bytes)

    with device() as one, device() as two:
        listener = two.listen()
        out, into = one.connect(listener.handle, _TIMEOUT_S), listener.accept(_TIMEOUT_S)
        begin = monotonic()
        requests = [each for buffer in buffers for each in (into.recv(buffer), out.send(data))]
        for request in requests:
            request.wait(_TIMEOUT_S)
        elapsed = monotonic() - begin
    if any(buffer != data for buffer in buffers):
        raise TestbedError("a message arrived corrupted")
    return _MESSAGES * _MESSAGE_BYTES * 8 / elapsed / 1e6


def _memory(line: str) -> int:
    """Bytes that a line of /proc/self/status tells."""
    found = re.search(rf"^{line}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found  # proc_pid_status(5)
    return int(found[1]) << 10


def _alone(function: Callable[..., T], *arguments: object) -> T:
    """Call in a process of its own, so that freed memory of one measurement does not serve the next."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            return pool.apply(function, arguments)
        except (DeviceError, TransportError, TimeoutError) as error:
            raise TestbedError(f"a device failed: {error}") from error
