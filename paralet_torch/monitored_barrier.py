# SPDX-License-Identifier: Apache-2.0
"""A barrier in which rank 0 names the ranks that do not come, with the words of Gloo's."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_LAST_TAG = 2**31 - 1
_TAGS = 2**16
"""Tags that are taken in turn: what a rank sends too late belongs to no later barrier."""


def monitored_barrier(group: Any, number: int, timeout: timedelta, wait_all_ranks: bool) -> None:
    """The group's barrier of this `number`, which ranks count alike. Raises DistBackendError unless all come in time.

    Rank 0 names the first rank that did not come, or all of them with `wait_all_ranks`. The group goes on to work.
    """
    tag = _LAST_TAG - number % _TAGS
    deadline = time.monotonic() + timeout.total_seconds()
    if group.rank() == 0:
        _lead(group, tag, timeout, deadline, wait_all_ranks)
    else:
        _follow(group, tag, deadline)


def _lead(group: Any, tag: int, timeout: timedelta, deadline: float, wait_all_ranks: bool) -> None:
    limit = f"{timeout.total_seconds() * 1000:g} ms"
    if timeout <= timedelta(0):
        raise dist.DistBackendError(f"Rank 0 timed out in monitoredBarrier after {limit}")
    arrivals = {other: group.recv([_token()], other, tag) for other in range(1, group.size())}
    missing = []
    for other, arrival in arrivals.items():
        if not _succeeds(arrival, deadline):
            missing.append(other)
            if not wait_all_ranks:
                break
    if missing:
        who = f"Ranks {', '.join(map(str, missing))}" if len(missing) > 1 else f"Rank {missing[0]}"
        raise dist.DistBackendError(f"{who} failed to pass monitoredBarrier in {limit}")
    for answer in [group.send([_token()], other, tag) for other in arrivals]:
        answer.wait()


def _follow(group: Any, tag: int, deadline: float) -> None:
    for work in (group.send([_token()], 0, tag), group.recv([_token()], 0, tag)):
        if not _succeeds(work, deadline):
            raise dist.DistBackendError(
                f"Rank {group.rank()} successfully reached monitoredBarrier, but received errors while waiting for "
                "send/recv from rank 0: its error names the ranks that did not come"
            )


def _token() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8)


def _succeeds(work: Any, deadline: float) -> bool:
    """Whether the work ends with success before the deadline."""
    left_s = deadline - time.monotonic()
    if left_s > 0:
        try:
            work.wait(timedelta(seconds=left_s))
        except dist.DistBackendError:
            return False
    return bool(work.is_success())
