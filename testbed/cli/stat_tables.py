# SPDX-License-Identifier: Apache-2.0
"""The tables of `paralet stat`: devices, their path clients (policy `controller` only), and lanes.

On a terminal, the tables are limited to the rows and columns that fit.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from pathlib import PurePath
from typing import Generic, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hostlib.stats import DeviceSnapshot, LaneSnapshot, Member, PathClient, Process, Survey, address_order
from netmodel.printable import printable
from testbed.live.lane_rates import device_rates
from testbed.live.pinned import PinnedMoment, PinnedRates

_COMMAND_CHARACTERS = 24
_OTHER_LINES = 11  # headings, empty lines, and the lines that count omitted rows
_PATH_CLIENT_LINES = 4  # additional lines when the path service's table is shown
_EVERYTHING = 10_000
_NONE_PINNED = PinnedMoment()


@dataclass(frozen=True, slots=True)
class _Rates:
    """Payload bits per second of a lane or of a device; None before the second survey."""

    tx_bps: float | None
    rx_bps: float | None

    @property
    def sum_bps(self) -> float:
        return (self.tx_bps or 0.0) + (self.rx_bps or 0.0)


@dataclass(frozen=True, slots=True)
class _DeviceRow:
    number: int
    process: Process
    device: DeviceSnapshot
    rates: _Rates


@dataclass(frozen=True, slots=True)
class _PathClientRow:
    number: int
    """The number of the device in the first table."""
    client: PathClient
    age_s: float
    """Seconds since the path service connected or disconnected."""


@dataclass(frozen=True, slots=True)
class _LaneRow:
    number: int
    """The number of the device in the first table."""
    lane: LaneSnapshot
    rates: _Rates

    @property
    def activity(self) -> tuple[float, int]:
        return self.rates.sum_bps, self.lane.tx_bytes + self.lane.rx_bytes


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class _Column(Generic[Row]):
    heading: str
    cell: Callable[[Row], str]
    right: bool = True
    spare: int = 0
    """Columns with the highest value are dropped first when the terminal is too narrow. 0 is never dropped."""


def _gbit(bps: float | None) -> str:
    return "-" if bps is None else f"{bps / 1e9:.3f}"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds else "-"


_DEVICES: tuple[_Column[_DeviceRow], ...] = (
    _Column("#", lambda row: str(row.number)),
    _Column("uid", lambda row: "-" if row.process.uid is None else str(row.process.uid)),
    _Column("pid", lambda row: str(row.process.pid)),
    _Column("process", lambda row: _brief(row.process.command), right=False, spare=2),
    _Column("device", lambda row: _place(row.device), right=False),
    _Column("policy", lambda row: row.device.policy, right=False),
    _Column("m", lambda row: str(row.device.m)),
    _Column("peers", lambda row: str(row.device.peers), spare=5),
    _Column("conns", lambda row: str(row.device.connections), spare=6),
    _Column("tx Gbit/s", lambda row: _gbit(row.rates.tx_bps)),
    _Column("rx Gbit/s", lambda row: _gbit(row.rates.rx_bps)),
    _Column("sends", lambda row: f"{row.device.messages.sends:,}", spare=3),
    _Column("receives", lambda row: f"{row.device.messages.receives:,}", spare=3),
    _Column("failed", lambda row: f"{row.device.messages.failed:,}", spare=1),
    _Column("discards", lambda row: f"{_discards(row.device):,}", spare=4),
)
_PATH_CLIENTS: tuple[_Column[_PathClientRow], ...] = (
    _Column("#", lambda row: str(row.number)),
    _Column("path service", lambda row: "connected" if row.client.connected else "away", right=False),
    _Column("for", lambda row: f"{row.age_s:,.1f} s"),
    _Column("reconnects", lambda row: f"{max(0, row.client.connections - 1):,}", spare=1),
    _Column("elephants", lambda row: f"{row.client.announced:,}"),
    _Column("assigned", lambda row: f"{row.client.assigned:,}"),
    _Column("on ECMP first", lambda row: f"{row.client.ecmp_starts:,}"),
    _Column("over", lambda row: f"{row.client.released:,}", spare=3),
    _Column("pushes", lambda row: f"{row.client.pushes:,}", spare=4),
    _Column("reverted", lambda row: f"{row.client.reverted:,}"),
    _Column("refused", lambda row: f"{row.client.invalid:,}", spare=2),
    _Column("stale", lambda row: f"{row.client.stale:,}", spare=5),
    _Column("probes", lambda row: f"{row.client.probes_sent:,}", spare=6),
    _Column("answered", lambda row: f"{row.client.probes_answered:,}", spare=8),
    _Column("limited", lambda row: f"{row.client.probes_limited:,}", spare=9),
    _Column("moved", lambda row: f"{row.client.ports_moved:,}", spare=7),
)
_LANES: tuple[_Column[_LaneRow], ...] = (
    _Column("#", lambda row: str(row.number)),
    _Column("peer", lambda row: row.lane.peer, right=False),
    _Column("lane", lambda row: str(row.lane.lane)),
    _Column("port", lambda row: str(row.lane.port)),
    _Column("set by", lambda row: row.lane.port_method, right=False),
    _Column("tx Gbit/s", lambda row: _gbit(row.rates.tx_bps)),
    _Column("rx Gbit/s", lambda row: _gbit(row.rates.rx_bps)),
    _Column("RTT us", lambda row: _microseconds(row.lane.rtt_s)),
    _Column("least", lambda row: _microseconds(row.lane.min_rtt_s), spare=3),
    _Column("window", lambda row: f"{row.lane.window:.1f}", spare=4),
    _Column("flowlets", lambda row: f"{row.lane.flowlets:,}", spare=5),
    _Column("resent", lambda row: f"{row.lane.retransmits:,}"),
    _Column("timeouts", lambda row: f"{row.lane.timeouts:,}", spare=2),
    _Column("moves", lambda row: f"{row.lane.moves:,}", spare=1),
)
_PINNED: tuple[_Column[PinnedRates], ...] = (
    _Column("pid", lambda row: str(row.flow.pid)),
    _Column("pinned", lambda row: f"{row.flow.what}, {row.flow.protocol}", right=False),
    _Column("to", lambda row: row.peer, right=False),
    _Column("port", lambda row: str(row.flow.port)),
    _Column("tx Gbit/s", lambda row: _gbit(row.tx_bps)),
    _Column("bytes", lambda row: f"{row.flow.bytes:,}", spare=1),
    _Column("state", lambda row: row.state or "-", right=False),
)


class Picture:
    """Draws the latest survey. Rates are averages since the survey before it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before: Survey | None = None
        self._now = Survey((), (), (), ())
        self._taken_s = 0.0
        self._interval_s = 0.0
        self._operations: Sequence[str] = ()
        self._pinned = PinnedMoment()
        self.looks = 0

    def take(
        self, look: Survey, now_s: float, operations: Sequence[str] = (), pinned: PinnedMoment = _NONE_PINNED
    ) -> None:
        """Make `look` the latest survey. `now_s` is its time on the machine's monotonic clock, in seconds.

        `operations` are sentences about NCCL's operations in its processes, `pinned` the connections that `paralet pin`
        has given ports.
        """
        self._operations, self._pinned = operations, pinned
        self._before = self._now if self.looks else None
        self._now, self._interval_s, self._taken_s = look, now_s - self._taken_s, now_s
        self.looks += 1

    def draw(self) -> RenderableType:
        """Devices, then lanes, sorted by address. Only the busiest lanes are shown when not all fit."""
        devices, lanes = self._rows()
        clients = any(row.device.path_client for row in devices)
        room = self._console.size.height - _OTHER_LINES if self._console.is_terminal else _EVERYTHING
        room -= (_PATH_CLIENT_LINES if clients else 0) + 2 * len(self._operations)
        shown_pinned = self._pinned_that_fit(room if not devices else room // 3)
        room -= len(shown_pinned)
        shown_devices = devices[: max(1, room // (3 if clients else 2))]
        shown_clients = [
            _PathClientRow(row.number, row.device.path_client, max(0.0, self._taken_s - row.device.path_client.since_s))
            for row in shown_devices
            if row.device.path_client
        ]
        shown_lanes = self._busiest(lanes, max(1, room - len(shown_devices) - len(shown_clients)))
        counts = [_some(len(devices), "device"), _some(len(lanes), "lane")]
        if self._pinned:
            counts.append(_some(len(self._pinned.flows), "pinned connection"))
        parts: list[RenderableType] = [
            Text(
                printable(f"{', '.join(counts)}, {datetime.now():%H:%M:%S}"),
                style="bold",
            ),
        ]
        if devices:
            parts.append(self._table(_device_columns(devices), shown_devices))
        parts += self._operations
        if clients:
            parts.append(self._table(_PATH_CLIENTS if len(devices) > 1 else _PATH_CLIENTS[1:], shown_clients))
        if devices:
            parts.append(self._table(_LANES if len(devices) > 1 else _LANES[1:], shown_lanes))
        if shown_pinned:
            parts.append(self._table(_PINNED, shown_pinned))
        if left_out := len(devices) - len(shown_devices):
            parts.append(f"and {_some(left_out, 'more device')}: enlarge the terminal, name PIDs, or use --json")
        if left_out := len(lanes) - len(shown_lanes):
            parts.append(f"and {_some(left_out, 'quieter lane')}: enlarge the terminal, or use --json")
        if left_out := len(self._pinned.flows) - len(shown_pinned):
            parts.append(f"and {_some(left_out, 'quieter pinned connection')}: enlarge the terminal, or use --json")
        if others := len(self._pinned.others):
            parts.append(f"{_some(others, 'connection')} without a planned port: paralet pin --check PID tells why")
        return Group(*parts)

    def _pinned_that_fit(self, room: int) -> list[PinnedRates]:
        """Those that hang, then the busiest, up to `room`, in the order of the agents."""
        flows = list(enumerate(self._pinned.flows))
        first = nlargest(max(1, room), flows, key=lambda one: (one[1].flow.hangs, one[1].tx_bps or 0, -one[0]))
        return [flow for _, flow in sorted(first, key=lambda one: one[0])]

    def _rows(self) -> tuple[list[_DeviceRow], list[_LaneRow]]:
        devices, lanes = [], []
        before = {
            (process.pid, device.guid): device
            for process in (self._before.processes if self._before else ())
            for device in process.devices
        }
        pairs = [(process, device) for process in self._now.processes for device in process.devices]
        for number, (process, device) in enumerate(pairs, start=1):
            rows = self._lanes_of(number, process, before.get((process.pid, device.guid)), device)
            lanes += sorted(rows, key=lambda row: (*address_order(row.lane.peer), row.lane.lane, row.lane.qpn))
            devices.append(_DeviceRow(number, process, device, _total([row.rates for row in rows])))
        return devices, lanes

    def _lanes_of(
        self, row: int, process: Process, before: DeviceSnapshot | None, now: DeviceSnapshot
    ) -> list[_LaneRow]:
        return [
            _LaneRow(row, rates.lane, _Rates(rates.tx_bps, rates.rx_bps))
            for rates in device_rates(process, before, now, self._interval_s)
        ]

    @staticmethod
    def _busiest(lanes: list[_LaneRow], room: int) -> list[_LaneRow]:
        busiest = {index for index, _ in nlargest(room, enumerate(lanes), key=lambda item: item[1].activity)}
        return [row for index, row in enumerate(lanes) if index in busiest]

    def _table(self, columns: Sequence[_Column[Row]], rows: Sequence[Row]) -> Table:
        """The rows, with as many columns as fit the console's width."""
        kept = list(columns)
        while True:
            drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
            for column in kept:
                drawn.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
            for row in rows:
                drawn.add_row(*(column.cell(row) for column in kept))
            unlimited = self._console.options.update(max_width=_EVERYTHING)
            spare = max(column.spare for column in kept)
            if not spare or Measurement.get(self._console, unlimited, drawn).maximum <= self._console.width:
                return drawn
            kept = [column for column in kept if column.spare != spare]


def _device_columns(devices: Sequence[_DeviceRow]) -> Sequence[_Column[_DeviceRow]]:
    """All columns, without the number of a single device, and without users where all devices are this user's."""
    own = all(row.process.uid in (None, os.getuid()) for row in devices)
    needless = {*(["#"] if len(devices) == 1 else []), *(["uid"] if own else [])}
    return [column for column in _DEVICES if column.heading not in needless]


def _total(rates: Sequence[_Rates]) -> _Rates:
    tx = [each.tx_bps for each in rates if each.tx_bps is not None]
    rx = [each.rx_bps for each in rates if each.rx_bps is not None]
    return _Rates(sum(tx) if len(tx) == len(rates) else None, sum(rx) if len(rx) == len(rates) else None)


def _some(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _place(device: DeviceSnapshot) -> str:
    def nic(device: DeviceSnapshot | Member) -> str:
        port = "" if device.udp_port == 4791 else f":{device.udp_port}"
        return f"{device.interface} {device.address}{port}"

    return " + ".join(map(nic, device.members or (device,)))


def _discards(device: DeviceSnapshot) -> int:
    d = device.discards
    return d.malformed + d.icrc + d.unknown_qp + d.wrong_source + d.send_errors + d.injected


def _brief(command: str) -> str:
    """A shortened command line: programs and scripts without their folders, cut to a fixed length."""
    words = [PurePath(word).name if word.startswith("/") else word for word in command.split()]
    line = " ".join(words)
    return line if len(line) <= _COMMAND_CHARACTERS else f"{line[: _COMMAND_CHARACTERS - 2]}.."
