# SPDX-License-Identifier: Apache-2.0
"""Which transfers of a schedule must be delivered before another may start.

The rules are those of `testbed.run.transfer_tasks`, for schedules over real connections.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from testbed.spec import Experiment, Job
from testbed.workloads import Order, Talk, Transfer, Workload

Wait = tuple[int, int]
"""Indices of an earlier transfer and of a later one that waits for it."""

_Numbers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Dependencies:
    """Pairs of messages: `later[i]` waits for `earlier[i]`. Messages are the transfers and, numbered after them, gates.

    A gate belongs to a rank and a phase. It is delivered `pause_s` after the rank has finished all earlier phases: the
    pause models computation. What the rank sends in the phase waits for the gate. Workloads without phases and pauses
    have no gates. A workload with an `order` has its pauses as gates instead.
    """

    earlier: _Numbers
    later: _Numbers
    pause_s: _Floats
    """The length of each gate's pause in seconds."""
    gates: tuple[int, ...]
    """By job: the number of its gates, which follow those of the job before it."""
    talks: tuple[Talk, ...] = ()
    """The talks of all jobs, with the messages numbered as here."""


def dependencies_of(experiment: Experiment, jobs: Sequence[Job], transfers: Sequence[Transfer]) -> Dependencies:
    """The dependencies of the `transfers` of these jobs, given in ascending order of steps."""
    found = [_pairs(waits(experiment.spec.workload, transfers))]
    pauses = [np.empty(0)]
    first = len(transfers)
    talks: list[Talk] = []
    for job in jobs:
        workload = experiment.spec.workload.of_job(experiment.jobs.index(job))
        if (order := workload.order(job.size)) is not None:
            number = _message_numbers(order, job, transfers, first)
            pause_s, own = order.pauses_s, [number[order.waits]]
            talks += (_numbered(talk, number) for talk in workload.talks(job.size))
        else:
            pause_s, own = _gates(workload, job, transfers, first)
        pauses.append(pause_s)
        found += own
        first += pause_s.size
    earlier, later = np.concatenate(found).T
    return Dependencies(earlier, later, np.concatenate(pauses), tuple(pause.size for pause in pauses[1:]), tuple(talks))


def _message_numbers(order: Order, job: Job, transfers: Sequence[Transfer], first: int) -> _Numbers:
    """The numbers in the experiment of a job's messages; its pauses are numbered from `first` on."""
    mine = np.array([place for place, transfer in enumerate(transfers) if transfer.src in job.ranks], dtype=np.int64)
    return np.concatenate([mine, first + np.arange(order.pauses_s.size)])


def _numbered(talk: Talk, number: _Numbers) -> Talk:
    begin = None if talk.begin is None else int(number[talk.begin])
    return Talk(begin, int(number[talk.end]), tuple(number[list(talk.transfers)].tolist()))


def _gates(workload: Workload, job: Job, transfers: Sequence[Transfer], first: int) -> tuple[_Floats, list[_Numbers]]:
    """A job's gates, numbered from `first` on: their pauses, and their pairs of earlier and later messages."""
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
    """Waits among transfers, given in ascending order of steps: for data to forward, and for a free send slot."""
    found = list(_for_data(transfers)) if workload.in_place else []
    if workload.sends_in_flight is not None:
        found += _for_a_slot(transfers, workload.sends_in_flight)
    return found


def _for_data(transfers: Sequence[Transfer]) -> Iterator[Wait]:
    """A transfer waits for all earlier ones that delivered the data it carries, since these were last overwritten."""
    pieces = _pieces(transfers)
    arrived: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # rank and piece -> transfers
    places = enumerate(transfers)
    for _, step in groupby(places, key=lambda entry: entry[1].step):
        delivered = []
        for place, transfer in step:
            earlier: dict[int, None] = {}
            for piece in pieces[transfer.src].within(transfer.source, transfer.count):
                earlier |= dict.fromkeys(arrived[transfer.src, piece])
            yield from ((arrival, place) for arrival in earlier)
            delivered.append((place, transfer))
        overwritten = set()
        for place, transfer in delivered:
            for piece in pieces[transfer.dst].within(transfer.target, transfer.count):
                key = (transfer.dst, piece)
                if not transfer.combine and key not in overwritten:
                    overwritten.add(key)
                    arrived[key] = []
                arrived[key].append(place)


class _Pieces:
    """A rank's elements, divided wherever a transfer begins or ends."""

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


def _for_a_slot(transfers: Sequence[Transfer], slots: int) -> Iterator[Wait]:
    """A rank sends in order, with at most `slots` transfers in flight."""
    sends: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for place, transfer in enumerate(transfers):
        sends[transfer.src].append((transfer.step, transfer.part, place))
    for own in sends.values():
        own.sort()
        yield from ((before, after) for (_, _, before), (_, _, after) in zip(own, own[slots:], strict=False))
