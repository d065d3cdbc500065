# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: how repetitions become rows, and how the program's lines are read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from testbed.bench import transport
from testbed.bench.frame import Measurement, result
from testbed.errors import TestbedError

LINE = '{"metric": "latency", "case": "8 B", "unit": "us", "ours": 20.0, "peer": 10.0, "peer_name": "TCP"}'


def program(folder: Path, text: str) -> Path:
    path = folder / "program"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return path


def test_rows_are_medians_in_order_of_appearance() -> None:
    rounds = [
        Measurement("m", case, "u", ours, peer, "TCP")
        for case, ours, peer in [("b", 1, 4), ("a", 7, 2), ("b", 9, 5), ("a", 5, 1), ("b", 2, 6), ("a", 6, 3)]
    ]
    rows = result("x", rounds).rows
    assert [(row.case, row.ours, row.peer, row.ratio) for row in rows] == [("b", 2, 5, 0.4), ("a", 6, 2, 3)]


def test_every_line_is_a_measurement(tmp_path: Path) -> None:
    (one, two) = transport.run(program(tmp_path, f"print({LINE!r}); print({LINE!r})"))
    assert one == two == Measurement("latency", "8 B", "us", 20.0, 10.0, "TCP")


@pytest.mark.parametrize("line", ["hello", '{"metric": "latency"}', "[1]", LINE.replace("case", "kase")])
def test_anything_else_is_an_error_and_ends_the_program(tmp_path: Path, line: str) -> None:
    talker = program(tmp_path, f"import time; print({line!r}, flush=True); time.sleep(600)")
    with pytest.raises(TestbedError, match="which is no measurement"):
        list(transport.run(talker))


def test_a_program_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="ended with status 3"):
        list(transport.run(program(tmp_path, "raise SystemExit(3)")))
