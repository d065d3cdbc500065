# SPDX-License-Identifier: Apache-2.0
"""What a change of constraints does, or would do. Pure."""

import numpy as np

from sdn.path_service.control.answers import Effects, Move, Slowed, WorstLink
from sdn.path_service.pinning import Preview, Prospect
from sdn.planners.model import Floats
from sdn.planners.planner import AnyCabling

MOST_MOVES = 1_000
"""Moves that are listed; all are counted."""
_SAME = 1e-6  # a job is not slowed down by a smaller part


def effects(preview: Preview, cables: AnyCabling) -> Effects:
    """The elephants that move, the worst link before and after, and the jobs that get slower."""
    moved = [prospect for prospect in preview.prospects if prospect.before != prospect.after]
    return Effects(
        elephants=len(preview.prospects),
        moved=len(moved),
        moves=[_move(prospect) for prospect in moved[:MOST_MOVES]],
        without_path=sum(bool(prospect.before) and not prospect.after for prospect in moved),
        worst_before=_worst(preview.before, cables),
        worst_after=_worst(preview.after, cables),
        jobs=_jobs(preview.prospects),
    )


def _move(prospect: Prospect) -> Move:
    before, after = ([[str(port) for port in path] for path in paths] for paths in (prospect.before, prospect.after))
    return Move(prospect.pair.client.key[0], prospect.pair.peer.at[0], prospect.pair.job, before, after)


def _worst(loads: Floats, cables: AnyCabling) -> WorstLink | None:
    """None where all links are idle."""
    worst, found = 0.0, None
    for link in cables.topology.links:
        try:
            number = cables.link_number(link)
        except KeyError:  # a link to a host
            continue
        load = float(np.max(loads[:, number]))
        if load / link.rate_bps > worst:
            worst = load / link.rate_bps
            found = WorstLink(f"{link.a} {link.b}", round(load, 3), float(link.rate_bps))
    return found


def _jobs(prospects: list[Prospect]) -> list[Slowed]:
    slowest: dict[str, list[float]] = {}
    for prospect in prospects:
        own = slowest.setdefault(prospect.pair.job, [np.inf, np.inf])
        own[0] = min(own[0], prospect.before_bps)
        own[1] = min(own[1], prospect.after_bps)
    return [
        Slowed(job, round(before / after, 3) if after > 0 else None)
        for job, (before, after) in sorted(slowest.items())
        if before > after * (1 + _SAME)
    ]
