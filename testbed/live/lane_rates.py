# SPDX-License-Identifier: Apache-2.0
"""Rates of lanes between two surveys of the live counters."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hostlib.stats import EVERY_S, DeviceSnapshot, LaneSnapshot, Process, Survey


@dataclass(frozen=True, slots=True)
class LaneRates:
    """Payload rates of a lane in bits per second, retransmissions included; None in the first survey."""

    process: Process
    device: DeviceSnapshot
    lane: LaneSnapshot
    tx_bps: float | None
    rx_bps: float | None


ORDERS: tuple[tuple[str, Callable[[LaneRates], float]], ...] = (
    ("rate both ways", lambda rates: (rates.tx_bps or 0.0) + (rates.rx_bps or 0.0)),
    ("round trip", lambda rates: rates.lane.rtt_s),
    ("resent", lambda rates: rates.lane.retransmits),
    ("moves", lambda rates: rates.lane.moves),
)
"""Names of the orders in which lanes are listed, and what they sort by, the largest first."""


def lane_rates(before: Survey | None, now: Survey, interval_s: float) -> Iterator[LaneRates]:
    """The rates of all lanes of `now`, taken `interval_s` seconds after `before`."""
    earlier = {
        (process.pid, device.guid): device
        for process in (before.processes if before else ())
        for device in process.devices
    }
    for process in now.processes:
        for device in process.devices:
            yield from device_rates(process, earlier.get((process.pid, device.guid)), device, interval_s)


def device_rates(
    process: Process, before: DeviceSnapshot | None, device: DeviceSnapshot, interval_s: float
) -> Iterator[LaneRates]:
    """The rates of a device's lanes, since its snapshot `before` in a survey `interval_s` seconds earlier."""
    if before is None:
        for lane in device.lanes:
            yield LaneRates(process, device, lane, None, None)
        return
    # An idle device publishes nothing, so the earlier counters were still current at the time of that survey.
    seconds = min(device.time_s - before.time_s, interval_s + EVERY_S)
    old = {lane.qpn: lane for lane in before.lanes}
    for lane in device.lanes:
        if seconds <= 0:  # nothing new was published
            yield LaneRates(process, device, lane, 0.0, 0.0)
            continue
        then = old.get(lane.qpn)
        tx, rx = lane.tx_bytes, lane.rx_bytes
        if then is not None:
            tx, rx = tx - then.tx_bytes, rx - then.rx_bytes
        yield LaneRates(process, device, lane, 8 * tx / seconds, 8 * rx / seconds)
