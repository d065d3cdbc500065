# SPDX-License-Identifier: Apache-2.0
"""`paralet bench cores`: what it measures on machines of several sizes, and that its time is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.bench import cores
from testbed.bench.cores import Step
from testbed.bench.frame import Measurement

ONE = Measurement("m", "c", "u", 1.0, 2.0, "peer")
BENCH = Path("paralet-bench")


def planned(count: int, *, nccl: bool = True) -> tuple[list[str], str]:
    steps, left_out = cores.plan(count, BENCH, ["soft"], nccl=nccl)
    return [step.name for step in steps], "; ".join(left_out)


def test_two_cores_have_one_pair_and_say_what_is_left_out() -> None:
    names, left_out = planned(2)
    assert names == ["pairs", "2 ranks, 1 core each"]
    assert [case.name for case in cores.pair_cases(2)] == ["1 MiB, 1 pair, 1 core a side"]
    for what in ("shards", "several pairs", "4 ranks"):
        assert what in left_out


def test_sixteen_cores_are_used_by_pairs_and_by_ranks() -> None:
    names, left_out = planned(16)
    assert "2 ranks, 8 cores each" in names
    assert "4 ranks, 4 cores each" in names
    assert "4 ranks, 8 cores each" not in names
    assert [case.pairs for case in cores.pair_cases(16)] == [1, 1, 1, 1, 1, 1, 2, 4, 8]
    assert [case.options for case in cores.pair_cases(16)][3] == ("--cores", "8")
    assert [case.options for case in cores.pair_cases(16)][5] == ("--cores", "8", "--shards", "4")
    assert left_out == ""


@pytest.mark.parametrize(
    ("count", "transports"),
    [(1, ["soft", "tcp"]), (2, ["soft", "soft:2", "tcp", "tcp:2"]), (8, ["soft", "soft:2", "soft:4"])],
)
def test_a_rank_has_no_more_shards_than_cores(count: int, transports: list[str]) -> None:
    assert cores.with_shards(["soft", "tcp"], count)[: len(transports)] == transports


@pytest.mark.parametrize("count", [1, 2, 3, 8, 24, 64])
def test_nothing_needs_more_cores_than_there_are(count: int) -> None:
    for case in cores.pair_cases(count):
        width = int(case.options[1]) if case.options[0] == "--cores" else 1
        assert 2 * case.pairs * width <= max(2, count)
    names, _ = planned(count)
    for name in names[1:]:
        ranks, _, each, *_ = name.split()
        assert int(ranks) * int(each) <= count


def test_without_nccl_its_steps_are_left_out() -> None:
    names, left_out = planned(16, nccl=False)
    assert names == ["pairs"]
    assert "`make nccl` installs it" in left_out


def test_steps_that_do_not_fit_into_the_time_are_told() -> None:
    time_s = [0.0]

    def step(left_s: float) -> Iterator[Measurement]:
        asked.append(left_s)
        for _ in range(3):
            time_s[0] += 100
            yield ONE

    asked: list[float] = []
    left_out: list[str] = []
    steps = [Step(name, step) for name in ("first", "second", "third")]
    found = cores.carry_out(steps, left_out, 450, lambda _: None, lambda: None, clock=lambda: time_s[0])
    assert asked == [450, 150]
    assert len(found) == 5  # the second step ends with the measurement in which the time was over
    assert left_out == ["second, or a part of it: 450 s are over", "third: 450 s are over"]


def test_a_step_that_ends_without_figures_is_told() -> None:
    time_s = [0.0]

    def step(left_s: float) -> Iterator[Measurement]:
        time_s[0] += left_s + 1
        return iter(())

    left_out: list[str] = []
    assert cores.carry_out([Step("only", step)], left_out, 450, lambda _: None, lambda: None, lambda: time_s[0]) == []
    assert left_out == ["only, or a part of it: 450 s are over"]


def test_every_back_end_stands_beside_socket_in_three_settings() -> None:
    def row(transport: str, size: int, rate: float) -> dict[str, Any]:
        return {"transport": transport, "size": size, "out_of_place": {"bus_bw": rate}}

    rows = [
        row(name, size, size * rate) for size in (8, 1 << 20) for rate, name in enumerate(["soft", *cores.SOCKETS], 1)
    ]
    found = list(cores.nccl_measurements("2 ranks, 1 core each", {"results": rows}, ["soft"]))
    assert [(measurement.case, measurement.peer_name) for measurement in found] == [
        (f"2 ranks, 1 core each, {size}", f"NCCL {name}") for size in ("8 B", "1 MiB") for name in cores.SOCKETS
    ]
    assert [(measurement.ours, measurement.peer) for measurement in found[:3]] == [(8, 16), (8, 24), (8, 32)]
