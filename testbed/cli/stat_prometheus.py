# SPDX-License-Identifier: Apache-2.0
"""Live counters in Prometheus' text format 0.0.4: as text for node_exporter's textfile collector, or over HTTP."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hostlib.stats import COUNTERS, DeviceSnapshot, Process, Survey
from testbed.cli import metrics_server

_DEVICE = ("uid", "pid", "device")
_LANE = (*_DEVICE, "peer", "lane", "qpn", "port", "method")

_LANE_GAUGES = {
    "rtt_s": ("rtt_seconds", "Smoothed round trip."),
    "min_rtt_s": ("min_rtt_seconds", "Smallest round trip."),
    "window": ("window_packets", "Packets that may be in flight."),
}


def exposition(survey: Survey) -> str:
    """The counters of all processes. A lane's port is a label, so a move to another port starts a new time series."""
    registry = CollectorRegistry()
    registry.register(_Families(survey))
    return generate_latest(registry).decode()


def serve(address: str, port: int, look: Callable[[], Survey]) -> int:
    """As `metrics_server.serve`, the counters that `look` finds at each request."""
    return metrics_server.serve(address, port, _Looking(look))


class _Looking(Collector):
    def __init__(self, look: Callable[[], Survey]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        return _Families(self._look()).collect()


def _labelled(process: Process) -> Iterator[tuple[tuple[str, str, str], DeviceSnapshot]]:
    """The devices of a process with their labels. Those that share a NIC, and so a name, have their GUID in it."""
    names = Counter(device.name for device in process.devices)
    uid = "" if process.uid is None else str(process.uid)
    for device in process.devices:
        name = device.name if names[device.name] == 1 else f"{device.name}#{device.guid}"
        yield (uid, str(process.pid), name), device


class _Families(Collector):
    def __init__(self, survey: Survey) -> None:
        self._left_out = len(survey.left_out)
        # By labels: whatever processes publish, no two time series have the same. Prometheus would refuse all of them.
        devices = {labels: device for process in survey.processes for labels, device in _labelled(process)}
        self._devices = list(devices.items())
        lanes = {
            (*labels, lane.peer, str(lane.lane), str(lane.qpn), str(lane.port), lane.port_method): lane
            for labels, device in self._devices
            for lane in device.lanes
        }
        self._lanes = [(labels, asdict(lane)) for labels, lane in lanes.items()]

    def collect(self) -> Iterator[Metric]:
        left_out = GaugeMetricFamily(
            "paralet_stat_left_out", "Limits reached and claims of others' devices: `paralet stat` names them."
        )
        left_out.add_metric((), self._left_out)
        yield left_out
        yield from self._of_devices()
        yield from self._of_path_clients()
        for field, meaning in COUNTERS["lane"].items():
            counter = CounterMetricFamily(f"paralet_lane_{field}", meaning, labels=_LANE)
            for labels, lane in self._lanes:
                counter.add_metric(labels, lane[field])
            yield counter
        for field, (name, meaning) in _LANE_GAUGES.items():
            gauge = GaugeMetricFamily(f"paralet_lane_{name}", meaning, labels=_LANE)
            for labels, lane in self._lanes:
                gauge.add_metric(labels, lane[field])
            yield gauge

    def _of_devices(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "paralet_device_info", "Always 1.", labels=(*_DEVICE, "interface", "policy", "m", "path_mtu")
        )
        members = GaugeMetricFamily(
            "paralet_device_member_info",
            "Always 1, for each NIC of a fused device.",
            labels=(*_DEVICE, "member", "interface", "address"),
        )
        rate = GaugeMetricFamily("paralet_device_line_rate_bps", "Pacing rate in bits per second.", labels=_DEVICE)
        connections = GaugeMetricFamily("paralet_device_connections", "Open connections.", labels=_DEVICE)
        peers = GaugeMetricFamily("paralet_device_peers", "Peers with which the device shares QPs.", labels=_DEVICE)
        discards = CounterMetricFamily(
            "paralet_device_discards", "Packets discarded, by reason.", labels=(*_DEVICE, "reason")
        )
        for labels, device in self._devices:
            info.add_metric((*labels, device.interface, device.policy, str(device.m), str(device.path_mtu)), 1)
            for index, nic in enumerate(device.members):
                members.add_metric((*labels, str(index), nic.interface, nic.address), 1)
            if device.line_rate_bps is not None:
                rate.add_metric(labels, device.line_rate_bps)
            connections.add_metric(labels, device.connections)
            peers.add_metric(labels, device.peers)
            for reason, number in asdict(device.discards).items():
                discards.add_metric((*labels, reason), number)
        yield from (info, members, rate, connections, peers, discards)
        for field, meaning in COUNTERS["messages"].items():
            counter = CounterMetricFamily(f"paralet_messages_{field}", meaning, labels=_DEVICE)
            for labels, device in self._devices:
                counter.add_metric(labels, getattr(device.messages, field))
            yield counter

    def _of_path_clients(self) -> Iterator[Metric]:
        connected = GaugeMetricFamily(
            "paralet_path_client_connected", "1 while the path service is connected.", labels=_DEVICE
        )
        age = GaugeMetricFamily(
            "paralet_path_client_state_age_seconds",
            "Seconds since the path service (dis)connected.",
            labels=_DEVICE,
        )
        clients = [(labels, device.path_client) for labels, device in self._devices if device.path_client]
        for labels, client in clients:
            connected.add_metric(labels, client.connected)
            age.add_metric(labels, max(0.0, time.monotonic() - client.since_s))
        yield from (connected, age)
        for field, meaning in COUNTERS["path_client"].items():
            counter = CounterMetricFamily(f"paralet_path_client_{field}", meaning, labels=_DEVICE)
            for labels, client in clients:
                counter.add_metric(labels, getattr(client, field))
            yield counter
