# SPDX-License-Identifier: Apache-2.0
"""How far an experiment has come: its journal, and the policies side by side. Pure."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import msgspec

_MOST_POLICIES = 6
_BAR = 30


class Began(msgspec.Struct, frozen=True, tag="began"):
    """One policy with one seed has begun at `at_s` of the monotonic clock."""

    policy: str
    seed: int
    at_s: float


class Happened(msgspec.Struct, frozen=True, tag="happened"):
    """An event of the spec was carried out during the run that has begun last."""

    what: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The run that has begun last has finished."""

    policy: str
    seed: int
    completion_s: float


Entry = Began | Happened | Finished


def line(entry: Entry) -> str:
    """An entry as a line of a journal."""
    return msgspec.json.encode(entry).decode() + "\n"


def entries(lines: Iterable[str]) -> list[Entry]:
    """The entries of a journal. A last line that is not complete yet is left out. Raises msgspec.DecodeError."""
    return [msgspec.json.decode(line, type=Entry) for line in lines if line.endswith("\n")]


def standing(
    journal: Sequence[Entry], policies: Sequence[str], ideal_s: Callable[[int], float], total: int, now_s: float
) -> str:
    """A line with the runs so far and the present one, then a line per policy with finished runs.

    These have the mean completion in multiples of the ideal, as a bar too. `ideal_s` gives the ideal in seconds with a
    seed, `policies` the order; `now_s` is on the monotonic clock.
    """
    runs = [entry for entry in journal if isinstance(entry, Finished)]
    first = f"{len(runs)} of {total} runs"
    present = next((entry for entry in reversed(journal) if not isinstance(entry, Happened)), None)
    if isinstance(present, Began):
        ideal = ideal_s(present.seed)
        first += (
            f"; {present.policy}, seed {present.seed}: {max(0.0, now_s - present.at_s):.1f} s of {ideal:.1f} s ideal"
        )
    means = {}
    for policy in policies:
        ratios = [run.completion_s / ideal_s(run.seed) for run in runs if run.policy == policy]
        if ratios:
            means[policy] = fmean(ratios)
    width = max(map(len, means), default=0)
    most = max(means.values(), default=1.0)
    lines = [f"{name:{width}} {mean:5.2f} x ideal {'█' * round(_BAR * mean / most)}" for name, mean in means.items()]
    if len(lines) > _MOST_POLICIES:
        lines[_MOST_POLICIES - 1 :] = [f"and {len(lines) - _MOST_POLICIES + 1} policies more"]
    return "\n".join([first, *lines])


def happenings(before: int, journal: Sequence[Entry]) -> list[str]:
    """Sentences about what came after the first `before` entries."""
    said = []
    for entry in journal[before:]:
        if isinstance(entry, Began):
            said.append(f"run of {entry.policy}, seed {entry.seed}")
        elif isinstance(entry, Happened):
            said.append(f"event: {entry.what}")
        else:
            said.append(f"{entry.policy}, seed {entry.seed}, took {entry.completion_s:.3g} s")
    return said
