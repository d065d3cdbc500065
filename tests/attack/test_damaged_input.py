# SPDX-License-Identifier: Apache-2.0
"""Damaged observations and packed traces that are bombs: one sentence, and bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.traces.files import LARGEST_FILE
from tests.attack.measured import paralet
from tests.testbed.cli.test_damaged_results import MUTATIONS, statuses_of_damaged
from tests.testbed.experiments import write_spec
from tests.testbed.traces.test_formats import UNITS, bomb

SEEDS = 3000
"""Beyond those of the quick test, for each of two recorded runs."""
MOST_PLACES = 4
BOMB_MIB = 1000
ALMOST = [(b"0,", 44), (b"[],", 22), (b"[[[[[[[[]]]]]]]],", 15), (b" ", 250)]
"""Units and MiB that stay just below the limits of `unpack`: as many values as it reads, and one wrong end."""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("fabric", ["mininet", "fluid"])
def test_thousands_of_mutations_are_told_or_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sized: Callable[[int], int], fabric: str
) -> None:
    seeds = range(MUTATIONS, MUTATIONS + sized(SEEDS))
    statuses = statuses_of_damaged(tmp_path, monkeypatch, fabric, seeds, MOST_PLACES)
    print(f"{len(seeds)} mutations of a run on {fabric}: {statuses[2]} told, {statuses[0]} reports")
    assert statuses.total() == len(seeds)


@pytest.mark.timeout(200)
def test_bombs_are_refused_with_bounded_memory(tmp_path: Path, sized: Callable[[int], int]) -> None:
    def run(packed: str) -> tuple[int, str, int]:
        workload = {"kind": "trace", "format": "htsim", "file": "made.cm", "packed": packed}
        ran = paralet("run", write_spec(tmp_path, workload=workload, fabric="fluid"), "--results", tmp_path / "results")
        assert ran.stdout == ""
        return ran.status, ran.stderr, ran.peak_bytes

    usual = run("no trace")
    large = [(unit, sized(BOMB_MIB)) for unit in (*UNITS, b" ", b"7", b"]", b'"')]
    for unit, mebibytes in (*large, *ALMOST):
        packed = bomb(unit, mebibytes)
        status, said, peak_bytes = run(packed)
        took_mib = (peak_bytes - usual[2]) >> 20
        print(f"{len(packed):,} bytes that stand for {mebibytes} MiB of {unit.decode()!r}: {took_mib} MiB")
        assert (status, said) == usual[:2]
        assert "is not a packed trace" in said
        assert peak_bytes - usual[2] <= 4 * LARGEST_FILE
