# SPDX-License-Identifier: Apache-2.0
"""Turns: who asks for little never waits for long, and nobody gets more than its part."""

from __future__ import annotations

from dataclasses import dataclass, field

from sdn.path_service.turns import TURN_S, Share, Turns


@dataclass
class Time:
    now_s: float = 0.0


@dataclass
class Work:
    """Lines that take so many seconds each; `ended_s` has when each had been handled."""

    time: Time
    line_s: float
    lines: int
    ended_s: list[float] = field(default_factory=list)

    def turn(self, until_s: float) -> bool:
        while self.lines:
            self.lines -= 1
            self.time.now_s += self.line_s
            self.ended_s.append(self.time.now_s)
            if self.time.now_s >= until_s:
                break
        return self.lines > 0


def test_a_host_that_asks_for_little_waits_for_one_turn_of_the_others() -> None:
    time = Time()
    turns = Turns(lambda: time.now_s)
    heavy = [Work(time, 0.0028, 512) for _ in range(3)]
    for work in heavy:
        turns.wait(Share(), work)
    waited = []
    share = Share()
    while turns.run(0.002):
        light, begun_s = Work(time, 0.00001, 1), time.now_s
        turns.wait(share, light)
        while not light.ended_s:
            turns.run(0.002)
        waited.append(light.ended_s[0] - begun_s)
    first, *others = waited  # at first no host has had a turn
    assert first <= 3 * 0.0028 + 0.00001
    assert max(others) <= TURN_S + 0.0028 + 0.00001
    assert len(others) > 500
    assert [work.lines for work in heavy] == [0, 0, 0]


def test_hosts_that_ask_for_much_get_equal_parts_whatever_their_lines_and_connections() -> None:
    time = Time()
    turns = Turns(lambda: time.now_s)
    one, many, slow = Share(), Share(), Share()
    works = {
        "one": [(one, Work(time, 0.0001, 10**6))],
        "many": [(many, Work(time, 0.0001, 10**6)) for _ in range(50)],
        "slow": [(slow, Work(time, 0.005, 10**6))],
    }
    for share, work in (entry for entries in works.values() for entry in entries):
        turns.wait(share, work)
    while time.now_s < 3:
        turns.run(0.002)
    used = {name: sum(len(w.ended_s) * w.line_s for _, w in entries) for name, entries in works.items()}
    assert all(abs(part - 1) < 0.02 for part in used.values()), used
    by_connection = [len(work.ended_s) for _, work in works["many"]]
    assert max(by_connection) < 1.5 * min(by_connection)


def test_work_ends_and_may_come_again() -> None:
    time = Time()
    turns = Turns(lambda: time.now_s)
    share, work = Share(), Work(time, 0.0001, 3)
    turns.wait(share, work)
    assert not turns.run(1)
    work.lines = 2
    turns.wait(share, work)
    assert not turns.run(1)
    assert len(work.ended_s) == 5


def test_work_without_a_turn_counts() -> None:
    time = Time()
    turns = Turns(lambda: time.now_s)
    used, fresh = Share(), Share()
    turns.charge(used, 0.001)
    first, second = Work(time, 0.0004, 1), Work(time, 0.0004, 1)
    turns.wait(used, first)
    turns.wait(fresh, second)
    turns.run(0.0004)
    assert (first.lines, second.lines) == (1, 0), "who has used less goes first"


def test_addresses_that_are_new_again_and_again_do_not_hold_up_one_that_waits() -> None:
    """Nobody holds their shares between turns. Before, time stood still for the one that had had a turn already."""
    time = Time()
    turns = Turns(lambda: time.now_s)
    host = [Work(time, 0.002, 1) for _ in range(8)]
    for work in host:
        turns.wait(turns.share("host"), work)
    new: dict[str, Work] = {}
    for _ in range(200):
        for address in ("a", "b"):
            if address not in new or not new[address].lines:
                new[address] = Work(time, 0.002, 1)
                turns.wait(turns.share(address), new[address])
        turns.run(0.001)
    assert sum(not work.lines for work in host) == 8


def test_work_within_other_work_has_its_part_by_weight() -> None:
    time = Time()
    turns = Turns(lambda: time.now_s)
    works = {weight: Work(time, line_s, 10**6) for weight, line_s in ((6.0, 0.0001), (1.0, 0.002), (1.5, 0.0007))}
    for weight, work in works.items():
        turns.wait(Share(weight), work)
    while time.now_s < 6:
        turns.run(0.002)
    used = {weight: sum(1 for _ in work.ended_s) * work.line_s / weight for weight, work in works.items()}
    assert max(used.values()) < 1.03 * min(used.values()), used


def test_an_address_that_is_new_waits_for_no_more_than_a_turn_of_each_other_one() -> None:
    """However much was done before, by hosts that did not wait for each other, too."""
    time = Time()
    turns = Turns(lambda: time.now_s)
    shares = [turns.share(f"host {number}") for number in range(10)]
    heavy = Work(time, 0.002, 10**6)
    for number in range(1000):
        if number == 500:
            turns.wait(turns.share("heavy"), heavy)
        turns.wait(shares[number % 10], Work(time, 0.002, 1))
        turns.run(0.002)
    new, begun_s = Work(time, 0.002, 1), time.now_s
    turns.wait(turns.share("new"), new)
    while not new.ended_s:
        turns.run(0.002)
    assert new.ended_s[0] - begun_s < 12 * 0.002
