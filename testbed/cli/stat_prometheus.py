# SPDX-License-Identifier: Apache-2.0
"""Live counters as metrics: as text for node_exporter's textfile collector, or over HTTP.

Their number depends on the NICs of this host, and on its peers and lanes only where that detail is asked for.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from hostlib.stats import COUNTERS, DeviceSnapshot, LaneSnapshot, Process, Survey
from testbed.cli import metrics_server
from testbed.live.totals import DETAILS, Detail, Key, Labels, Totals, user
from testbed.provenance import commit, installed_version

_NAMES = ("uid", "device", "peer", "lane")
"""Of labels; sums to a detail have the first of them."""


def exposition(survey: Survey, detail: Detail = "device") -> str:
    """The counters of all processes, once. What had vanished before is not in them."""
    registry = CollectorRegistry()
    registry.register(HostCollector(lambda: survey, detail))
    return generate_latest(registry).decode()


def serve(address: str, port: int, look: Callable[[], Survey], detail: Detail) -> int:
    """As `metrics_server.serve`, the counters that `look` finds at each request."""
    return metrics_server.serve(address, port, HostCollector(look, detail))


class HostCollector(Collector):
    """Metrics of the devices that `look` finds at each request, and of their lanes to this detail."""

    def __init__(self, look: Callable[[], Survey], detail: Detail) -> None:
        self._look = look
        self._totals = Totals(detail)
        self._detail = detail
        self._lock = threading.Lock()  # requests may come at the same time

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            survey = self._look()
            self._totals.take(survey)
            sums = self._totals.sums
        build = InfoMetricFamily("paralet_exporter", "Version and commit of this exporter.")
        build.add_metric((), {"version": installed_version(), "commit": commit()})
        yield build
        yield GaugeMetricFamily(
            "paralet_stat_left_out",
            "Limits reached and claims of others' devices: `paralet stat` names them.",
            value=len(survey.left_out),
        )
        yield from _counters(sums)
        yield from _of_devices(survey.processes)
        yield from _of_path_clients(survey.processes)
        for detail in DETAILS[: DETAILS.index(self._detail) + 1]:
            yield from _round_trips(survey.processes, detail)
        if self._detail == "lane":
            yield from _of_lanes(survey.processes)


def _counters(sums: dict[Key, tuple[int, ...]]) -> Iterator[Metric]:
    families: defaultdict[tuple[str, Detail], list[tuple[Labels, tuple[int, ...]]]] = defaultdict(list)
    for (group, detail, labels), values in sums.items():
        families[group, detail].append((labels, values))
    for (group, detail), rows in families.items():
        names = _labels(detail)
        if group == "discards":
            family = CounterMetricFamily(
                "paralet_device_discards", "Packets discarded, by reason.", labels=(*names, "reason")
            )
            for labels, values in rows:
                for reason, value in zip(COUNTERS[group], values, strict=True):
                    family.add_metric((*labels, reason), value)
            yield family
            continue
        prefix = detail if group == "lane" else group
        for place, (name, meaning) in enumerate(COUNTERS[group].items()):
            family = CounterMetricFamily(f"paralet_{prefix}_{name}", meaning, labels=names)
            for labels, values in rows:
                family.add_metric(labels, values[place])
            yield family


def _of_devices(processes: Sequence[Process]) -> Iterator[Metric]:
    info = InfoMetricFamily(
        "paralet_device",
        "Always 1, for each kind of use of a NIC: version and back end, job and rank, and the device's options.",
        labels=_labels("device"),
    )
    members = GaugeMetricFamily(
        "paralet_device_member_info",
        "Always 1, for each NIC of a fused device.",
        labels=(*_labels("device"), "member", "interface", "address"),
    )
    rate = GaugeMetricFamily(
        "paralet_device_line_rate_bps", "Highest pacing rate in bits per second.", labels=_NAMES[:2]
    )
    connections = GaugeMetricFamily("paralet_device_connections", "Open connections.", labels=_NAMES[:2])
    peers = GaugeMetricFamily("paralet_device_peers", "Peers with which devices share QPs.", labels=_NAMES[:2])
    lanes = GaugeMetricFamily("paralet_device_lanes", "Lanes to all peers.", labels=_NAMES[:2])
    uses: dict[tuple[Labels, tuple[tuple[str, str], ...]], None] = {}
    nics: dict[tuple[str, ...], None] = {}
    for labels, found in _by_nic(processes).items():
        for process, device in found:
            use = {
                "interface": device.interface,
                "policy": device.policy,
                "m": str(device.m),
                "path_mtu": str(device.path_mtu),
                "version": device.version,
                "back_end": device.back_end,
                "job": process.job,
                "rank": process.rank,
            }
            uses[labels, tuple(use.items())] = None
            for index, nic in enumerate(device.members):
                nics[(*labels, str(index), nic.interface, nic.address)] = None
        devices = [device for _, device in found]
        if rates := [device.line_rate_bps for device in devices if device.line_rate_bps is not None]:
            rate.add_metric(labels, max(rates))
        connections.add_metric(labels, sum(device.connections for device in devices))
        peers.add_metric(labels, sum(device.peers for device in devices))
        lanes.add_metric(labels, sum(len(device.lanes) + device.lanes_omitted for device in devices))
    for labels, row in uses:
        info.add_metric(labels, dict(row))
    for names in nics:
        members.add_metric(names, 1)
    yield from (info, members, rate, connections, peers, lanes)


def _of_path_clients(processes: Sequence[Process]) -> Iterator[Metric]:
    connected = GaugeMetricFamily(
        "paralet_path_client_connected", "1 while all its devices are connected to the path service.", labels=_NAMES[:2]
    )
    age = GaugeMetricFamily(
        "paralet_path_client_state_age_seconds", "Seconds since one last (dis)connected.", labels=_NAMES[:2]
    )
    for labels, found in _by_nic(processes).items():
        if clients := [device.path_client for _, device in found if device.path_client is not None]:
            connected.add_metric(labels, all(client.connected for client in clients))
            age.add_metric(labels, max(0.0, time.monotonic() - max(client.since_s for client in clients)))
    yield from (connected, age)


def _round_trips(processes: Sequence[Process], detail: Detail) -> Iterator[Metric]:
    """The slowest and the fastest round trip, and how much slower the slowest lane of a peer is than its fastest."""
    names = _labels(detail)
    slowest = GaugeMetricFamily(f"paralet_{detail}_rtt_seconds", "Longest smoothed round trip of a lane.", labels=names)
    least = GaugeMetricFamily(f"paralet_{detail}_min_rtt_seconds", "Shortest round trip ever measured.", labels=names)
    ratio = GaugeMetricFamily(
        f"paralet_{detail}_rtt_ratio",
        "Longest round trip over the shortest one, of lanes to the same peer.",
        labels=names,
    )
    peers: defaultdict[Labels, defaultdict[str, list[LaneSnapshot]]] = defaultdict(lambda: defaultdict(list))
    for labels, lane in _lanes(processes):
        if lane.rtt_s > 0:
            peers[labels[: len(names)]][lane.peer].append(lane)
    for labels, by_peer in peers.items():
        every = [lane for lanes in by_peer.values() for lane in lanes]
        slowest.add_metric(labels, max(lane.rtt_s for lane in every))
        least.add_metric(labels, min(lane.min_rtt_s for lane in every))
        ratio.add_metric(labels, max(_ratio(lanes) for lanes in by_peer.values()))
    yield from (slowest, least) if detail == "lane" else (slowest, least, ratio)


def _ratio(lanes: Iterable[LaneSnapshot]) -> float:
    trips = [lane.rtt_s for lane in lanes]
    return max(trips) / min(trips)


def _of_lanes(processes: Sequence[Process]) -> Iterator[Metric]:
    window = GaugeMetricFamily("paralet_lane_window_packets", "Packets that may be in flight.", labels=_NAMES)
    port = GaugeMetricFamily("paralet_lane_port", "The lane's source port.", labels=_NAMES)
    for labels, lane in dict(_lanes(processes)).items():
        window.add_metric(labels, lane.window)
        port.add_metric(labels, lane.port)
    yield from (window, port)


def _labels(detail: Detail) -> tuple[str, ...]:
    return _NAMES[: 2 + DETAILS.index(detail)]


def _by_nic(processes: Sequence[Process]) -> dict[Labels, list[tuple[Process, DeviceSnapshot]]]:
    found: defaultdict[Labels, list[tuple[Process, DeviceSnapshot]]] = defaultdict(list)
    for process in processes:
        for device in process.devices:
            found[user(process.uid), device.address].append((process, device))
    return found


def _lanes(processes: Sequence[Process]) -> Iterator[tuple[Labels, LaneSnapshot]]:
    for labels, found in _by_nic(processes).items():
        for _, device in found:
            for lane in device.lanes:
                yield (*labels, lane.peer, str(lane.lane)), lane
