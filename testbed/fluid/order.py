# SPDX-License-Identifier: Apache-2.0
"""Which transfers of a schedule wait for which. The same rules as `testbed.movement` has for live ones. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from testbed.workloads import Transfer, Workload

Wait = tuple[int, int]
"""Earlier and later transfer, by their places in the schedule."""


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
