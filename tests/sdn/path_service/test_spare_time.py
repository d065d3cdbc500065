# SPDX-License-Identifier: Apache-2.0
"""What an operator waits for leaves hosts most of the time."""

from __future__ import annotations

import asyncio

import pytest

from sdn.path_service.spare_time import SpareTime
from sdn.path_service.work import Work, finished

STEPS = 5


class Played:
    """Works of an operator, and a host that speaks while the service rests, in a time of their own."""

    def __init__(self, step_s: float, host_speaks: bool) -> None:
        self.now_s = 100.0
        self.steps: list[tuple[str, float, float]] = []
        """The work of each step, and when the step began and ended."""
        self.rests = 0
        self._step_s = step_s
        self._host_speaks = host_speaks
        self._spare = SpareTime(
            lambda: self.now_s, lambda: False, lambda at_s, steps: None, clock=lambda: self.now_s, rest=self._rest
        )

    def work(self, name: str) -> Work[str]:
        for step in range(STEPS):
            begin_s = self.now_s
            self.now_s += self._step_s
            self.steps.append((name, begin_s, self.now_s))
            if step < STEPS - 1:
                yield
        return f"{name} is done"

    def finished(self, *names: str) -> list[str]:
        """What these works say, which are asked for together."""

        async def all_done() -> list[str]:
            return await asyncio.gather(*(self._spare.finish(self.work(name)) for name in names))

        return asyncio.run(all_done())

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(0)  # other works may be done meanwhile
        self.rests += 1
        self.now_s += seconds
        if self._host_speaks:
            self._spare.heard_s = self.now_s


@pytest.mark.parametrize("step_s", [0.002, 0.1])
def test_hosts_have_four_times_as_long_as_each_step_while_they_speak(step_s: float) -> None:
    played = Played(step_s, host_speaks=True)
    assert played.finished("drain") == ["drain is done"]
    rests_s = [after[1] - before[2] for before, after in zip(played.steps, played.steps[1:], strict=False)]
    assert rests_s == pytest.approx([4 * step_s] * (STEPS - 1))


def test_hosts_are_looked_for_between_two_steps_while_none_speaks() -> None:
    played = Played(0.002, host_speaks=False)
    played.finished("drain")
    assert played.rests >= STEPS - 1
    assert played.now_s == pytest.approx(100.0 + STEPS * 0.002), "the operator does not wait for hosts"


def test_works_of_several_operators_are_done_one_by_one() -> None:
    """Together they leave hosts as much time as one."""
    played = Played(0.002, host_speaks=True)
    assert played.finished("one", "other", "third") == ["one is done", "other is done", "third is done"]
    assert [name for name, _, _ in played.steps] == ["one"] * STEPS + ["other"] * STEPS + ["third"] * STEPS
    rests_s = [after[1] - before[2] for before, after in zip(played.steps, played.steps[1:], strict=False)]
    assert min(rests_s) == pytest.approx(4 * 0.002)


def test_work_can_be_done_at_once() -> None:
    played = Played(0.002, host_speaks=True)
    assert finished(played.work("drain")) == "drain is done"
    assert len(played.steps) == STEPS
