# SPDX-License-Identifier: Apache-2.0
"""`paralet stat` of root beside users who publish very many lanes: bounded time and memory, and others are shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.attack import false_counters
from tests.attack.measured import ROOT, Ran, paralet
from tests.hostlib import stats_process
from tests.hostlib.test_stats import devices_of, eventually

USERS = (65534, 65533, 65532)
LANES = 74_000
FILES = 400
"""Of each user."""
FEW = 4

MOST_OF_PROCESS, MOST_OF_USER, MOST_IN_ALL = 8_192, 16_384, 65_536
"""Lanes (docs/live-counters.md)."""
MOST_BYTES = 256 << 20
"""Read in all."""


@contextmanager
def process_of(uid: int, program: str, *arguments: object) -> Iterator[int]:
    """A program of a user, which has said that it is ready: its process id."""
    with subprocess.Popen(
        [sys.executable, program, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        user=uid,
        group=uid,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


@contextmanager
def attacked(files: int) -> Iterator[None]:
    with ExitStack() as started:
        for uid in USERS:
            started.enter_context(process_of(uid, false_counters.__file__, files, LANES))
        yield


def processes_of(ran: Ran) -> list[dict[str, Any]]:
    assert ran.status == 0, ran.stderr
    return list(json.loads(ran.stdout)["processes"])


def lanes_of(process: dict[str, Any]) -> list[int]:
    """The number of lanes of each of its devices."""
    return [len(device["lanes"]) for device in process["devices"]]


@pytest.mark.timeout(240)
def test_false_counters_cost_root_little(sized: Callable[[int], int]) -> None:
    files = max(FEW, sized(FILES))
    with process_of(1000, stats_process.__file__, 3) as honest:
        assert eventually(lambda: [bool(device.lanes) for device in devices_of(honest)] == [True, True])
        alone = paralet("stat", "--json")
        with attacked(FEW):
            few = paralet("stat", "--json")
        with attacked(files):
            many = paralet("stat", "--json")
    print(f"paralet stat alone: {alone}")
    (own,) = processes_of(alone)
    for each, ran in ((FEW, few), (files, many)):
        lanes: Counter[int] = Counter()
        processes = processes_of(ran)
        assert lanes_of(own) in [lanes_of(process) for process in processes if process["pid"] == honest]
        for process in processes:
            assert sum(lanes_of(process)) <= MOST_OF_PROCESS
            lanes[process["uid"]] += sum(lanes_of(process))
        assert max(lanes.values()) <= MOST_OF_USER
        assert lanes.total() <= MOST_IN_ALL
        for uid in USERS:
            assert f"of user {uid}: it has more" in ran.stderr, "what is left out is told"
        print(f"beside {len(USERS)} users with {each} files of {LANES} lanes each: {ran}, {lanes.total()} lanes shown")
    # A hundred times as many files are no more work: the limits end it.
    assert many.cpu_s <= 3 * few.cpu_s
    assert many.peak_bytes <= 2 * few.peak_bytes
    assert few.peak_bytes <= alone.peak_bytes + MOST_BYTES
