# SPDX-License-Identifier: Apache-2.0
"""Which transfers of a schedule wait for which. Pure.

The rules are those of `testbed.run.collective_executor`, which runs schedules over live connections.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from testbed.spec import Experiment, Job
from testbed.workloads import Transfer, Workload

Wait = tuple[int, int]
"""Earlier and later transfer, by their places in the schedule."""

_Numbers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Order:
    """What waits for what: transfers by their places, and from there on gates.

    A gate belongs to a rank and a phase. It opens when the rank is done with all phases before, and has then computed
    for `pause_s`; what the rank sends in that phase waits for it. Workloads without phases and pauses have none.
    """

    earlier: _Numbers
    later: _Numbers
    pause_s: _Floats
    """By gate."""


def order_of(experiment: Experiment, jobs: Sequence[Job], transfers: Sequence[Transfer]) -> Order:
    """Of the `transfers` of these jobs, steps ascending."""
    found = [_pairs(waits(experiment.spec.workload, transfers))]
    pauses = [np.empty(0)]
    first = len(transfers)
    for job in jobs:
        workload = experiment.spec.workload.of_job(experiment.jobs.index(job))
        pause_s, own = _gates(workload, job, transfers, first)
        pauses.append(pause_s)
        found += own
        first += pause_s.size
    earlier, later = np.concatenate(found).T
    return Order(earlier, later, np.concatenate(pauses))


def _gates(workload: Workload, job: Job, transfers: Sequence[Transfer], first: int) -> tuple[_Floats, list[_Numbers]]:
    """A job's gates, numbered from `first` on: what ranks compute before each, and what waits for what."""
    starts, pauses = [0, *workload.phase_starts(job.size)], workload.pauses(job.size)
    if len(starts) == 1 and not pauses:
        return np.empty(0), []
    mine = np.array([place for place, transfer in enumerate(transfers) if transfer.src in job.ranks])
    ends = np.array([(transfers[place].src, transfers[place].dst) for place in mine]) - job.first
    phase = np.searchsorted(starts, [transfers[place].step for place in mine], side="right") - 1
    pause_s = np.tile([pauses.get(start, 0.0) for start in starts], job.size)
    gates = first + np.arange(pause_s.size).reshape(job.size, len(starts))  # by rank and phase
    early = phase < len(starts) - 1
    return pause_s, [
        np.stack([gates[:, :-1].ravel(), gates[:, 1:].ravel()], axis=1),
        *(np.stack([mine[early], gates[rank[early], phase[early] + 1]], axis=1) for rank in ends.T),
        np.stack([gates[ends[:, 0], phase], mine], axis=1),
    ]


def _pairs(found: Sequence[Wait]) -> _Numbers:
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def waits(workload: Workload, transfers: Sequence[Transfer]) -> list[Wait]:
    """What transfers of `workload`, steps ascending, wait for: data that must arrive first, and a place to send."""
    found = list(_for_data(transfers)) if workload.in_place else []
    if workload.sends_in_flight is not None:
        found += _for_a_place(transfers, workload.sends_in_flight)
    return found


def _for_data(transfers: Sequence[Transfer]) -> Iterator[Wait]:
    """A transfer waits for all that arrived, in earlier steps, in what it carries, since that was last overwritten."""
    pieces = _pieces(transfers)
    arrived: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # rank and piece -> transfers
    places = enumerate(transfers)
    for _, step in groupby(places, key=lambda entry: entry[1].step):
        landed = []
        for place, transfer in step:
            earlier: dict[int, None] = {}
            for piece in pieces[transfer.src].within(transfer.source, transfer.count):
                earlier |= dict.fromkeys(arrived[transfer.src, piece])
            yield from ((one, place) for one in earlier)
            landed.append((place, transfer))
        overwritten = set()
        for place, transfer in landed:
            for piece in pieces[transfer.dst].within(transfer.target, transfer.count):
                key = (transfer.dst, piece)
                if not transfer.combine and key not in overwritten:
                    overwritten.add(key)
                    arrived[key] = []
                arrived[key].append(place)


class _Pieces:
    """A rank's elements, cut wherever some transfer begins or ends."""

    def __init__(self, bounds: set[int]) -> None:
        self._number = {bound: number for number, bound in enumerate(sorted(bounds))}

    def within(self, start: int, count: int) -> range:
        """The pieces that make up elements [start, start + count)."""
        return range(self._number[start], self._number[start + count])


def _pieces(transfers: Sequence[Transfer]) -> dict[int, _Pieces]:
    bounds: defaultdict[int, set[int]] = defaultdict(set)
    for transfer in transfers:
        bounds[transfer.src] |= {transfer.source, transfer.source + transfer.count}
        bounds[transfer.dst] |= {transfer.target, transfer.target + transfer.count}
    return {rank: _Pieces(own) for rank, own in bounds.items()}


def _for_a_place(transfers: Sequence[Transfer], places: int) -> Iterator[Wait]:
    """A rank's sends go in order, `places` of them at a time."""
    sends: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for place, transfer in enumerate(transfers):
        sends[transfer.src].append((transfer.step, transfer.part, place))
    for own in sends.values():
        own.sort()
        yield from ((before, after) for (_, _, before), (_, _, after) in zip(own, own[places:], strict=False))
