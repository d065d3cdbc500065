# SPDX-License-Identifier: Apache-2.0
"""Slow results of papers: computed once, in other processes, with progress."""

from __future__ import annotations

import os

import pytest
from joblib import cpu_count

from testbed.research.papers.ahead import Remembered, ahead


@Remembered
def process_of(name: str, number: int = 1) -> tuple[str, int, int]:
    """The process that computed it."""
    return name, number, os.getpid()


def test_a_result_is_computed_once_for_each_of_its_arguments() -> None:
    calls: list[int] = []

    @Remembered
    def twice(number: int, factor: int = 2) -> int:
        calls.append(number)
        return factor * number

    assert [twice(1), twice(2), twice(1, 2), twice(number=1), twice(1, factor=3)] == [2, 4, 2, 2, 3]
    assert calls == [1, 2, 1]


def test_results_come_from_other_processes_and_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    ahead([(process_of, ("a",)), (process_of, ("b", 2))])
    assert process_of("a", 1)[:2] == ("a", 1)
    assert process_of(name="b", number=2)[:2] == ("b", 2)
    assert process_of("c")[2] == os.getpid()
    if cpu_count() > 1:
        assert process_of("a")[2] != os.getpid() != process_of("b", 2)[2]
    assert "[0/2" in capsys.readouterr().err
