# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks in one process: a thread per rank, each with a device of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from hostlib import Device
from hostlib.collectives import Group

T = TypeVar("T")
DEADLINE_S = 60.0
"""Time limit of a wait: only a failing test reaches it."""


class Exchange:
    """All-gather of bytes among threads; `Exchange(n).of(rank)` is what a group's constructor takes."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._handles: list[bytes] = [b""] * size

    def of(self, rank: int) -> Callable[[bytes], Sequence[bytes]]:
        def exchange(handle: bytes) -> Sequence[bytes]:
            self._handles[rank] = handle
            self._barrier.wait(DEADLINE_S)
            return self._handles

        return exchange


class World:
    """The groups of all ranks. `run` calls a function for every rank, each in a thread of its own."""

    def __init__(self, devices: Sequence[Device], groups: Sequence[Group], pool: ThreadPoolExecutor) -> None:
        self.devices = devices
        self.groups = groups
        self.size = len(groups)
        self._pool = pool

    def run(self, rank_main: Callable[[Group], T]) -> list[T]:
        """The results in order of rank. Raises the first rank's exception."""
        futures = [self._pool.submit(rank_main, group) for group in self.groups]
        return [future.result(DEADLINE_S) for future in futures]


def make_groups(devices: Sequence[Device], pool: ThreadPoolExecutor, **options: Any) -> list[Group]:
    """A group with a rank on each device."""
    size = len(devices)
    exchange = Exchange(size)
    futures = [
        pool.submit(Group, device, rank, size, exchange.of(rank), **options) for rank, device in enumerate(devices)
    ]
    return [future.result(DEADLINE_S) for future in futures]


@contextmanager
def world(size: int, *, timeout_s: float | None = None, **device_options: Any) -> Iterator[World]:
    """Devices on 127.0.1.1, 127.0.1.2, .. and a group over them."""
    with ExitStack() as stack:
        devices = [
            stack.enter_context(Device(f"127.0.1.{rank + 1}", **{"lanes": 2, **device_options})) for rank in range(size)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=2 * size))
        groups = make_groups(devices, pool, timeout_s=timeout_s)
        for group in groups:
            stack.callback(group.close)
        yield World(devices, groups, pool)
