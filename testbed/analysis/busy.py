# SPDX-License-Identifier: Apache-2.0
"""Whether the machine was too busy for the times of a run to be trusted. Pure."""

from collections.abc import Iterable

from testbed.analysis.observations import RunRecord

LONGEST_WAIT_S = 0.002
"""The longest mean time that threads of a fabric may wait for a processor. docs/testing.md has the measurements."""


def too_busy(run: RunRecord) -> bool:
    """Whether the threads of the fabric waited for processors for so long that times are wrong."""
    return run.wait_s is not None and run.wait_s > LONGEST_WAIT_S


def busy_sentence(runs: Iterable[RunRecord]) -> str | None:
    """What to tell a user of runs on a machine that was too busy; None where none was."""
    every = list(runs)
    waits = [run.wait_s for run in every if too_busy(run) and run.wait_s is not None]
    if not waits:
        return None
    return (
        f"The machine was too busy in {len(waits)} of {len(every)} runs: do not trust their times. Emulated switches "
        f"and hosts waited {1e3 * max(waits):.1f} ms for a processor each time, and packets are late above "
        f"{1e3 * LONGEST_WAIT_S:.0f} ms. End other programs, or take fewer hosts, and run again."
    )
