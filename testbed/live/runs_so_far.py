# SPDX-License-Identifier: Apache-2.0
"""The runs of an experiment that have finished, side by side by policy. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from statistics import fmean

import msgspec


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """One policy with one seed."""

    policy: str
    seed: int
    completion_s: float

    def line(self) -> str:
        """A line of JSON for `finished_runs`."""
        return dumps(asdict(self)) + "\n"


def finished_runs(lines: Iterable[str]) -> list[FinishedRun]:
    """The runs in lines of JSON. A last line that is not complete yet is left out. Raises msgspec.DecodeError."""
    return [msgspec.json.decode(line, type=FinishedRun) for line in lines if line.endswith("\n")]


def compared(runs: Sequence[FinishedRun], policies: Sequence[str], ideal_s: Callable[[int], float], total: int) -> str:
    """A sentence: how many runs have finished, and the mean completion by policy in multiples of the ideal.

    `ideal_s` gives the ideal in seconds with a seed; `policies` the order.
    """
    if not runs:
        return f"0 of {total} runs"
    means = []
    for policy in policies:
        ratios = [run.completion_s / ideal_s(run.seed) for run in runs if run.policy == policy]
        if ratios:
            means.append(f"{policy} {fmean(ratios):.2f}")
    return f"{len(runs)} of {total} runs; completion in multiples of the ideal: {', '.join(means)}"
