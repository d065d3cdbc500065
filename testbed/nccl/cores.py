# SPDX-License-Identifier: Apache-2.0
"""Cores of this machine for ranks that do not share them."""

import os

from testbed.errors import InputError


def cores_of(ranks: int, each: int) -> list[frozenset[int]]:
    """For every rank `each` cores of its own, of those that this process may use. Raises InputError for too few."""
    usable = sorted(os.sched_getaffinity(0))
    if ranks * each > len(usable):
        raise InputError(f"--cores-per-rank {each}: {ranks} ranks need {ranks * each} cores; {len(usable)} are usable")
    return [frozenset(usable[rank * each : (rank + 1) * each]) for rank in range(ranks)]
