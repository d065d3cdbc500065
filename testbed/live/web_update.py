# SPDX-License-Identifier: Apache-2.0
"""What the page of `paralet top --serve` draws: a moment, cut to what fits a page."""

from collections.abc import Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from testbed.live.lane_rates import ORDERS
from testbed.live.moments import Moment, as_json

if TYPE_CHECKING:
    from testbed.live.fabric_view import FabricView

MOST_LANES = 200
"""Lanes sent by each order in which the page can sort them."""

_MOST_PORTS = 200
_MOST_OPERATIONS = 50
_BUSIEST_LINKS = 8


def web_update(moment: Moment, view: "FabricView | None", status: str, log: Sequence[str]) -> dict[str, Any]:
    """The moment for the page: `as_json` with at most 200 lanes by each order, and what only the page needs.

    `totals` counts devices and lanes and has the rate sent, bit/s. `fabric` is None without a fabric; else it has the
    leaves, the spines, and by leaf the utilisation up to and down from each spine. `links` has the busiest. Each lane
    has its latest rates sent, bit/s, as `history`. `status` says how far a run has come; `log` has the latest events,
    the oldest first.
    """
    kept: set[int] = set()
    for _, of in ORDERS:
        values = [of(lane) for lane in moment.lanes]
        kept.update(nlargest(MOST_LANES, range(len(values)), key=values.__getitem__))
    shown_lanes = sorted(kept)
    shown = Moment(
        [moment.lanes[index] for index in shown_lanes],
        [moment.history[index] for index in shown_lanes],
        moment.events,
        moment.load,
        moment.advice,
        moment.ports[:_MOST_PORTS],
        moment.operations[:_MOST_OPERATIONS],
    )
    fields = as_json(shown, view)
    for lane, history in zip(fields["lanes"], shown.history, strict=True):
        lane["history"] = [round(rate) for rate in history]
    fields["links"] = nlargest(_BUSIEST_LINKS, fields["links"], key=lambda link: link["utilisation"])
    fields["totals"] = {"devices": moment.devices, "lanes": len(moment.lanes), "tx_bps": moment.tx_bps}
    fields["fabric"] = None
    if view is not None and moment.load is not None:
        heat = {
            leaf: [[round(float(up), 3), round(float(down), 3)] for up, down in cells]
            for leaf, cells in view.heat(moment.load).items()
        }
        fields["fabric"] = {"leaves": view.leaves, "spines": view.spines, "heat": heat}
    fields["status"] = status
    fields["log"] = list(log)
    return fields
