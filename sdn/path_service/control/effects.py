# SPDX-License-Identifier: Apache-2.0
"""What a change of constraints does, or would do. Pure."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from netmodel import Link
from sdn.path_service.control import answers
from sdn.path_service.control.answers import Effects, Slowed, WorstLink
from sdn.path_service.pinning import Move, Preview
from sdn.planners.model import Floats
from sdn.planners.planner import AnyCabling

MOST_MOVES = 1_000
"""Moves that are listed; all are counted."""
_SAME = 1e-6  # a job is not slowed down by a smaller part


def effects(preview: Preview, cables: AnyCabling) -> Effects:
    """The elephants that move, the worst link before and after, and the jobs that get slower."""
    return Effects(
        elephants=len(preview.pairs),
        moved=len(preview.moves),
        moves=[_move(move) for move in preview.moves[:MOST_MOVES]],
        without_path=sum(bool(move.before) and not move.after for move in preview.moves),
        worst_before=_worst(preview.loads_before, cables),
        worst_after=_worst(preview.loads_after, cables),
        jobs=_jobs(preview),
    )


def _move(move: Move) -> answers.Move:
    before, after = ([[str(port) for port in path] for path in paths] for paths in (move.before, move.after))
    return answers.Move(move.pair.client.key[0], move.pair.peer.at[0], move.pair.job, before, after)


def _worst(loads: Floats, cables: AnyCabling) -> WorstLink | None:
    """None where all links are idle."""
    links, numbers, rates_bps = _links(cables)
    busier = loads[:, numbers].max(axis=0)
    worst = int(np.argmax(busier / rates_bps)) if links else 0
    if not links or not busier[worst]:
        return None
    link = links[worst]
    return WorstLink(f"{link.a} {link.b}", round(float(busier[worst]), 3), float(link.rate_bps))


@lru_cache(maxsize=2)
def _links(cables: AnyCabling) -> tuple[list[Link], npt.NDArray[np.intp], Floats]:
    """The links between switches, their numbers in loads, and their rates."""
    number = {}
    for link in cables.topology.links:
        try:
            number[link] = cables.link_number(link)
        except KeyError:  # a link to a host
            continue
    rates_bps = np.array([link.rate_bps for link in number], dtype=np.float64)
    return list(number), np.array(list(number.values()), dtype=np.intp), rates_bps


def _jobs(preview: Preview) -> list[Slowed]:
    """The jobs whose slowest pair gets slower."""
    slowest: dict[str, tuple[float, float]] = {}
    for pair, before, after in zip(preview.pairs, preview.rates_before_bps, preview.rates_after_bps, strict=True):
        own = slowest.get(pair.job)
        slowest[pair.job] = (before, after) if own is None else (min(own[0], before), min(own[1], after))
    return [
        Slowed(job, round(before / after, 3) if after > 0 else None)
        for job, (before, after) in sorted(slowest.items())
        if before > after * (1 + _SAME)
    ]
