# SPDX-License-Identifier: Apache-2.0
"""Live counters of devices in other processes.

Every open device publishes a snapshot of its counters. `survey` reads the snapshots that this user may read.
`hostlib.snapshots` has their classes, which can be imported from here too, and describes the bytes.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hostlib.port_owners import Endpoint, network_of, port_owners
from hostlib.published import (
    Budget,
    Budgets,
    LimitError,
    Limits,
    SnapshotError,
    command_of,
    identity_of,
    job_and_rank,
    published,
)
from hostlib.snapshots import (
    COUNTERS,
    ConnectionSnapshot,
    DeviceSnapshot,
    Discards,
    LaneSnapshot,
    Member,
    Messages,
    PathClient,
    address_order,
    parse,
)

__all__ = [
    "COUNTERS",
    "ConnectionSnapshot",
    "DeviceSnapshot",
    "Discards",
    "LaneSnapshot",
    "Member",
    "Messages",
    "PathClient",
    "Process",
    "SnapshotError",
    "Survey",
    "address_order",
    "parse",
    "survey",
    "without_false_claims",
]

EVERY_S = 0.1
"""Interval at which a busy process publishes. One with thousands of lanes publishes less often, an idle one never."""

_MEMFD = "paralet-stats"
_MAX_BYTES = 2**24  # a hundred thousand lanes
_MOST_SENTENCES = 3
"""Sentences about what is wrong with one process."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process with open devices, and their counters."""

    pid: int
    command: str
    """Its command line without control characters."""
    devices: tuple[DeviceSnapshot, ...]
    state: str = ""
    """The kernel's letter for its state (proc(5)), such as ``T`` while it is stopped by a signal."""
    uid: int | None = None
    """The user who started it, as the kernel says; None where that is not known."""
    job: str = ""
    """The job's name by the environment in which the process was started; empty where that does not tell."""
    rank: str = ""
    """Its number in the job, likewise."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a survey of this machine's processes has found."""

    processes: tuple[Process, ...]
    forbidden: tuple[int, ...]
    """Processes that this user may not read."""
    missing: tuple[int, ...]
    """Requested processes that do not exist."""
    unreadable: tuple[str, ...]
    """One sentence per device whose snapshot is invalid."""
    left_out: tuple[str, ...] = ()
    """Sentences: which limits were reached, and which users claim devices of others."""


def survey(pids: Iterable[int] | None = None, limits: Limits | None = None) -> Survey:
    """Read the snapshots of the given processes, or of all. Processes without devices are left out.

    Does not raise: processes and snapshots that cannot be read are listed in the result, and so is what is beyond
    `limits`. A device that another user's socket shows to be false is left out too.
    """
    processes, forbidden, missing, unreadable, left_out = [], [], [], [], []
    budgets = Budgets(limits or Limits())
    for pid in sorted({int(name) for name in os.listdir("/proc") if name.isdecimal()} if pids is None else set(pids)):
        found, wrong, beyond = [], [], []
        try:
            own = identity_of(pid)
            budget = budgets.of(own.uid)
            for device in published(pid, _MEMFD, _MAX_BYTES, budget, partial(_within, budget=budget)):
                if isinstance(device, LimitError):
                    beyond.append(f"process {pid} of user {own.uid}: {device}")
                elif isinstance(device, SnapshotError):
                    wrong.append(f"process {pid}: {device}")
                # A fork inherits its parent's devices, but they are not its own.
                elif device.owner_pid == own.inner_pid:
                    found.append(device)
        except PermissionError:
            forbidden.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            missing.append(pid)
        devices = {(device.name, device.guid): device for device in reversed(found)}  # each once
        if devices:
            ordered = sorted(
                devices.values(),
                key=lambda snapshot: (*address_order(snapshot.address), snapshot.udp_port, snapshot.guid),
            )
            processes.append(Process(pid, command_of(pid), tuple(ordered), own.state, own.uid, *job_and_rank(pid)))
        if omitted := sum(device.lanes_omitted for device in devices.values()):
            beyond.append(f"process {pid} of user {own.uid}: {omitted:,} lanes are left out, beyond the limit")
        unreadable += _some_of(wrong, pid)
        left_out += _some_of(beyond, pid)
    true, false = without_false_claims(processes)
    found_all = tuple(true), tuple(forbidden), () if pids is None else tuple(missing)
    return Survey(*found_all, tuple(unreadable), (*left_out, *false))


def _within(data: bytes, budget: Budget) -> DeviceSnapshot:
    """The device in these bytes, with as many lanes as the budget has left."""
    device = parse(data, max(0, budget.left("lanes") - 1))
    budget.take("lanes", 1 + len(device.lanes))
    return device


def _some_of(sentences: Sequence[str], pid: int) -> list[str]:
    more = len(sentences) - _MOST_SENTENCES
    return [*sentences[:_MOST_SENTENCES], *([f"process {pid}: and {more} more like these"] if more > 0 else [])]


def without_false_claims(processes: Sequence[Process]) -> tuple[list[Process], list[str]]:
    """The processes without devices that are another user's, and a sentence for each claim that is false or disputed.

    Two users cannot have one address and port of a protocol in a network namespace. Where both say so, the kernel's
    table of sockets tells who has it. It knows nothing of `verbs`, where the NIC receives: then both stay.
    """
    claims: dict[Endpoint, set[int | None]] = defaultdict(set)
    for process in processes:
        for device in process.devices:
            for endpoint in _endpoints(device):
                claims[endpoint].add(process.uid)
    disputed = {endpoint for endpoint, uids in claims.items() if len(uids) > 1}
    if not disputed:
        return list(processes), []
    claimed: dict[tuple[int | None, Endpoint], dict[int | None, int]] = defaultdict(dict)
    networks = {process.pid: network_of(process.pid) for process in processes}
    for process in processes:
        for device in process.devices:
            for endpoint in disputed.intersection(_endpoints(device)):
                claimed[networks[process.pid], endpoint][process.uid] = process.pid
    owners: dict[tuple[int | None, Endpoint], set[int | None]] = {}
    sentences = []
    for (network, endpoint), users in claimed.items():
        if len(users) > 1:
            owners[network, endpoint] = {*port_owners(next(iter(users.values())), {endpoint}).get(endpoint, ())}
            if not owners[network, endpoint]:
                who = ", ".join(f"user {uid} (process {pid})" for uid, pid in users.items())
                sentences.append(f"{_name(endpoint)} is claimed by {who}: at most one of them is right")
    kept = []
    for process in processes:
        false = [
            device
            for device in process.devices
            if any(
                process.uid not in (owners.get((networks[process.pid], endpoint)) or {process.uid})
                for endpoint in _endpoints(device)
            )
        ]
        sentences += [
            f"process {process.pid} of user {process.uid} claims {device.name}, which is another user's: it is left out"
            for device in false[:_MOST_SENTENCES]
        ]
        if true := tuple(device for device in process.devices if device not in false):
            kept.append(replace(process, devices=true))
    return kept, sentences


def _endpoints(device: DeviceSnapshot) -> list[Endpoint]:
    return [(device.protocol, nic.address, nic.udp_port) for nic in device.members or (device,)]


def _name(endpoint: Endpoint) -> str:
    _, address, port = endpoint
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
