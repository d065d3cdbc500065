# SPDX-License-Identifier: Apache-2.0
"""Shaped links carry their rate in both directions, independently of each other, and count every dropped packet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from emul import MininetFabric
from netmodel import OvsHash, PortRef, equal_cost_paths, leaf_spine, ports_for_path
from tests.integration.traffic import FRAME_OVERHEAD, PORT, address, received, receiver, sender

pytestmark = [pytest.mark.sandboxed, pytest.mark.alone]

FABRIC_BPS = 20_000_000
PAYLOAD_BYTES = 4108  # a RoCE packet of path MTU 4096 without its checksum, as good as any
FRAME_BITS = 8 * (PAYLOAD_BYTES + FRAME_OVERHEAD)
TOLERANCE = 0.03
BURST_PACKETS = 32

# Hosts offer more than an uplink carries: the fabric, not the sender, is to be the bottleneck.
TOPOLOGY = leaf_spine(2, 2, 2, 2 * FABRIC_BPS, FABRIC_BPS)


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MininetFabric]:
    with MininetFabric(TOPOLOGY, log_dir=tmp_path_factory.mktemp("shaping")) as running:
        yield running


class Stream(threading.Thread):
    """Datagrams from one host to another over a chosen spine, in bursts, at `offered_bps` for `seconds`."""

    def __init__(
        self, fabric: MininetFabric, source: str, destination: str, spine: str, offered_bps: float, seconds: float
    ) -> None:
        super().__init__()
        paths = equal_cost_paths(TOPOLOGY, source, destination)
        self.path = next(path for path in paths if any(port.node == spine for port in path))
        port = int(ports_for_path(TOPOLOGY, source, destination, self.path, OvsHash())[0])
        self._out, self._into = sender(fabric, source, port), receiver(fabric, destination)
        self._to = (str(address(fabric, destination)), PORT)
        self._seconds = seconds
        self._interval_s = BURST_PACKETS * FRAME_BITS / offered_bps
        self.sent = self.arrived = 0
        self.goodput_bps = 0.0

    def run(self) -> None:
        taking = threading.Thread(target=self._take)
        taking.start()
        payload, start = bytes(PAYLOAD_BYTES), time.monotonic()
        bursts = 0
        while (now := time.monotonic() - start) < self._seconds:
            if now < bursts * self._interval_s:
                time.sleep(bursts * self._interval_s - now)
            for _ in range(BURST_PACKETS):
                self._out.sendto(payload, self._to)
                self.sent += 1
            bursts += 1
        taking.join()
        self._out.close()
        self._into.close()

    def _take(self) -> None:
        self.arrived, first, last = received(self._into)
        self.goodput_bps = (self.arrived - 1) * FRAME_BITS / (last - first)


def run_together(*streams: Stream) -> None:
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()


def dropped(fabric: MininetFabric) -> dict[PortRef, int]:
    return {port: counters.dropped for port, counters in fabric.link_counters().items()}


def test_a_link_carries_its_rate_both_ways_at_once(fabric: MininetFabric) -> None:
    there = Stream(fabric, "h1", "h3", "spine1", 1.5 * FABRIC_BPS, 3)
    back = Stream(fabric, "h4", "h2", "spine1", 1.5 * FABRIC_BPS, 3)
    run_together(there, back)
    assert there.goodput_bps == pytest.approx(FABRIC_BPS, rel=TOLERANCE)
    assert back.goodput_bps == pytest.approx(FABRIC_BPS, rel=TOLERANCE)


def test_every_drop_is_counted_and_at_the_link_where_it_happened(fabric: MininetFabric) -> None:
    before = dropped(fabric)
    # Both leaves' uplinks to both spines at once: four full queues behind one sending socket of OVS.
    streams = [
        Stream(fabric, "h1", "h3", "spine1", 1.6 * FABRIC_BPS, 3),
        Stream(fabric, "h2", "h4", "spine2", 1.6 * FABRIC_BPS, 3),
        Stream(fabric, "h3", "h1", "spine1", 1.6 * FABRIC_BPS, 3),
        Stream(fabric, "h4", "h2", "spine2", 1.6 * FABRIC_BPS, 3),
    ]
    run_together(*streams)
    after = dropped(fabric)
    lost = {stream.path[1]: stream.sent - stream.arrived for stream in streams}
    assert all(count > 100 for count in lost.values())
    assert {port: after[port] - before[port] for port in after if after[port] != before[port]} == lost
    assert not any(fabric.overruns().values())
    for stream in streams:
        assert stream.goodput_bps == pytest.approx(FABRIC_BPS, rel=TOLERANCE)


def test_a_link_below_its_rate_drops_nothing(fabric: MininetFabric) -> None:
    before = dropped(fabric)
    stream = Stream(fabric, "h1", "h4", "spine2", 0.8 * FABRIC_BPS, 2)
    stream.start()
    stream.join()
    assert stream.arrived == stream.sent
    assert dropped(fabric) == before
