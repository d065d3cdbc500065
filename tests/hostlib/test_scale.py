# SPDX-License-Identifier: Apache-2.0
"""Thousands of QPs: they carry messages, and an idle one uses little memory."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import time
from contextlib import ExitStack

import numpy as np
import pytest

import hostlib
from hostlib import Device

from .conftest import DEADLINE_S, counters_once_acknowledged

LANES = 128
PEERS = 40


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def many_files() -> None:
    """Raise the limit of open files: each device needs one socket per source port."""
    needed = (PEERS + 1) * (LANES + 8) + open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"this process may open {hard} files, {needed} are needed: raise the hard limit (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def use_all_lanes(files_before: int) -> list[float]:
    """Open a hub and its peers, use each lane once, close all. Returns the times of these steps in seconds."""
    times = [time.monotonic()]
    with ExitStack() as stack:
        hub = stack.enter_context(Device("127.0.0.1", lanes=LANES))
        peers = [stack.enter_context(Device(f"127.0.1.{i + 1}", lanes=LANES)) for i in range(PEERS)]
        listeners = [peer.listen() for peer in peers]
        there = [hub.connect(listener.handle) for listener in listeners]
        back = [listener.accept(DEADLINE_S) for listener in listeners]
        times.append(time.monotonic())
        assert sum(len(device.counters()["lanes"]) for device in (hub, *peers)) == 2 * LANES * PEERS > 10_000

        # Messages of two packets: smaller ones share a lane. Idle lanes are used in turn.
        words = np.arange(LANES * PEERS * 1024, dtype=np.uint64).reshape(LANES, PEERS, 1024)
        received = np.zeros_like(words)
        for lane in range(LANES):
            requests = [connection.recv(received[lane, i]) for i, connection in enumerate(back)]
            requests += [connection.send(words[lane, i]) for i, connection in enumerate(there)]
            for request in requests:
                request.wait(DEADLINE_S)
        times.append(time.monotonic())
        assert np.array_equal(received, words)
        lanes = counters_once_acknowledged(hub, LANES * PEERS)["lanes"]
        assert [row["flowlets"] for row in lanes] == [1] * (LANES * PEERS)
        # The source port of a lane, and so its socket, is the same towards all peers.
        assert open_files() - files_before < (PEERS + 1) * (LANES + 8)
    times.append(time.monotonic())
    return times


@pytest.mark.usefixtures("many_files")
def test_ten_thousand_qps_of_one_process_open_carry_a_message_each_and_close() -> None:
    before = open_files()
    opened, used, closed = np.diff(use_all_lanes(before))
    gc.collect()
    assert open_files() <= before
    print(f"{2 * LANES * PEERS} QPs: {opened:.2f} s to open, {used:.2f} s to use, {closed:.2f} s to close")


@pytest.mark.parametrize("case", ["1 lane, 64 peers", "8 lanes, 64 peers", "128 lanes, 64 peers"])
def test_an_idle_lane_to_a_peer_uses_less_than_two_kibibytes(case: str) -> None:
    argv = [hostlib.bench_program(), "memory", "--repetitions", "1", "--case", case]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    use = {row["metric"]: row["ours"] for row in map(json.loads, done.stdout.splitlines())}
    print(use)
    # A QP's state alone has more than 256 bytes: a smaller value would be a wrong measurement.
    assert 256 < use["memory, allocated"] < 2048
