# SPDX-License-Identifier: Apache-2.0
"""Ranks that die or fall silent, and groups that are closed, aborted or too slow: always an error, never a hang."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hostlib import ConnectionClosed, TransportError
from hostlib.collectives import Group

from .group_scene import DEADLINE_S, make_groups, world

PROGRAM = Path(__file__).with_name("group_process.py")


@contextmanager
def processes(
    size: int, folder: Path, retry_time_s: float, backend: str = "soft"
) -> Iterator[list[subprocess.Popen[str]]]:
    """Running ranks. Those that are left are killed."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(size), str(retry_time_s), str(folder), backend],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "running\n"
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@pytest.mark.parametrize("size", [2, 4])
def test_a_killed_rank_is_an_error_on_the_others(size: int, tmp_path: Path) -> None:
    # The retry time is far above the limit of the wait: the others must not need it.
    with processes(size, tmp_path, retry_time_s=10 * DEADLINE_S) as ranks:
        ranks[1].kill()
        for number, rank in enumerate(ranks):
            if number == 1:
                continue
            output, _ = rank.communicate(timeout=DEADLINE_S)
            assert output.startswith("failed: all_reduce failed: rank ")
            assert rank.returncode == 0


@pytest.mark.parametrize(("size", "backend"), [(2, "tcp"), (4, "soft"), (4, "tcp")])
def test_a_stopped_rank_is_an_error_on_the_others_and_later_on_itself(size: int, backend: str, tmp_path: Path) -> None:
    with processes(size, tmp_path, 2.0, backend) as ranks:
        ranks[1].send_signal(signal.SIGSTOP)
        for number, rank in enumerate(ranks):
            if number == 1:
                continue
            output, _ = rank.communicate(timeout=DEADLINE_S)
            assert output.startswith("failed: all_reduce failed: rank ")
        ranks[1].send_signal(signal.SIGCONT)
        output, _ = ranks[1].communicate(timeout=DEADLINE_S)
        assert output.startswith("failed: all_reduce failed: rank ")


@pytest.mark.parametrize("count", [10, 2_000_000])
def test_close_ends_operations_under_way(count: int) -> None:
    """The other rank never issues the operation, and the closing one has another behind it."""
    with world(2) as made:
        group = made.groups[0]
        data = np.zeros(count, np.float32)
        operations = [group.all_reduce(data.ctypes.data, data.ctypes.data, count, "float32") for _ in range(2)]
        waiting = made._pool.submit(operations[0].wait, DEADLINE_S)
        group.close()
        with pytest.raises(ConnectionClosed, match="all_reduce failed: the group was closed"):
            waiting.result(DEADLINE_S)
        assert all(operation.done for operation in operations)
        assert group.closed
        with pytest.raises(ConnectionClosed, match="the group was closed"):
            group.barrier().wait(DEADLINE_S)
        assert group.take_finished() == []


def test_the_end_of_a_group_ends_its_operations() -> None:
    with world(2) as made:
        [group] = make_groups(made.devices[:1], made._pool)
        lonely = Group(made.devices[0], 0, 2, lambda handle: [handle, made.groups[1]._engine.handle])
        data = np.zeros(10, np.float32)
        operation = lonely.all_reduce(data.ctypes.data, data.ctypes.data, 10, "float32")
        del lonely
        with pytest.raises(ConnectionClosed, match="the group was closed"):
            operation.wait(DEADLINE_S)
        group.close()


def test_closing_after_the_last_operation_disturbs_nobody() -> None:
    """Ranks close as soon as their own part is done, while others still need theirs."""
    for count in (10, 50_000, 1_000_000):
        with world(5) as made:

            def main(group: Group, count: int = count) -> None:
                data = np.full(count, 1, np.int32)
                group.all_reduce(data.ctypes.data, data.ctypes.data, count, "int32").wait(DEADLINE_S)
                group.close()
                assert (data == 5).all()

            made.run(main)


@pytest.mark.parametrize("links", ["none", "all"])
def test_abort_fails_the_group_on_every_rank(links: str) -> None:
    with world(3) as made:
        issued = threading.Barrier(3)

        def main(group: Group) -> None:
            data = np.zeros(1_000_000, np.float32)
            if links == "all":
                group.all_to_all(data.ctypes.data, data.ctypes.data + 64, 4).wait(DEADLINE_S)
            if group.rank == 0:
                issued.wait(DEADLINE_S)
                group.abort("the optimizer diverged")
                with pytest.raises(ConnectionClosed, match="barrier failed: the optimizer diverged"):
                    group.barrier().wait(DEADLINE_S)
                return
            operation = group.all_reduce(data.ctypes.data, data.ctypes.data, len(data), "float32")
            issued.wait(DEADLINE_S)
            why = "all_reduce failed: rank" + (".*: the optimizer diverged" if links == "all" else "")
            with pytest.raises(TransportError, match=why):
                operation.wait(DEADLINE_S)

        made.run(main)


def test_an_operation_that_is_not_done_in_time_fails_the_group() -> None:
    with world(2) as made:
        group = made.groups[0]
        slow = group.barrier(timeout_s=0.05)
        with pytest.raises(TransportError, match="barrier did not finish within its timeout"):
            slow.wait(DEADLINE_S)
        assert group.error is not None
        with pytest.raises(TransportError):
            made.groups[1].barrier().wait(DEADLINE_S)  # the failure closed the connections


def test_a_rank_that_never_connected_is_an_error() -> None:
    """Of a pair the lower rank connects. Here it has closed its group, or its device, before."""
    for closes in ("group", "device"):
        with world(2) as made:
            (made.groups[0] if closes == "group" else made.devices[0]).close()
            with pytest.raises(TransportError, match="barrier failed: rank 0"):
                made.groups[1].barrier().wait(DEADLINE_S)


def test_wait_returns_after_its_time_and_the_operation_goes_on() -> None:
    with world(2) as made:
        first = made.groups[0].barrier()
        with pytest.raises(TimeoutError, match="it continues"):
            first.wait(0.01)
        assert not first.done
        assert first.error is None
        made.groups[1].barrier().wait(DEADLINE_S)
        first.wait(DEADLINE_S)
        assert first.done


def test_a_closed_device_fails_its_groups() -> None:
    with world(2) as made:
        operation = made.groups[0].barrier()
        made.devices[0].close()
        with pytest.raises(TransportError):
            operation.wait(DEADLINE_S)


def test_a_wait_for_any_rank_fails_when_a_rank_has_left() -> None:
    with world(3) as made:
        made.run(lambda group: group.barrier().wait(DEADLINE_S))  # else rank 2 may miss it first, and leave too
        data = np.zeros(4, np.uint8)
        receive = made.groups[0].recv(data.ctypes.data, 4)
        greeting = made.groups[1].send(data.ctypes.data, 4, 0, tag=1)
        made.groups[0].recv(data.ctypes.data, 4, 1, tag=1).wait(DEADLINE_S)
        greeting.wait(DEADLINE_S)
        made.groups[1].close()
        with pytest.raises(TransportError, match="recv failed: rank 1"):
            receive.wait(DEADLINE_S)


@pytest.mark.parametrize("count", [10, 100_000])
def test_every_rank_names_the_operation_that_differs(count: int) -> None:
    """Some ranks see the difference, others only that those leave."""
    with world(4) as made:
        made.run(lambda group: group.barrier().wait(DEADLINE_S))

        def main(group: Group) -> str:
            data = np.zeros(2 * count, np.float32)
            own = 2 * count if group.rank == 3 else count
            with pytest.raises(TransportError) as failed:
                group.all_reduce(data.ctypes.data, data.ctypes.data, own, "float32").wait(DEADLINE_S)
            return str(failed.value)

        for said in made.run(main):
            assert said.startswith("all_reduce failed: rank ")
            assert re.search("in all_reduce .operation 1, float32, sum|met a receive of", said), said
