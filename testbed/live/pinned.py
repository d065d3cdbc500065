# SPDX-License-Identifier: Apache-2.0
"""Connections with planned ports, as the agents of `paralet pin` tell of them, and their rates between two looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paralet_pin.check import NotPinned, Pinned, Report


@dataclass(frozen=True, slots=True)
class PinnedRates:
    """A connection, and the bits per second of it that were acknowledged; None in the first look."""

    flow: Pinned
    tx_bps: float | None

    @property
    def peer(self) -> str:
        """The address and port that it leads to."""
        host = f"[{self.flow.remote}]" if ":" in self.flow.remote else self.flow.remote
        return f"{host}:{self.flow.remote_port}"

    @property
    def state(self) -> str:
        """One or two words."""
        if self.flow.hangs:
            return "hangs"
        if self.flow.planned_port != self.flow.port:
            return f"plan: {self.flow.planned_port}"
        return "" if self.flow.elephant else "idle"


@dataclass(frozen=True, slots=True)
class PinnedMoment:
    """One look at them."""

    flows: Sequence[PinnedRates] = ()
    others: Sequence[NotPinned] = ()

    def __bool__(self) -> bool:
        return bool(self.flows or self.others)


class PinnedMoments:
    """Makes a moment of each look at the agents."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, str, str, int, int], int] = {}
        self._at_s: float | None = None

    def take(self, reports: Sequence[Report], now_s: float) -> PinnedMoment:
        """The moment of these reports at `now_s`, in seconds of the monotonic clock."""
        interval_s = None if self._at_s is None else now_s - self._at_s
        flows, now = [], {}
        for flow in (flow for report in reports for flow in report.pinned):
            key = (flow.pid, flow.what, flow.remote, flow.remote_port, flow.port)
            now[key] = flow.bytes
            sent = flow.bytes - self._before.get(key, 0)
            flows.append(PinnedRates(flow, 8 * max(0, sent) / interval_s if interval_s else None))
        self._before, self._at_s = now, now_s
        return PinnedMoment(flows, [flow for report in reports for flow in report.not_pinned])
