# SPDX-License-Identifier: Apache-2.0
"""Reads what NCCL's operations in processes of this machine wait for."""

import time
from collections.abc import Iterable

from hostlib.published import Amounts, Budgets, Limits, SnapshotError, identity_of, published
from hostlib.stats import Survey
from testbed.live.nccl_operations import MEMFD, MOST_BYTES, OperationState, RankOperations, parse, states

_LIMITS = Limits(
    process=Amounts(files=2**17, read_bytes=2**24, rereads=100, lanes=0),
    user=Amounts(files=2**18, read_bytes=2**25, rereads=200, lanes=0),
    all=Amounts(files=2**20, read_bytes=2**27, rereads=1000, lanes=0),
)


def operations_of(pids: Iterable[int]) -> list[RankOperations]:
    """The operations of these processes, as far as they publish any. Others, and what is unreadable, are left out."""
    found = []
    budgets = Budgets(_LIMITS)
    for pid in pids:
        own = identity_of(pid)
        try:
            for snapshot in published(pid, MEMFD, MOST_BYTES, budgets.of(own.uid), parse):
                if not isinstance(snapshot, SnapshotError) and snapshot[0] == own.inner_pid:
                    found.append(RankOperations(pid, time.monotonic(), snapshot[1], own.uid))
                    break  # a process has one profiler
        except OSError:
            continue  # it has ended, or is another user's
    return found


def operations_now(survey: Survey) -> list[OperationState]:
    """The operations of the processes of a survey that was just taken."""
    return states(operations_of(process.pid for process in survey.processes))
