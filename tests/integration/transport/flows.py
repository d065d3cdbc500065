# SPDX-License-Identifier: Apache-2.0
"""Flows that send over a link during a measurement, with the bytes of each second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hostlib import Connection, Device, Request

from .link import Link, near_address

DEPTH = 4  # messages under way per flow
PACKET_BYTES = 4200


def target_queue_s(rate_bps: float) -> float:
    """The target queue of a device with this line rate, in seconds (`Device`, target_queue_s)."""
    return max(0.002, 12 * 8 * PACKET_BYTES / rate_bps)


@dataclass(frozen=True)
class Second:
    """Measurements of about a second."""

    utilization: float
    """Of the link, by the queueing discipline's own count."""
    goodputs_bps: tuple[float, ...]
    """Of each flow: messages that were acknowledged."""
    queue_s: float
    """The time that a packet that comes at its end waits."""
    others: float
    """Share of all processors that other programs had."""


@dataclass(frozen=True)
class Outcome:
    """Consecutive seconds. Medians tolerate a few in which another program had the processors."""

    seconds: tuple[Second, ...]
    retransmits: int

    @property
    def utilization(self) -> float:
        return median(second.utilization for second in self.seconds)

    @property
    def queue_s(self) -> float:
        return median(second.queue_s for second in self.seconds)

    @property
    def fairness(self) -> float:
        """Jain's index of the flows' goodputs over all of the time."""
        totals = [sum(shares) for shares in zip(*(second.goodputs_bps for second in self.seconds), strict=True)]
        return sum(totals) ** 2 / (len(totals) * sum(total**2 for total in totals))

    @property
    def others(self) -> float:
        return median(second.others for second in self.seconds)

    def __str__(self) -> str:
        return (
            f"utilisation {self.utilization:.3f}, Jain {self.fairness:.3f}, queue {1e3 * self.queue_s:.1f} ms, "
            f"{self.retransmits} retransmits (other programs had {self.others:.0%} of the processors)"
        )


def send_until(stop: threading.Event, connection: Connection, message_bytes: int) -> None:
    message = bytes(message_bytes)
    under_way: list[Request] = [connection.send(message) for _ in range(DEPTH)]
    while not stop.is_set():
        try:
            under_way[0].wait(0.2)
        except TimeoutError:
            continue
        under_way = [*under_way[1:], connection.send(message)]


@contextmanager
def sending(link: Link, flows: int, lanes: int, rate_bps: int, message_bytes: int) -> Iterator[list[Device]]:
    """Within the block, `flows` devices send to the sink over one connection each."""
    handle = link.open()
    stop = threading.Event()
    with ExitStack() as stack:
        devices = [
            stack.enter_context(Device(near_address(i), lanes=lanes, line_rate_bps=rate_bps, seed=i))
            for i in range(flows)
        ]
        connections = [device.connect(handle, 60.0) for device in devices]
        threads = [threading.Thread(target=send_until, args=(stop, c, message_bytes)) for c in connections]
        for thread in threads:
            thread.start()
        try:
            yield devices
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def measure(link: Link, devices: list[Device], rate_bps: int, seconds: int) -> Outcome:
    """Measures for this number of seconds."""
    samples: list[Second] = []
    for _ in range(seconds):
        start, before, sent, busy = time.monotonic(), link.queue(), acknowledged(devices), others_s(link.sink_pid)
        time.sleep(1.0)
        now, queue, done = time.monotonic(), link.queue(), acknowledged(devices)
        samples.append(
            Second(
                utilization=8 * (queue["bytes"] - before["bytes"]) / (now - start) / rate_bps,
                goodputs_bps=tuple(8 * (b - a) / (now - start) for a, b in zip(sent, done, strict=True)),
                queue_s=8 * queue["backlog"] / rate_bps,
                others=(others_s(link.sink_pid) - busy) / (time.monotonic() - start) / (os.cpu_count() or 1),
            )
        )
    return Outcome(
        tuple(samples), sum(lane["retransmits"] for device in devices for lane in device.counters()["lanes"])
    )


def others_s(sink_pid: int) -> float:
    """Processor time of all programs but this one and the sink since the machine started (proc(5))."""
    user, nice, system, _, _, _, _, stolen = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    sink = Path(f"/proc/{sink_pid}/stat").read_text().rpartition(")")[2].split()
    ticks = user + nice + system + stolen - int(sink[11]) - int(sink[12])
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def acknowledged(devices: list[Device]) -> list[int]:
    return [device.counters()["messages"]["send_bytes"] for device in devices]
