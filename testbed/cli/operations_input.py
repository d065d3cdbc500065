# SPDX-License-Identifier: Apache-2.0
"""Reads what NCCL's operations in processes of this machine wait for."""

import time
from collections.abc import Iterable

from hostlib.stats import SnapshotError, Survey, inner_pid, published
from testbed.live.nccl_operations import MEMFD, OperationState, RankOperations, parse, states


def operations_of(pids: Iterable[int]) -> list[RankOperations]:
    """The operations of these processes, as far as they publish any. Others, and what is unreadable, are left out."""
    found = []
    for pid in pids:
        try:
            for told in published(pid, MEMFD, parse):
                if not isinstance(told, SnapshotError) and told[0] == inner_pid(pid):
                    found.append(RankOperations(pid, time.monotonic(), told[1]))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def operations_now(survey: Survey) -> list[OperationState]:
    """The operations of the processes of a survey that was just taken."""
    return states(operations_of(process.pid for process in survey.processes))
