# SPDX-License-Identifier: Apache-2.0
"""Recovery time after links end, computed from samples of the hosts' counters around the event. No I/O."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from netmodel import PortRef
from testbed.analysis.observations import HappenedEvent, RunRecord, Sample
from testbed.spec import Experiment

WINDOW_S = 0.02
"""Interval over which a rate is computed, in seconds: six packets of 4 KiB at 10 Mbit/s."""

_BEFORE_S = 0.3  # the usual rate is the mean over this time before the event
_SOON_S = 0.06  # a later stall has another cause; senders need a few packets until their windows are full
_QUIET = 0.25  # part of the usual rate; two flows that share one link after the event still have half each


class FusedPorts(NamedTuple):
    """The switch ports of a host's NICs whose rates are added up."""

    ports: tuple[str, ...]
    shared: bool
    """All of them carry the same data, as fused NICs do. Otherwise each has its own, until another NIC takes over."""


def fused_ports(experiment: Experiment) -> list[FusedPorts]:
    """For each host whose NICs act as one, or whose data may come in by any of them: the switch ports of these NICs.

    Empty where there are no such NICs.
    """
    topology, arrangements = experiment.topology, experiment.arrangements
    members = {nic for arrangement in arrangements for nic in arrangement.fused_nics()}
    any_nic = any(arrangement.ANY_NIC for arrangement in arrangements)
    nics = [[nic for nic in range(len(host.nics)) if any_nic or nic in members] for host in topology.hosts]
    return [
        FusedPorts(tuple(str(topology.peer(PortRef(host.name, nic + 1))) for nic in own), shared=not any_nic)
        for host, own in zip(topology.hosts, nics, strict=True)
        if own
    ]


def stalls_s(
    run: RunRecord, event: HappenedEvent, fused: Iterable[FusedPorts] = ()
) -> dict[tuple[str, ...], float | None]:
    """Seconds from an event until data arrived again, for each host port that it concerned.

    Ports of NICs that act as one (`fused`, as by `fused_ports`) have one rate, their sum, because data that one of them
    does not get goes to another. They are one entry, if the event concerned any of them. It is None where each has data
    of its own, and those beside the fullest had more than a quarter of the rate: they would hide that it stalls.

    A port is quiet while its rate over `WINDOW_S` is less than a quarter of its usual rate. A port that falls quiet at
    the event or within 60 ms of it has recovered at the start of the first window that is not quiet. Other ports have
    0. Ports that stay quiet are left out. The resolution is the interval between samples.
    """
    if not run.samples:
        return {}
    at_s = event.at_s
    samples = [Sample(at_s=0.0, tx_bytes=dict.fromkeys(run.samples[0].tx_bytes, 0)), *run.samples]
    times = [sample.at_s for sample in samples]
    here, start = bisect_left(times, at_s), bisect_left(times, at_s - _BEFORE_S)
    if not start < here < len(samples):
        return {}

    def rate_bps(ports: Iterable[str], first: int, last: int) -> float:
        moved = sum(samples[last].tx_bytes[port] - samples[first].tx_bytes[port] for port in ports)
        return moved / (times[last] - times[first])

    together = {port: entry for entry in fused for port in entry.ports}
    found: dict[tuple[str, ...], float | None] = {}
    for ports, shared in dict.fromkeys(together.get(port, FusedPorts((port,), True)) for port in event.concerned):
        usual_bps = rate_bps(ports, start, here)
        fullest_bps = max(rate_bps([port], start, here) for port in ports)
        if not shared and usual_bps - fullest_bps > _QUIET * usual_bps:
            found[ports] = None
            continue
        stalled = False
        for index in range(here, len(samples)):
            later = bisect_left(times, times[index] + WINDOW_S)
            if later >= len(samples):
                break
            quiet = rate_bps(ports, index, later) < _QUIET * usual_bps
            if stalled and not quiet:
                found[ports] = times[index] - at_s
                break
            stalled = stalled or quiet
            if not stalled and times[index] > at_s + _SOON_S:
                found[ports] = 0.0
                break
    return found


def recovery_s(run: RunRecord, fused: Collection[FusedPorts] = ()) -> list[float | None]:
    """For every cut of the run, every switch that died and every silent loss that concerned a host: seconds until the
    last such host received data again. None where that cannot be measured. `fused` is that of `stalls_s`."""
    return [
        _last(stalls_s(run, event, fused).values())
        for event in run.events
        if event.concerned or event.what.startswith(("cut ", "kill "))
    ]


def _last(stalls_s: Collection[float | None]) -> float | None:
    """The longest of several stalls, 0 of none; None if one of them is not known."""
    known = [stall_s for stall_s in stalls_s if stall_s is not None]
    return max(known, default=0.0) if len(known) == len(stalls_s) else None


def repinned_s(run: RunRecord) -> list[float | None]:
    """For each event: seconds until it was known again which paths all ports took; None where no lane's path changed.

    With measured paths. What happens before the next event counts for this one.
    """
    ends = [*(event.at_s for event in run.events[1:]), inf]
    return [
        max(
            (each.at_s + each.seconds - event.at_s for each in run.repinned if event.at_s <= each.at_s < end_s),
            default=None,
        )
        for event, end_s in zip(run.events, ends, strict=False)
    ]


def paces_bps(run: RunRecord) -> list[float]:
    """Total rate at which data reached hosts before the first event, between events, and after the last event.

    In bits per second. An event counts from the time when it was complete. The last interval ends with the first job.
    """
    end_s = min((job.completion_s for job in run.jobs), default=run.completion_s)
    edges = [0.0, *(event.done_s for event in run.events if event.done_s < end_s), end_s]
    return [_mean_bps(run.samples, first, last) for first, last in pairwise(edges)]


def _mean_bps(samples: Sequence[Sample], from_s: float, to_s: float) -> float:
    """Mean rate over the samples in the interval, in bits per second; 0 with fewer than two samples."""
    inside = [sample for sample in samples if from_s <= sample.at_s <= to_s]
    if len(inside) < 2:
        return 0.0
    moved = sum(inside[-1].tx_bytes.values()) - sum(inside[0].tx_bytes.values())
    return 8 * moved / (inside[-1].at_s - inside[0].at_s)
