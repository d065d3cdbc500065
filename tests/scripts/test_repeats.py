# SPDX-License-Identifier: Apache-2.0
"""Continuous integration names the tests that passed only the second time, and fails when they are many."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def repeats(*logs: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "scripts" / "repeats.sh", *logs], capture_output=True, text=True, check=False)


def test_repeated_tests_are_named_and_counted(tmp_path: Path) -> None:
    units, native = tmp_path / "units.log", tmp_path / "native.log"
    units.write_text("....F\nFAILED tests/a.py::test_x[1] - assert 1 == 2\nERROR tests/b.py::test_y\n1 failed\n")
    native.write_text("test-native: as it ships: passed only the second time: engine/device_faults\n")
    done = repeats(units, native)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "ci: 3 tests passed only the second time",
        "ci:   engine/device_faults",
        "ci:   tests/a.py::test_x[1]",
        "ci:   tests/b.py::test_y",
    ]
    native.write_text(native.read_text().replace("faults", "faults soft/rc_qp_loss"))
    done = repeats(units, native)
    assert done.returncode == 1
    assert "ci: 4 tests" in done.stdout
    assert "more than 3" in done.stderr


def test_no_repeats_are_no_failure() -> None:
    assert repeats(Path("/dev/null")).stdout == "ci: 0 tests passed only the second time\n"
