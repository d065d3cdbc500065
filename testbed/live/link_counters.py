# SPDX-License-Identifier: Apache-2.0
"""Counters of switch ports that others measure: lines of text in, rates out. Pure: no files or clocks.

A line is a sample of the OpenMetrics or Prometheus text format, as exporters for SNMP, gNMI and Linux write them, or a
JSON object with `tags`, `values` and `timestamp` (nanoseconds), or an array of these, as gNMIc's format `event` has.
Samples of other metrics, comments and empty lines are ignored.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

_SAMPLE = re.compile(
    r'([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)(?:[ \t]+([-+\d.eE]+))?(?:[ \t]+#.*)?'
)
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": " "}
_SWITCH_LABELS = ("source", "target", "switch", "sysname", "hostname", "instance", "host")
_PORT_LABELS = ("interface_name", "ifname", "interface", "port", "ifdescr", "device", "name", "ifindex")
_MILLISECONDS_FROM = 1e11
"""Timestamps of the Prometheus format are milliseconds, those of OpenMetrics seconds: no date is near to both."""

_NEIGHBOUR = "neighbors/neighbor/state/system-name"
"""End of OpenConfig's path of an LLDP neighbour's name."""

_Kind = Literal["tx_bytes", "rx_bytes", "drops", "rate_bps"]
_NAMES: tuple[tuple[str, _Kind, float], ...] = (
    ("ifhcoutoctets", "tx_bytes", 1),
    ("ifoutoctets", "tx_bytes", 1),
    ("out_octets", "tx_bytes", 1),
    ("transmit_bytes", "tx_bytes", 1),
    ("tx_bytes", "tx_bytes", 1),
    ("ifhcinoctets", "rx_bytes", 1),
    ("ifinoctets", "rx_bytes", 1),
    ("in_octets", "rx_bytes", 1),
    ("receive_bytes", "rx_bytes", 1),
    ("rx_bytes", "rx_bytes", 1),
    ("ifoutdiscards", "drops", 1),
    ("out_discards", "drops", 1),
    ("transmit_drop", "drops", 1),
    ("tx_dropped", "drops", 1),
    ("ifhighspeed", "rate_bps", 1e6),
    ("ifspeed", "rate_bps", 1),
    ("speed_bytes", "rate_bps", 8),
)
"""Ends of metric names in lower case, with underscores, without `_total`: the kind, and the factor of its unit."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A counter of a switch's port at a time in seconds; None where the line does not tell the time."""

    switch: str
    port: str
    kind: _Kind
    value: float
    time_s: float | None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The system name of the LLDP neighbour at a switch's port."""

    switch: str
    port: str
    name: str


@dataclass(frozen=True, slots=True)
class PortRates:
    """Rates of a port in bit/s between its last two samples, None before the second. `drops`: packets so far."""

    switch: str
    port: str
    tx_bps: float | None
    rx_bps: float | None
    drops: int
    rate_bps: float | None
    """The port's speed, None where it is unknown."""
    neighbour: str = ""
    """The system name of the LLDP neighbour, where the lines tell it."""

    @property
    def utilisation(self) -> float | None:
        """The busier direction's share of the speed."""
        rates = [bps for bps in (self.tx_bps, self.rx_bps) if bps is not None]
        return max(rates) / self.rate_bps if rates and self.rate_bps else None


def samples(line: str) -> Iterator[Sample | Neighbour]:
    """The samples and LLDP neighbours in a line. Raises ValueError, which says in a few words what is wrong."""
    text = line.strip()
    if not text or text.startswith("#"):
        return
    if text[0] in "{[":
        yield from _of_json(text)
        return
    match = _SAMPLE.fullmatch(text)
    if match is None:
        raise ValueError("neither a sample of the OpenMetrics format nor JSON")
    name, labels, value, timestamp = match.groups()
    time_s = None if timestamp is None else _number(timestamp)
    if time_s is not None and time_s >= _MILLISECONDS_FROM:
        time_s /= 1e3
    yield from _known(name, _labels(labels or ""), value, time_s)


def _of_json(text: str) -> Iterator[Sample | Neighbour]:
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError("not valid JSON") from error
    for event in data if isinstance(data, list) else [data]:
        match event:
            case {"tags": dict(tags), "values": dict(values)}:
                stamp = event.get("timestamp")
                time_s = None if stamp is None else _number(stamp) / 1e9
                labels = {str(name): str(value) for name, value in tags.items()}
                for path, value in values.items():
                    if path.endswith(_NEIGHBOUR):
                        yield Neighbour(*_place(path, labels), _printable(str(value)))
                        continue
                    yield from _known(path.rpartition("/")[2], labels, value, time_s)
            case {"sync-response": _} | {"deletes": _, "tags": _}:
                continue
            case _:
                raise ValueError("an object without `tags` and `values`")


def _labels(text: str) -> dict[str, str]:
    found, place = {}, 0
    while place < len(text.rstrip(", \t")):
        match = _LABEL.match(text, place)
        if match is None:
            raise ValueError('its labels are not name="value" pairs')
        found[match[1]] = re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), match[2])
        place = match.end()
    return found


def _known(name: str, labels: Mapping[str, str], value: Any, time_s: float | None) -> Iterator[Sample]:
    """The sample, if its metric is one of a port's that are shown."""
    plain = name.lower().replace("-", "_").removesuffix("_total")
    kind, factor = next(((kind, factor) for end, kind, factor in _NAMES if plain.endswith(end)), (None, 0.0))
    if kind is None:
        return
    yield Sample(*_place(name, labels), kind, factor * _number(value), time_s)


def _place(name: str, labels: Mapping[str, str]) -> tuple[str, str]:
    """The switch and its port by the labels of a metric. Raises ValueError without a port."""
    lower = {label.lower().replace("-", "_"): words for label, words in labels.items()}
    switch = next((lower[label] for label in _SWITCH_LABELS if label in lower), "")
    port = next((lower[label] for label in _PORT_LABELS if label in lower), "")
    if not port:
        raise ValueError(f"{name} without a label that names the port, such as {', '.join(_PORT_LABELS[:3])}")
    return _printable(switch), _printable(port)


def _number(value: Any) -> float:
    """gNMI encodes 64-bit integers as strings (RFC 7951, section 6.1)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{json.dumps(value)[:40]} is not a number")
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{str(value)[:40]!r} is not a number") from error
    if not isfinite(number) or number < 0:
        raise ValueError(f"{value} is not a count")
    return number


def _printable(words: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in words)


@dataclass(slots=True)
class _Counter:
    value: float
    time_s: float
    per_s: float | None = None

    def take(self, value: float, time_s: float) -> None:
        """A later value. A counter that begins anew has no rate until the next."""
        if time_s <= self.time_s:
            return
        self.per_s = (value - self.value) / (time_s - self.time_s) if value >= self.value else None
        self.value, self.time_s = value, time_s


@dataclass(slots=True)
class LinkCounters:
    """The latest counters of all ports, from lines in order."""

    _neighbours: dict[tuple[str, str], str] = field(default_factory=dict)
    _counters: dict[tuple[str, str], dict[_Kind, _Counter]] = field(default_factory=dict)
    _lines: int = 0

    def read(self, line: str, now_s: float) -> str | None:
        """Take the next line, which came at `now_s`. A sentence if it is bad; nothing of a bad line counts."""
        self._lines += 1
        try:
            found = list(samples(line))
        except ValueError as error:
            return f"line {self._lines} of the counters: {error}"
        for sample in found:
            if isinstance(sample, Neighbour):
                self._neighbours[sample.switch, sample.port] = sample.name
                continue
            counters = self._counters.setdefault((sample.switch, sample.port), {})
            time_s = now_s if sample.time_s is None else sample.time_s
            if sample.kind in counters:
                counters[sample.kind].take(sample.value, time_s)
            else:
                counters[sample.kind] = _Counter(sample.value, time_s)
        return None

    def rates(self) -> list[PortRates]:
        """All ports, the busiest first: by utilisation, then by rate."""

        def per_s(counters: dict[_Kind, _Counter], kind: _Kind) -> float | None:
            found = counters.get(kind)
            return None if found is None or found.per_s is None else 8 * found.per_s

        def value(counters: dict[_Kind, _Counter], kind: _Kind) -> float:
            return counters[kind].value if kind in counters else 0.0

        ports = [
            PortRates(
                switch,
                port,
                per_s(counters, "tx_bytes"),
                per_s(counters, "rx_bytes"),
                int(value(counters, "drops")),
                value(counters, "rate_bps") or None,
                self._neighbours.get((switch, port), ""),
            )
            for (switch, port), counters in self._counters.items()
        ]
        return sorted(
            ports, key=lambda port: (-(port.utilisation or 0.0), -(port.tx_bps or 0.0) - (port.rx_bps or 0.0))
        )
