# SPDX-License-Identifier: Apache-2.0
"""Loads of the links between switches over the time of a run: what is recorded, and utilisation. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmodel import PortRef, Topology
from testbed.analysis.metrics import uplinks
from testbed.analysis.observations import LinkHistory

_Numbers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

MOST_MOMENTS = 120
"""Moments kept of a run: a replay shows no more."""

_MOST_COUNTS = 400_000
"""Counts kept of a run, which bounds the size of records of large fabrics."""


def fabric_ports(topology: Topology) -> list[PortRef]:
    """The egress ports of `metrics.uplinks`, then those of the same links downwards if they are switches'."""
    up = [uplink.port for uplink in uplinks(topology)]
    down = [topology.peer(port) for port in up]
    known = set(up)
    return up + [port for port in down if port not in known and not topology.has_host(port.node)]


def history_of(ports: Sequence[PortRef], moments: Sequence[tuple[float, _Numbers]]) -> LinkHistory:
    """The history of `ports`, where `moments` have a time in seconds and the bytes sent by each port until then.

    Evenly spaced times are kept if there are more moments than the limits above permit; the last is always kept.
    """
    most = max(2, min(MOST_MOMENTS, _MOST_COUNTS // max(1, len(ports))))
    times = [at_s for at_s, _ in moments]
    if len(moments) > most:
        wanted = np.linspace(0.0, times[-1], most + 1)[1:].tolist()
        kept = sorted({min(bisect_left(times, at_s), len(times) - 1) for at_s in wanted})
    else:
        kept = list(range(len(moments)))
    return LinkHistory(
        ports=[str(port) for port in ports],
        at_s=[times[index] for index in kept],
        tx_bytes=[moments[index][1].tolist() for index in kept],
    )


@dataclass(frozen=True, eq=False)
class Utilisation:
    """Utilisation by interval and port, 1 when a link is always busy. An interval ends at its entry of `until_s`."""

    until_s: list[float]
    shares: _Floats


def utilisation(history: LinkHistory, rates_bps: Sequence[float], shortest_s: float) -> Utilisation:
    """Average utilisation of ports with these rates between moments at least `shortest_s` seconds apart."""
    kept, at_s = [], 0.0
    for index, moment_s in enumerate(history.at_s):
        if moment_s > at_s and moment_s >= at_s + shortest_s:
            kept.append(index)
            at_s = moment_s
    times = np.array([0.0, *(history.at_s[index] for index in kept)])
    none = np.zeros((1, len(history.ports)))
    counts = np.concatenate(
        [none, np.array([history.tx_bytes[index] for index in kept]).reshape(len(kept), len(history.ports))]
    )
    bits = 8 * np.diff(counts, axis=0)
    return Utilisation(times[1:].tolist(), bits / np.diff(times)[:, None] / np.asarray(rates_bps, dtype=np.float64))
