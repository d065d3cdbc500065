# SPDX-License-Identifier: Apache-2.0
"""The screen of `paralet top`: a heat map of the fabric, the busiest link, the lanes and what happened."""

import os
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widgets import DataTable, Footer, RichLog, Static

from hostlib.stats import Survey
from netmodel.printable import printable_lines
from paralet_pin.check import Report
from testbed.live.lane_rates import ORDERS, LaneRates
from testbed.live.link_counters import PortRates
from testbed.live.moments import Moment, Moments
from testbed.live.nccl_operations import OperationState, sentences
from testbed.live.pinned import PinnedRates

if TYPE_CHECKING:
    from testbed.live.fabric_view import FabricView

_BLOCKS = " ▁▂▃▄▅▆▇█"
_MOST_LANES = 200
_MOST_LEAVES = 11
_MOST_OPERATIONS = 3
_PORT_COLUMNS = ("switch", "port", "sent Mbit/s", "received", "of its speed", "drops")
_COLUMNS = ("device", "peer", "lane", "port", "over time", "sent Mbit/s", "received", "RTT us", "resent", "moves")


class TopScreen(App[None]):
    """Updates every `interval_s` seconds from `look`. Loads are shown by height, so no colour is needed."""

    CSS = """
    #head { height: 1; text-style: bold; }
    #status { height: auto; max-height: 7; }
    #operations { height: auto; max-height: 6; }
    #heat { height: auto; max-height: 12; overflow: auto; }
    #advice { height: auto; max-height: 3; }
    #ports { height: 1fr; }
    #lanes { height: 1fr; }
    #events { height: 4; border-top: solid $foreground 30%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit", key_display="q"),
        Binding("space", "pause", "Pause"),
        Binding("s", "order", "Sort"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        look: Callable[[], Survey],
        view: "FabricView | None",
        interval_s: float,
        measured: Callable[[], tuple[list[PortRates], list[str]]] | None = None,
        status: Callable[[], tuple[str, list[str]]] | None = None,
        operations: Callable[[Survey], Sequence[OperationState]] = lambda _: (),
        exists: Callable[[int], bool] = lambda _: True,
        pinned: Callable[[], Sequence[Report]] = tuple,
    ) -> None:
        """`measured` gives the rates of switch ports and what was wrong with their counters since the last call.

        `status` gives lines that are shown too, and events since the last call; `operations` those of NCCL in a
        survey's processes; `exists` tells whether a process runs; `pinned` is what agents of `paralet pin` say.
        """
        super().__init__()
        self._status, self._operations_of, self._pinned = status, operations, pinned
        self._look, self._view, self._interval_s, self._measured = look, view, interval_s, measured
        self._moments = Moments(view, exists)
        self._latest: Moment | None = None
        self._order = 0
        self._paused = False
        self._updates = 0

    def compose(self) -> ComposeResult:
        """The parts from top to bottom."""
        self._head = Static(id="head")
        self._said = Static(id="status")
        self._heat = Static(id="heat")
        self._advice = Static(id="advice")
        self._lanes: DataTable[Text] = DataTable(id="lanes", cursor_type="none", zebra_stripes=True)
        for name in _COLUMNS:
            self._lanes.add_column(name, key=name)
        self._ports: DataTable[Text] = DataTable(id="ports", cursor_type="none", zebra_stripes=True)
        for name in _PORT_COLUMNS:
            self._ports.add_column(name, key=name)
        self._operations = Static(id="operations")
        self._events = RichLog(id="events", max_lines=200)
        yield self._head
        self._said.display = self._status is not None
        yield self._said
        if self._view is not None:
            yield self._heat
            yield self._advice
        yield self._operations
        if self._measured is not None:
            yield self._ports
        yield self._lanes
        yield self._events
        yield Footer()

    def on_mount(self) -> None:
        """Begin to update."""
        self._update()
        self.set_interval(self._interval_s, self._update)

    def action_pause(self) -> None:
        """Stop updating, or go on."""
        self._paused = not self._paused
        self._draw()

    def action_order(self) -> None:
        """Sort lanes by the next criterion."""
        self._order = (self._order + 1) % len(ORDERS)
        self._draw()

    def picture_after(self, updates: int, file: Path) -> Callable[[Pilot[Any]], Coroutine[Any, Any, None]]:
        """What drives the screen without a terminal: it writes the screen to `file` after this many updates, as SVG."""

        async def drive(pilot: Pilot[Any]) -> None:
            while self._updates < updates:
                await pilot.pause(0.05)
            await pilot.pause()
            file.write_text(_without_fonts(self.export_screenshot(title="paralet top")))
            self.exit()

        return drive

    def _update(self) -> None:
        if self._paused or not self._head.is_attached:  # the screen may be closing
            return
        said, happened = ("", []) if self._status is None else self._status()
        self._said.update(_text(said))
        ports, wrong = ([], []) if self._measured is None else self._measured()
        survey = self._look()
        operations, pinned = self._operations_of(survey), self._pinned()
        self._latest = self._moments.take(survey, time.monotonic(), ports, operations, pinned)
        for event in (*wrong, *happened, *self._latest.events):
            self._events.write(_text(f"{datetime.now():%H:%M:%S} {event}"))
        self._draw()
        self._updates += 1

    def _draw(self) -> None:
        moment = self._latest
        if moment is None:
            return
        name, of = ORDERS[self._order]
        state = "paused" if self._paused else f"every {self._interval_s:g} s"
        pinned = f", {len(moment.pinned.flows)} pinned connections" if moment.pinned.flows else ""
        self._head.update(
            _text(
                f"{moment.devices} devices, {len(moment.lanes)} lanes, {moment.tx_bps / 1e6:,.1f} Mbit/s sent{pinned}; "
                f"by {name}; {state}; {datetime.now():%H:%M:%S}"
            )
        )
        if self._view is not None and moment.load is not None:
            wide = 2 * len(self._view.spines) + 12 <= self.size.width
            self._heat.update(_text("\n".join(heat_lines(self._view, moment, wide))))
            self._advice.update(_text(moment.advice))
        self._operations.display = bool(moment.operations)
        self._operations.update(_text("\n".join(sentences(moment.operations, _MOST_OPERATIONS))))
        if self._measured is not None:
            self._ports.clear()
            for port in moment.ports[:_MOST_LANES]:
                self._ports.add_row(*map(_text, _port_cells(port)))
        self._lanes.clear()
        order = sorted(range(len(moment.lanes)), key=lambda n: -of(moment.lanes[n]))[:_MOST_LANES]
        top = max((rate for rates in moment.history for rate in rates), default=0.0)
        ends = {} if self._view is None else self._view.ends
        for index in order:
            self._lanes.add_row(*map(_text, _cells(moment.lanes[index], moment.history[index], top, ends)))
        busiest = nlargest(_MOST_LANES - len(order), moment.pinned.flows, key=lambda flow: flow.tx_bps or 0.0)
        for flow in busiest:
            self._lanes.add_row(*map(_text, _pinned_cells(flow, ends)))


def _text(lines: str) -> Text:
    """Lines as they are: a string would be read as markup."""
    return Text(printable_lines(lines))


def _without_fonts(svg: str) -> str:
    """The picture without the addresses of fonts, so that a viewer fetches nothing from the network."""
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def heat_lines(view: "FabricView", moment: Moment, wide: bool) -> list[str]:
    """The heat map: a line per leaf with a block per spine. If `wide`, two blocks: up, then down.

    Of more leaves than fit, those with the busiest links are shown, in the order of the fabric.
    """
    if moment.load is None:
        return []
    heat = view.heat(moment.load)
    left_out = 0
    if len(heat) > _MOST_LEAVES:
        busiest = nlargest(_MOST_LEAVES - 1, heat, key=lambda leaf: max(map(max, heat[leaf]), default=0.0))
        left_out = len(heat) - len(busiest)
        heat = {leaf: cells for leaf, cells in heat.items() if leaf in busiest}
    width = max(map(len, view.leaves), default=0)
    what = "up and down" if wide else "up or down, the busier"
    lines = (
        [f"{'':{width}} {view.spines[0]} to {view.spines[-1]}: {what}, full is {_BLOCKS[-1]}"] if view.spines else []
    )
    for leaf, cells in heat.items():
        blocks = [_block(up) + _block(down) if wide else _block(max(up, down)) for up, down in cells]
        lines.append(f"{leaf:{width}} {(' ' if wide else '').join(blocks)}")
    if left_out:
        lines.append(f"and {left_out} leaves whose links are less busy")
    return lines


def _block(part: float) -> str:
    """A block character whose height is `part` (0 to 1). Any part above 0 is visible."""
    if part <= 0:
        return "·"
    return _BLOCKS[max(1, min(len(_BLOCKS) - 1, round(part * (len(_BLOCKS) - 1))))]


def _owner(uid: int | None) -> str:
    """The user of a process, if it is another than this one's."""
    return "" if uid in (None, os.getuid()) else f" (user {uid})"


def _port_cells(port: PortRates) -> tuple[str, ...]:
    rates = ("-" if bps is None else f"{bps / 1e6:,.1f}" for bps in (port.tx_bps, port.rx_bps))
    share = "-" if port.utilisation is None else f"{_block(port.utilisation)} {port.utilisation:.0%}"
    return (port.switch, port.port, *rates, share, f"{port.drops:,}")


def _pinned_cells(rates: PinnedRates, ends: Mapping[str, str]) -> tuple[str, ...]:
    """The row of a connection of `paralet pin`, which has no lane: its state is where lanes have their moves."""
    flow = rates.flow
    tx = "-" if rates.tx_bps is None else f"{rates.tx_bps / 1e6:,.1f}"
    peer = f"{ends[flow.remote]}:{flow.remote_port}" if flow.remote in ends else rates.peer
    return (ends.get(flow.local, flow.local), peer, flow.protocol, str(flow.port), "", tx, "-", "-", "-", rates.state)


def _cells(rates: LaneRates, history: Sequence[float], top: float, ends: Mapping[str, str]) -> tuple[str, ...]:
    """A lane's row. Its ends are called as in `ends`, by address, where that has them."""
    spark = "".join(_block(rate / top) for rate in history) if top else ""
    both = ("-" if bps is None else f"{bps / 1e6:,.1f}" for bps in (rates.tx_bps, rates.rx_bps))
    lane, device = rates.lane, rates.device.address
    rtt = f"{lane.rtt_s * 1e6:,.0f}" if lane.rtt_s else "-"
    counts = (f"{lane.retransmits:,}", f"{lane.moves:,}")
    port = "" if rates.device.udp_port == 4791 else f":{rates.device.udp_port}"
    return (
        ends.get(device, device) + port + _owner(rates.process.uid),
        ends.get(lane.peer, lane.peer),
        str(lane.lane),
        str(lane.port),
        spark,
        *both,
        rtt,
        *counts,
    )
