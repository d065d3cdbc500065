# SPDX-License-Identifier: Apache-2.0
"""What an operator waits for leaves hosts most of the time."""

from __future__ import annotations

import asyncio
import time

import pytest

from sdn.path_service.spare_time import SpareTime
from sdn.path_service.work import Work, finished

STEPS = 5


def work(took_s: list[float]) -> Work[str]:
    for step in range(STEPS):
        begin_s = time.perf_counter()
        time.sleep(0.002)
        took_s.append(time.perf_counter() - begin_s)
        if step < STEPS - 1:
            yield
    return "done"


@pytest.mark.parametrize("is_busy", [True, False])
def test_hosts_are_heard_between_two_steps(is_busy: bool) -> None:
    took_s: list[float] = []
    heard: list[int] = []

    async def played() -> float:
        spare = SpareTime(time.perf_counter, lambda: False, lambda at_s, steps: None)

        async def hosts() -> None:
            while True:
                heard.append(len(took_s))
                spare.heard_s = time.perf_counter() if is_busy else -1.0
                await asyncio.sleep(0)

        talking = asyncio.create_task(hosts())
        await asyncio.sleep(0)
        begin_s = time.perf_counter()
        assert await spare.finish(work(took_s)) == "done"
        all_s = time.perf_counter() - begin_s
        talking.cancel()
        return all_s

    all_s = asyncio.run(played())
    assert set(heard) >= set(range(1, STEPS)), "after each step but the last"
    if is_busy:
        assert all_s > 4 * sum(took_s[:-1]), "hosts have four times as long as the steps took"


def test_work_can_be_done_at_once() -> None:
    took_s: list[float] = []
    assert finished(work(took_s)) == "done"
    assert len(took_s) == STEPS
