# SPDX-License-Identifier: Apache-2.0
"""The processes of test_fork.py. The parent opens devices and groups and forks. The child tries every call on them,
opens devices of its own, and ends as programs do. The parent goes on. Both print a JSON object, the child first.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hostlib import Device, MemoryRegion, Request, TransportError, wait_any
from hostlib.collectives import Group, Operation
from tests.hostlib.conftest import DEADLINE_S, A, B, Pair, join
from tests.hostlib.group_scene import world


def said(calls: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """What each call raised, or returned."""
    out = {}
    for name, call in calls.items():
        try:
            out[name] = f"returned {call()!r}"
        except TransportError as error:
            out[name] = f"{type(error).__name__}: {error}"
    return out


def start_sum(group: Group, memory: np.ndarray[Any, np.dtype[np.float64]]) -> Operation:
    return group.all_reduce(memory.ctypes.data, memory.ctypes.data, memory.size, "float64")


def total(group: Group) -> float:
    """The sum of a hundred ones of every rank."""
    ones = np.ones(100)
    start_sum(group, ones).wait(DEADLINE_S)
    return float(ones.sum())


def own_exchange() -> str:
    """A message between two devices that this process opens."""
    with Device(A, lanes=2) as one, Device(B, lanes=2) as two:
        return join(one, two).exchange(b"the child's own").decode()


def child(pair: Pair, group: Group, pending: Request, operation: Operation, region: MemoryRegion) -> None:
    signal.alarm(int(DEADLINE_S))  # a call that hangs ends the process
    buffer = bytearray(10)
    memory = np.zeros(10)
    address = memory.ctypes.data
    calls: dict[str, Callable[[], object]] = {
        "listen": pair.one.listen,
        "connect": lambda: pair.one.connect(pair.listener.handle),
        "register": lambda: pair.one.register(buffer),
        "set_port": lambda: pair.one.set_port(B, 0, 50_000),
        "counters": pair.one.counters,
        "accept": lambda: pair.listener.accept(1.0),
        "send": lambda: pair.to.send(b"x"),
        "recv": lambda: pair.to.recv(buffer),
        "recv into a region": lambda: pair.to.recv(region),
        "request.wait": pending.wait,
        "request.done": lambda: pending.done,
        "wait_any": lambda: wait_any([pending]),
        "group": lambda: Group(pair.one, 0, 1, lambda handle: [handle]),
        "all_reduce": lambda: group.all_reduce(address, address, 10, "float64"),
        "all_gather": lambda: group.all_gather(address, address, 40),
        "barrier": group.barrier,
        "group.send": lambda: group.send(address, 80, 1),
        "group.recv": lambda: group.recv(address, 80, 1),
        "take_finished": lambda: group.take_finished(1.0),
        "abort": lambda: group.abort("the child"),
        "operation.wait": operation.wait,
        "operation.done": lambda: operation.done,
        "operation.error": lambda: operation.error,
        "operation.source": lambda: operation.source,
    }
    heard = said(calls)
    heard["inherited"] = str([pair.one.inherited, group.inherited])
    heard["own"] = own_exchange()
    for closing in (pair.to.close, pair.listener.close, region.close, pair.one.close, group.close):
        closing()
    print(json.dumps(heard), flush=True)


def main() -> None:
    with ThreadPoolExecutor() as pool, Device(A, lanes=2) as one, Device(B, lanes=2) as two, world(2) as ranks:
        pair = join(one, two)
        before = list(pool.map(total, ranks.groups))
        region = one.register(bytearray(100))
        received = bytearray(10)
        receiving = pair.back.recv(received, 9)
        sums = [np.ones(10), np.ones(10)]
        started = start_sum(ranks.groups[0], sums[0])
        if (pid := os.fork()) == 0:
            child(pair, ranks.groups[0], receiving, started, region)
            sys.exit(0)  # the way of every program: objects end, exit handlers run
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        pair.to.send(b"0123456789", 9).wait(DEADLINE_S)
        receiving.wait(DEADLINE_S)
        start_sum(ranks.groups[1], sums[1]).wait(DEADLINE_S)
        started.wait(DEADLINE_S)
        after = list(pool.map(total, ranks.groups))
        print(
            json.dumps(
                {
                    "child ended with": status,
                    "before": before,
                    "after": after,
                    "message": received.decode(),
                    "sums": [float(m.sum()) for m in sums],
                    "inherited": str([one.inherited, ranks.groups[0].inherited]),
                }
            )
        )


if __name__ == "__main__":
    main()
