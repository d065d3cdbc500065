# SPDX-License-Identifier: Apache-2.0
"""Successive moments of running devices: rates, links, and what happened in between."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from hostlib.stats import Survey
from paralet_pin.check import Report
from testbed.live.events import events
from testbed.live.lane_rates import LaneRates, lane_rates
from testbed.live.link_counters import PortRates
from testbed.live.nccl_operations import OperationState
from testbed.live.pinned import PinnedMoment, PinnedMoments

if TYPE_CHECKING:
    from testbed.live.fabric_view import FabricLoad, FabricView

_NAMED = 6
"""Interfaces that an event names."""
HISTORY = 16
"""The number of past rates that are kept of each lane."""


@dataclass(frozen=True, eq=False)
class Moment:
    """One update. `load` is None without a fabric; `history` has the latest rates sent by each of `lanes`, in bit/s."""

    lanes: Sequence[LaneRates]
    history: Sequence[Sequence[float]]
    events: Sequence[str]
    load: "FabricLoad | None"
    advice: str
    ports: Sequence[PortRates] = ()
    """Ports of switches whose counters others measure, the busiest first."""
    operations: Sequence[OperationState] = ()
    """Operations of NCCL, those under way first."""
    pinned: PinnedMoment = field(default_factory=PinnedMoment)
    """Connections that `paralet pin` has given ports."""
    unmapped: Mapping[str, str] = field(default_factory=dict)
    """Measured interfaces, as ``leaf1 Vlan10``, of which it is not known which port of the fabric they are; and why."""

    @property
    def devices(self) -> int:
        """Open devices with lanes."""
        return len({(rates.process.pid, rates.device.guid) for rates in self.lanes})

    @property
    def tx_bps(self) -> float:
        """Payload sent by all lanes together, in bit/s."""
        return sum(rates.tx_bps or 0.0 for rates in self.lanes)


class Moments:
    """Makes a moment of each survey. `view` is the fabric whose links are shown, if any; `exists`: see `events`."""

    def __init__(self, view: "FabricView | None", exists: Callable[[int], bool] = lambda pid: True) -> None:
        self._view, self._exists = view, exists
        self._before: Survey | None = None
        self._at_s = 0.0
        self._history: dict[tuple[int, str, str, int], deque[float]] = {}
        self._unmapped: dict[str, str] = {}
        self._pinned = PinnedMoments()

    def take(
        self,
        survey: Survey,
        now_s: float,
        ports: Sequence[PortRates] = (),
        operations: Sequence[OperationState] = (),
        pinned: Sequence[Report] = (),
    ) -> Moment:
        """The moment of a survey at `now_s`, in seconds of the monotonic clock.

        With it go measured ports, NCCL's operations, and what the agents of `paralet pin` say.

        Links whose ports were measured have the load that was measured, others that of the lanes.
        """
        lanes = list(lane_rates(self._before, survey, now_s - self._at_s))
        known = set() if self._before is None else {*self._before.unreadable, *self._before.left_out}
        happened = [sentence for sentence in (*survey.unreadable, *survey.left_out) if sentence not in known]
        happened += [] if self._before is None else events(self._before, survey, self._exists)
        self._before, self._at_s = survey, now_s
        keys = [(rates.process.pid, rates.device.guid, rates.lane.peer, rates.lane.lane) for rates in lanes]
        kept = {key: self._history.get(key, deque(maxlen=HISTORY)) for key in keys}
        for key, rates in zip(keys, lanes, strict=True):
            if rates.tx_bps is not None:
                kept[key].append(rates.tx_bps)
        self._history = kept
        load = None if self._view is None else self._view.measured(self._view.load(lanes), ports)
        unmapped = {} if self._view is None else _unmapped(self._view, ports)
        happened += _sentences({name: why for name, why in unmapped.items() if self._unmapped.get(name) != why})
        self._unmapped = unmapped
        advice = "" if self._view is None or load is None else self._view.advice(load)
        history = [list(kept[key]) for key in keys]
        flows = self._pinned.take(pinned, now_s)
        return Moment(lanes, history, happened, load, advice, ports, operations, flows, unmapped)


def _unmapped(view: "FabricView", ports: Sequence[PortRates]) -> dict[str, str]:
    return {f"{each.switch} {each.name}".strip(): why for each, why in view.mapped(ports).unmapped.items()}


def _sentences(unmapped: Mapping[str, str]) -> list[str]:
    """One for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in unmapped.items():
        reasons.setdefault(why, []).append(name)
    return [
        f"no load of links from {', '.join(names[:_NAMED])}{_more(len(names) - _NAMED)}: {why}"
        for why, names in reasons.items()
    ]


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def as_json(moment: Moment, view: "FabricView | None") -> dict[str, Any]:
    """The moment for programs, with the links that carry something. Rates are in bit/s, times in seconds.

    The hosts of lanes are None where no fabric tells them.
    """
    links, ends = [], {} if view is None else view.ends
    if view is not None and moment.load is not None:
        links = [
            {"link": view.name(link), "utilisation": round(float(moment.load.utilisation[link]), 4)}
            for _, _, up, down in view.pairs
            for link in (up, down)
            if moment.load.utilisation[link] > 0
        ]
    return {
        "lanes": [
            {
                "uid": rates.process.uid,
                "pid": rates.process.pid,
                "device": rates.device.name,
                "peer": rates.lane.peer,
                "device_host": ends.get(rates.device.address),
                "peer_host": ends.get(rates.lane.peer),
                "lane": rates.lane.lane,
                "port": rates.lane.port,
                "tx_bps": rates.tx_bps,
                "rx_bps": rates.rx_bps,
                "rtt_s": rates.lane.rtt_s,
                "retransmits": rates.lane.retransmits,
                "moves": rates.lane.moves,
            }
            for rates in moment.lanes
        ],
        "links": links,
        "ports": [{**asdict(port), "utilisation": port.utilisation} for port in moment.ports],
        "unmapped": dict(moment.unmapped),
        "pinned": [{**msgspec.to_builtins(each.flow), "tx_bps": each.tx_bps} for each in moment.pinned.flows],
        "operations": [{**asdict(operation), "sentence": operation.sentence} for operation in moment.operations],
        "advice": moment.advice,
        "events": list(moment.events),
    }
