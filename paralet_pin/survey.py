# SPDX-License-Identifier: Apache-2.0
"""The connections of all programs of this machine that `paralet pin` has started."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from paralet_pin.check import CheckError, Report, agent_of, ask

_MOST_AGENTS = 64
_TIMEOUT_S = 0.5
_MOST_BYTES = 1 << 22


def reports(pids: Collection[int] | None = None) -> list[Report]:
    """What agents say of these processes; by default, of all processes whose environment this user may read.

    Agents that do not answer at once, that say too much, or that are another user's than their process are left out.
    """
    agents: dict[tuple[Path, int], set[int]] = {}
    for pid in _processes() if pids is None else pids:
        try:
            agent = (agent_of(pid), os.stat(f"/proc/{pid}").st_uid)
        except (CheckError, OSError):
            continue
        if agent in agents or len(agents) < _MOST_AGENTS:
            agents.setdefault(agent, set()).add(pid)
    found = []
    for (socket, owner), own in agents.items():
        try:
            report = ask(socket, owner=owner, timeout_s=_TIMEOUT_S, most_bytes=_MOST_BYTES)
        except CheckError:
            continue
        found.append(report if pids is None else report.of(own))
    return found


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
